# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What of the role rpc_server, and of what it needs, is on this host. Private to this collection."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import pwd
import re
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

UNIT_FOLDER = Path("/etc/systemd/system")
# RuntimeDirectory of the unit is a folder here, which goes with the process.
RUN_FOLDER = Path("/run")
MOST_STATUS_BYTES = 4096
_REPACK = {"enabled": bool, "kernels": bool, "weights": int, "mib": float, "of_weights": int, "of_mib": float}
_UNIT = re.compile(r"llama-rpc-server@([1-9]\d{0,4})\.service")


@dataclass(frozen=True)
class Unit:
    """A unit file; without a digest it is something else, such as the link of a masked unit."""

    name: str
    port: int
    sha256: str | None
    mode: str
    uid: int
    gid: int

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def read_units(folder: Path = UNIT_FOLDER) -> list[Unit]:
    """Return the units of workers, by port."""
    found = []
    for path in folder.glob("llama-rpc-server@*.service"):
        name = _UNIT.fullmatch(path.name)
        if name:
            status = path.lstat()
            regular = stat.S_ISREG(status.st_mode)
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if regular else None
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            found.append(Unit(path.name, int(name[1]), digest, mode, status.st_uid, status.st_gid))
    return sorted(found, key=lambda unit: unit.port)


def read_release(prefix: str) -> dict[str, Any]:
    """Return which release is in use, and whether it has the worker's program."""
    current = Path(prefix) / "current"
    try:
        name = Path(os.readlink(current)).name
    except OSError:  # not there, or no link
        name = None
    return {"id": name, "program": os.access(current / "bin/rpc-server", os.X_OK)}


def read_repack(port: int, folder: Path = RUN_FOLDER) -> dict[str, Any] | None:
    """Return what the worker of a unit says of weights that it has repacked; None if it says nothing, or nonsense.

    The worker, which strangers may talk to, writes that file: it is taken for nothing but six values.
    """
    text = b""
    with contextlib.suppress(OSError):
        # Neither a link is followed nor a pipe waited for.
        number = os.open(
            str(folder / f"llama-rpc-server-{port}/status.json"), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        )
        with os.fdopen(number, "rb") as stream:
            if stat.S_ISREG(os.fstat(number).st_mode):
                text = stream.read(MOST_STATUS_BYTES + 1)
    try:
        said = json.loads(text) if len(text) <= MOST_STATUS_BYTES else None
    except (ValueError, RecursionError):
        said = None
    repack = said.get("repack") if isinstance(said, dict) else None
    if not isinstance(repack, dict) or not all(_is_a(repack.get(key), kind) for key, kind in _REPACK.items()):
        return None
    return {key: kind(repack[key]) for key, kind in _REPACK.items()}


def _is_a(value: object, kind: type) -> bool:
    """Tell whether a value of JSON is a truth value, or a number that such a thing can have."""
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    whole = isinstance(value, int) or (kind is float and isinstance(value, float) and math.isfinite(value))
    return whole and 0 <= value < 1e12  # type: ignore[operator]


def read_account(name: str) -> dict[str, Any] | None:
    """Return what is said of an account, wherever the host's accounts are kept."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return {"uid": found.pw_uid, "comment": found.pw_gecos}
