# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the state of the groups behind the HAProxy of role llama_gateway."""

from __future__ import annotations

import csv
import re
import socket
import time
from calendar import timegm
from pathlib import Path
from typing import Any

from .service import PROC, UNITS, is_newer

# The folder of the role's configuration, and the socket on which its HAProxy listens for commands.
FOLDER = Path("/etc/llama_gateway")
SOCKET = Path("/run/llama-gateway/admin.sock")
# The ID of the process that systemd started. It stays during a reload, while another process takes the requests.
PID_FILE = Path("/run/llama-gateway/haproxy.pid")
UNIT = "llama-gateway.service"
# The files that HAProxy reads when it starts or is reloaded.
CONFIGURATION = ("haproxy.cfg", "keys.map", "models.map", "door.pem", "wait.lua")
# The configuration of keepalived if there is a virtual address, and a folder that exists while keepalived runs.
ADDRESS_CONFIG = "keepalived.conf"
ADDRESS_FOLDER = Path("/run/llama-gateway-address")
ADDRESS_UNIT = "llama-gateway-address.service"
LIMIT_S = 10
# The days before the end of a certificate from which the gateway is not healthy.
WARN_DAYS = 14
# The HAProxy server in which requests wait while no group serves.
WAITING_ROOM = "wait"


def tell(command: str, path: Path = SOCKET) -> str:
    """Send HAProxy a command, and return its answer; raises OSError."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(LIMIT_S)
        sock.connect(str(path))
        sock.sendall(f"{command}\n".encode())
        parts = []
        while part := sock.recv(65536):
            parts.append(part)
    return b"".join(parts).decode()


def read_models(text: str) -> dict[str, str]:
    """Return the model of each backend, from the text of `models.map`."""
    pairs = (line.split() for line in text.splitlines())
    return {backend: model for model, backend in (pair for pair in pairs if len(pair) == 2)}


def read_groups(statistics: str, models: dict[str, str]) -> list[dict[str, Any]]:
    """Return the groups from HAProxy's answer to `show stat` (management.txt, 9.1)."""
    found = []
    for row in csv.DictReader(statistics.lstrip("# ").splitlines()):
        if row["pxname"] not in models or row["svname"] in ("BACKEND", WAITING_ROOM):
            continue
        state = _state(row["status"])
        reason = "" if state == "in" else _reason(row, state)
        group = {"name": row["svname"], "model": models[row["pxname"]], "state": state, "reason": reason}
        found.append({**group, "busy": int(row["scur"]), "slots": int(row["slim"] or 0)})
    return found


def read_queues(statistics: str, models: dict[str, str]) -> dict[str, int]:
    """Return how many requests wait for each model."""
    rows = csv.DictReader(statistics.lstrip("# ").splitlines())
    return {
        models[row["pxname"]]: int(row["qcur"])
        for row in rows
        if row["svname"] == "BACKEND" and row["pxname"] in models
    }


def days_left(certificate: str, now: float | None = None) -> int | None:
    """Return the days until a certificate expires, from HAProxy's answer; None if it names no date."""
    found = re.search(r"^Not After: (.+)$", certificate, re.MULTILINE)
    if not found:
        return None
    ends = timegm(time.strptime(found[1].strip(), "%b %d %H:%M:%S %Y GMT"))
    return int((ends - (time.time() if now is None else now)) // 86400)


def outdated(
    worker: int, folder: Path = FOLDER, *, pid_file: Path = PID_FILE, units: Path = UNITS, proc: Path = PROC
) -> str:
    """Return `unit` or `configuration` if a running HAProxy started before that changed; otherwise an empty string.

    `worker` is the ID of the process that takes requests.
    """
    main = pid_file.read_text(encoding="ascii").split() if pid_file.exists() else []
    if main and is_newer([units / UNIT], int(main[0]), proc):
        return "unit"
    return "configuration" if is_newer([folder / name for name in CONFIGURATION], worker, proc) else ""


def look(folder: Path = FOLDER, path: Path = SOCKET, address_folder: Path = ADDRESS_FOLDER) -> dict[str, Any]:
    """Return the state of the gateway, and whether it is healthy; see module llama_gateway_info."""
    try:
        models = read_models((folder / "models.map").read_text(encoding="utf-8"))
        statistics = tell("show stat", path)
        worker = re.search(r"^Pid: (\d+)$", tell("show info", path), re.MULTILINE)
        pem = folder / "door.pem"
        days = days_left(tell(f"show ssl cert {pem}", path)) if pem.exists() else None
    except FileNotFoundError:
        return _silent(f"{UNIT} does not run: start it with `systemctl start {UNIT}`, or run the playbook serve.")
    except OSError as error:
        return _silent(f"{UNIT} does not answer ({error}): see `journalctl -u {UNIT}` there.")
    groups = read_groups(statistics, models)
    if not groups:
        return _silent(f"{UNIT} reports no groups: see `journalctl -u {UNIT}` there.")
    problems = [
        f"Group {group['name']} ({group['model']}) is {group['state']}: {group['reason']}"
        for group in groups
        if group["reason"]
    ]
    if days is not None and days < WARN_DAYS:
        problems.append(f"Its certificate expires in {days} days." if days >= 0 else "Its certificate has expired.")
    if (folder / ADDRESS_CONFIG).exists() and not address_folder.exists():
        problems.append(
            f"{ADDRESS_UNIT} does not run, so this gateway cannot have the virtual address: start it with "
            f"`systemctl start {ADDRESS_UNIT}`."
        )
    return {
        "running": True,
        "healthy": not problems,
        "groups": groups,
        "queued": read_queues(statistics, models),
        "certificate_days": days,
        "outdated": outdated(int(worker[1]) if worker else 0, folder),
        "message": " ".join(problems) or f"All {len(groups)} groups take requests.",
    }


def _silent(message: str) -> dict[str, Any]:
    """Return the state of a gateway that does not answer."""
    return {
        "running": False,
        "healthy": False,
        "groups": [],
        "queued": {},
        "certificate_days": None,
        "outdated": "",
        "message": message,
    }


def _state(status: str) -> str:
    if status.startswith("UP"):
        return "in"
    if status.startswith("NOLB"):
        return "leaving"
    return "drained" if status.startswith(("DRAIN", "MAINT")) else "out"


def _reason(row: dict[str, str], state: str) -> str:
    """Return the reason why a group gets no requests, as the end of a sentence."""
    since = f"for {row['lastchg']} s"
    if state == "leaving":
        return f"its service is about to stop, or the host of a worker acknowledges nothing ({since})."
    if state == "drained":
        return f"somebody has taken it out of service ({since})."
    status = row["check_status"].lstrip("* ")
    if status == "L7STS":
        return f"its service does not serve yet ({since}); the playbook verify says what it waits for."
    if status in ("L4CON", "L4TOUT"):
        return f"its master does not answer ({since})."
    return f"HAProxy says {status or 'nothing'} ({since})."
