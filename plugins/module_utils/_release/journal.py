# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the releases of llama.cpp on a host, and an upgrade's notes beside them. Knows nothing of Ansible.

playbooks/tasks/upgrade writes the notes. `<prefix>/upgrade.json` exists from before a host's `current` may change until
the upgrade has ended on all hosts. It shows that hosts may differ, and names the release that this host had before. The
last upgrade that succeeded leaves `<prefix>/upgraded.json`, which names the release to roll back to. The two files are
separate so that an upgrade can be withdrawn on a full disk: withdrawing only removes a file.

If the run that started a task is killed or cut off from the host, the task still continues to its end. The next run
waits for it, so that the two do not undo each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any

# Every process with which the playbook's tasks change a host has this variable, set to the prefix.
VARIABLE = "LLAMA_CPP_CLUSTER_UPGRADE"
UNFINISHED, FINISHED = "upgrade.json", "upgraded.json"
# The release names that roles/llama_cpp makes (tasks/gather.yml). None of them leads out of the folder.
_RELEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_KEYS = ("run", "from", "to", "time", "way")


class JournalError(Exception):
    """An earlier run still changes the host, or its note cannot be read; the message is one sentence."""


def sentence(error: JournalError | OSError, prefix: Path) -> str:
    """Return what failed in the folder of the releases, and the remedy, as a sentence."""
    if isinstance(error, OSError):
        return f"{error.filename or prefix} cannot be used ({error.strerror}): correct that, and run this again."
    return str(error)


def read(prefix: Path) -> dict[str, Any]:
    """Return the release in use, the manifests of all releases, and the notes of upgrades."""
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


def wait(prefix: Path, patience_s: int) -> None:
    """Wait until no task of an earlier run changes the host; raise JournalError after `patience_s` seconds."""
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
    """Return the process of an upgrade's task that may still change this host, empty if there is none."""
    mark = f"{VARIABLE}={prefix}".encode()
    found = ""
    # The process that started last tells most about the task.
    for folder in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError):  # the process is gone, or another user's
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found = f"{(folder / 'comm').read_text(errors='replace').strip()}, process {folder.name}"
    return found


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
    """Return the note in a file, None if the file does not exist."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise JournalError(f"{path} cannot be read ({error}): correct that, and run this again.") from None
    try:
        there = json.loads(text)
        noted = {key: str(there[key]) for key in _KEYS}
    except (AttributeError, ValueError, TypeError, KeyError):
        noted = {}
    if not noted or not all(_RELEASE.fullmatch(noted[key]) for key in ("from", "to")):
        raise JournalError(
            f"{path} is not what the playbook upgrade writes there: remove it, and run the playbook site, "
            "which brings all hosts to one release."
        )
    return noted
