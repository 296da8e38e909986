# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: which releases of llama.cpp a host has, and what an upgrade has noted beside them. Knows nothing of Ansible.

`<prefix>/upgrade.json` is there from before a host's `current` may change until the upgrade has ended everywhere, so
that who finds it knows that hosts may differ, and where this one came from. `<prefix>/upgraded.json` is what the last
upgrade that came to a good end has left: where to roll back to. They are two files so that an upgrade can be withdrawn
on a full disk: that only removes one.

A task goes on to its end when the run that began it is killed, or cut off from the host. The next run waits for it, so
that the two do not undo each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from .._files.record import sync_folder

# Whatever the playbook's tasks run that changes a host has this in its environment: the prefix.
VARIABLE = "LLAMA_CPP_CLUSTER_UPGRADE"
UNFINISHED, FINISHED = "upgrade.json", "upgraded.json"
# What roles/llama_cpp makes of a release's name (tasks/gather.yml). None leads out of the folder.
_RELEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_KEYS = ("run", "from", "to", "time")


class JournalError(Exception):
    """One sentence: why a host cannot be upgraded, or the note not be written."""


def read(prefix: Path) -> dict[str, Any]:
    """Return which releases are there, which one is in use, and what upgrades have noted."""
    manifests = {}
    for path in sorted((prefix / "releases").glob("*/manifest.json")):
        if _RELEASE.fullmatch(path.parent.name):
            manifests[path.parent.name] = _manifest(path)
    return {
        "current": _current(prefix),
        "releases": manifests,
        "unfinished": _note(prefix / UNFINISHED),
        "finished": _note(prefix / FINISHED),
    }


def begin(prefix: Path, run: str, to: str, time: str, *, way: str = "upgrade", write: bool = True) -> bool:
    """Note that the host may change from the release in use to another one; say whether that was new."""
    there = read(prefix)
    noted = there["unfinished"]
    if noted is not None and (noted["run"], noted["to"]) != (run, to):
        raise JournalError(f"another upgrade, begun {noted['time']}, has not ended: run the playbook upgrade again.")
    if to not in there["releases"]:
        raise JournalError(f"there is no release {to} in {prefix}/releases: run the playbook upgrade again.")
    if there["current"] is None:
        raise JournalError(f"no release is in use in {prefix}: run the playbook site.")
    if noted is None and write:
        _write(prefix / UNFINISHED, {"run": run, "from": there["current"], "to": to, "time": time, "way": way})
    return noted is None


def finish(prefix: Path, run: str, *, write: bool = True) -> bool:
    """Note that the upgrade has come to a good end, here as everywhere; say whether that was new."""
    noted = _mine(prefix, run, "to")
    if noted is None:
        return False
    if write:
        # In one step: noted as good, or not at all.
        (prefix / UNFINISHED).replace(prefix / FINISHED)
        sync_folder(prefix)
    return True


def withdraw(prefix: Path, run: str, *, write: bool = True) -> bool:
    """Forget an upgrade after the host has got its release back; say whether there was one."""
    noted, last = _mine(prefix, run, "from"), _note(prefix / FINISHED)
    paths = [prefix / UNFINISHED] if noted is not None else []
    # Where the end was noted here and nowhere else, it was none.
    paths += [prefix / FINISHED] if last is not None and last["run"] == run else []
    if write:
        for path in paths:
            path.unlink()
        sync_folder(prefix)
    return bool(paths)


def wait(prefix: Path, patience_s: int) -> None:
    """Return as soon as no task of an earlier run changes the host any more; at most so many seconds are waited."""
    end = time.monotonic() + patience_s
    while True:
        found = at_work(prefix)
        if not found:
            return
        if time.monotonic() >= end:
            raise JournalError(
                f"another run of the playbook upgrade was killed, was cut off or is still going on, and a task of it "
                f"has not ended within {patience_s} s ({found}): run this again when that task has ended."
            )
        time.sleep(1)


def at_work(prefix: Path, proc: Path = Path("/proc")) -> str:
    """Return what an upgrade's task runs at the moment that may change something here, empty if there is none."""
    mark = f"{VARIABLE}={prefix}".encode()
    found = ""
    # The process that began last is the one that tells most.
    for folder in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError):  # it is gone, or somebody else's
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found = f"{(folder / 'comm').read_text(errors='replace').strip()}, process {folder.name}"
    return found


def _mine(prefix: Path, run: str, key: str) -> dict[str, str] | None:
    """Return the note of a run whose host has the release that the note names, None if there is no note."""
    noted, current = _note(prefix / UNFINISHED), _current(prefix)
    if noted is None or noted["run"] != run:
        return None
    if noted[key] != current:
        raise JournalError(f"the release in use is {current}, and not {noted[key]}: run the playbook upgrade again.")
    return noted


def _current(prefix: Path) -> str | None:
    try:
        return Path(os.readlink(prefix / "current")).name
    except OSError:  # not there, or no link
        return None


def _manifest(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _note(path: Path) -> dict[str, str] | None:
    """Return what is noted there; None if the file is not there."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise JournalError(f"{path} cannot be read ({error}): correct that, and run this again.") from None
    try:
        there = json.loads(text)
        noted = {**{key: str(there[key]) for key in _KEYS}, "way": str(there.get("way", "upgrade"))}
    except (AttributeError, ValueError, TypeError, KeyError):
        noted = {}
    if not noted or not all(_RELEASE.fullmatch(noted[key]) for key in ("from", "to")):
        raise JournalError(
            f"{path} is not what the playbook upgrade writes there: remove it, and run the playbook site, "
            "which brings all hosts to one release."
        )
    return noted


def _write(path: Path, note: dict[str, str]) -> None:
    """Write a file that is there whole or not at all, and after a power cut too."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("w", encoding="utf-8") as stream:
            # One line for each key: tasks/probe.yml of the role llama_cpp reads it without Python.
            stream.write(json.dumps(note, indent=2) + "\n")
            stream.flush()
            os.fchmod(stream.fileno(), 0o644)
            os.fsync(stream.fileno())
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise JournalError(f"{path} cannot be written ({error.strerror}): correct that, and run this again.") from None
    sync_folder(path.parent)
