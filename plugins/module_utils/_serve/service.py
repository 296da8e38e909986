# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the services of role llama_server on this host, and their state."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

# The folder in which the role writes a settings file and a key file for each port.
FOLDER = Path("/etc/llama_server")
PROPERTIES = ("ActiveState", "StatusText", "NRestarts", "MainPID")


@dataclass(frozen=True)
class Service:
    """A service as its settings describe it."""

    port: int
    address: str
    alias: str
    workers: list[str]
    model: Path
    keys_file: Path

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


def programs_of(main_pid: int, proc: Path = Path("/proc")) -> dict[int, str]:
    """Return the programs that a service runs, by process ID; none if none is visible."""
    try:
        children = (proc / f"{main_pid}/task/{main_pid}/children").read_text(encoding="ascii").split()
        return {int(child): os.readlink(proc / child / "exe") for child in children}
    except OSError:
        return {}


def release_of(main_pid: int, proc: Path = Path("/proc")) -> str | None:
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


def message_of(service: Service, state: str, properties: Mapping[str, str], answer: Mapping[str, Any]) -> str:
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
    return f"{service.url} serves {service.alias} over {len(service.workers)} workers."
