# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the services of role llama_server on this host, and their state."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Mapping

# The folder in which the role writes a settings file and a key file for each port.
FOLDER = Path("/etc/llama_server")
PROGRAMS = Path("/usr/local/lib/llama_server")
UNITS = Path("/etc/systemd/system")
PROC = Path("/proc")
RUN = Path("/run")
PROPERTIES = ("ActiveState", "StatusText", "NRestarts", "MainPID", "NeedDaemonReload")
# With this patch, llama-server reads a changed file of keys again by itself.
KEYS_PATCH = "programs"


@dataclass(frozen=True)
class Service:
    """A service as its settings describe it."""

    port: int
    address: str
    alias: str
    workers: list[str]
    model: Path
    keys_file: Path
    program: Path

    @property
    def unit(self) -> str:
        """The name of the service's unit."""
        return f"llama-server@{self.port}.service"

    @property
    def own_address(self) -> str:
        """The address at which this host reaches the service."""
        return "127.0.0.1" if self.address == "0.0.0.0" else self.address  # noqa: S104 - not bound here

    @property
    def url(self) -> str:
        """The URL of the API for clients."""
        return f"http://{self.address}:{self.port}/v1"


def read_services(folder: Path = FOLDER) -> list[Service]:
    """Return the services of this host, by port; leave out files that are unreadable or not from the role."""
    found = []
    for path in folder.glob("*.json"):
        try:
            settings = json.loads(path.read_text(encoding="utf-8"))
            found.append(
                Service(
                    int(settings["port"]),
                    str(settings["address"]),
                    str(settings["alias"]),
                    [str(worker) for worker in settings["workers"]],
                    Path(settings["model"]),
                    Path(settings["keys_file"]),
                    Path(settings["program"]),
                )
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return sorted(found, key=lambda service: service.port)


def read_key(path: Path) -> str | None:
    """Return the first key of a file, or None if the file is unreadable or has no key."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    return next((line for line in lines if line and not line.startswith("#")), None)


def read_properties(text: str) -> dict[str, str]:
    """Return the properties that `systemctl show` prints."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def missing(paths: Iterable[str]) -> list[str]:
    """Return those paths that do not exist; one that ends with a slash has to be a folder."""
    return [path for path in paths if not (Path(path).is_dir() if path.endswith("/") else Path(path).exists())]


def files_without_key(folder: Path = FOLDER) -> list[str]:
    """Return the files of keys that have no key; llama-server would let everybody in."""
    return sorted(str(path) for path in folder.glob("*.keys") if read_key(path) is None)


def read_plan(service: Service, folder: Path = FOLDER) -> dict[str, Any] | None:
    """Return the division of the model that the role has written for a service; None if there is none."""
    try:
        return dict(json.loads((folder / f"{service.port}.plan").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def read_division(service: Service, folder: Path = RUN) -> dict[str, Any] | None:
    """Return which workers of a service serve and which do not; None if it does not run."""
    try:
        text = (folder / f"llama_server_{service.port}/division.json").read_text(encoding="utf-8")
        found = dict(json.loads(text))
        lists = {name: [str(it) for it in found[name]] for name in ("serving", "spare", "lost", "excluded", "ready")}
        return {**lists, "degraded": bool(found["degraded"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def metrics_link(service: Service, units: Path = UNITS) -> str | None:
    """Return the link to the metrics in node_exporter's folder, which the unit names; None if it names none."""
    try:
        text = (units / service.unit).read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^X-TextfileLink=(.+)$", text, re.MULTILINE)
    return found[1] if found else None


def started_at(pid: int, proc: Path = PROC) -> float | None:
    """Return when a process started, in seconds since 1970; None if that is not visible."""
    try:
        ticks = int((proc / f"{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def is_newer(paths: Iterable[Path], pid: int, proc: Path = PROC) -> bool:
    """Return whether a file was changed after a process started; a time in the future says nothing."""
    started = started_at(pid, proc)
    return started is not None and any(started < path.stat().st_mtime <= time.time() for path in paths if path.exists())


def rereads_keys(program: Path) -> bool:
    """Return whether the release of a llama-server has the patch with which a new key needs no restart."""
    try:
        manifest = json.loads((program.resolve().parents[1] / "manifest.json").read_text(encoding="utf-8"))
        return any(patch["name"] == KEYS_PATCH for patch in manifest.get("patches") or [])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def is_outdated(
    service: Service,
    properties: Mapping[str, str],
    *,
    folder: Path = FOLDER,
    programs: Path = PROGRAMS,
    units: Path = UNITS,
    proc: Path = PROC,
) -> bool:
    """Return whether a service runs that started before the last change of its files, or with another release."""
    main_pid = int(properties.get("MainPID") or 0)
    if not main_pid:
        return False
    if properties.get("NeedDaemonReload") == "yes":
        return True
    found = re.search(r"/releases/([^/]+)/bin/", str(service.program.resolve()))
    if found and release_of(main_pid, proc) not in (None, found[1]):
        return True
    files = [folder / f"{service.port}.json", units / service.unit]
    files += [programs / f"llama_server_{name}.py" for name in ("service", "division", "prompts")]
    files += programs.glob("_rpc/*.py")
    if not rereads_keys(service.program):
        files.append(service.keys_file)
    return is_newer(files, main_pid, proc)


def programs_of(main_pid: int, proc: Path = PROC) -> dict[int, str]:
    """Return the programs that a service runs, by process ID; none if none is visible."""
    try:
        children = (proc / f"{main_pid}/task/{main_pid}/children").read_text(encoding="ascii").split()
        return {int(child): os.readlink(proc / child / "exe") for child in children}
    except OSError:
        return {}


def release_of(main_pid: int, proc: Path = PROC) -> str | None:
    """Return the id of the release whose llama-server a service runs; None if there is none or it is not visible."""
    programs = programs_of(main_pid, proc).values()
    found = (re.search(r"/releases/([^/]+)/bin/llama-server$", program) for program in programs)
    return next((match.group(1) for match in found if match), None)


def state_of(properties: Mapping[str, str], api_state: str) -> str:
    """Return `serving`, `loading`, `waiting`, `stopped` or `failed`, from the unit and the API."""
    active = properties.get("ActiveState", "inactive")
    if active == "failed":
        return "failed"
    if active in ("inactive", "deactivating"):
        return "stopped"
    if api_state in ("serving", "loading"):
        return api_state
    return "waiting"


def message_of(
    service: Service,
    state: str,
    properties: Mapping[str, str],
    answer: Mapping[str, Any],
    division: Mapping[str, Any] | None = None,
) -> str:
    """Return one sentence: the state of the service, and what to do if it is not healthy."""
    said = properties.get("StatusText", "").strip()
    journal = f"see `journalctl -u {service.unit}` there"
    if state == "stopped":
        return (
            f"{service.unit} does not run: start it with `systemctl start {service.unit}`, or run the playbook serve."
        )
    if state == "failed":
        return f"{service.unit} has failed: {journal}, or run the playbook serve."
    if state == "waiting":
        return said or f"{service.unit} is about to start: {journal}."
    if state == "loading":
        return said or f"{service.unit} loads the model."
    if answer.get("problem"):
        return f"{service.url} is up, but {answer['problem']}: {journal}."
    if answer.get("open_paths"):
        return f"{service.url} answers {', '.join(answer['open_paths'])} without a key: run the playbook serve."
    count = str(len(service.workers))
    if division and division["degraded"]:
        count = f"{len(division['serving'])} of {count}"
    return f"{service.url} serves {service.alias} over {count} workers."
