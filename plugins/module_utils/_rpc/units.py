# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of the role rpc_server and of its needs that are on this host. Private to this collection."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import pwd
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

UNIT_FOLDER = Path("/etc/systemd/system")
# StateDirectory of the units. Its files outlive a process, so each file names the start of its unit that wrote it.
STATE_FOLDER = Path("var/lib/llama_cpp")
# systemd's links to the ID of each unit's current start (unit_export_invocation_id), readable by all.
INVOCATIONS = Path("run/systemd/units")
# In the order in which they are stopped.
METRICS_UNITS = ("llama-rpc-metrics.timer", "llama-rpc-metrics.service")
# StateDirectory of the unit that cleans the cache; the worker cannot write there.
CACHE_STATE_FOLDER = Path("/var/lib/llama_rpc_cache")
# The folder of one worker is "rpc"; with several workers on the host, each has a folder named by its port.
CACHES_FOLDER = Path("/var/cache/llama_cpp")
MOST_STATUS_BYTES = 4096
_REPACK = {"enabled": bool, "kernels": bool, "weights": int, "mib": float, "of_weights": int, "of_mib": float}
_CACHE_USE = {"hits": int, "hit_bytes": int, "misses": int, "damaged": int}
_UNIT = re.compile(r"llama-rpc-server@([1-9]\d{0,4})\.service")
_TIMED_UNIT = re.compile(r"llama-rpc-(?:cache@([1-9]\d{0,4})|resume)\.(?:service|timer)")
_CACHE_FOLDER = re.compile(r"rpc|[1-9]\d{0,4}")
_MARK = re.compile(r"^Environment=LLAMA_CPP_CLUSTER_UNIT=(\S+)$", re.MULTILINE)
_CACHE = re.compile(r"^Environment=LLAMA_CACHE=(/.*)$", re.MULTILINE)
# Upstream names an entry by 16 hexadecimal digits, a hash of its content (ggml/src/ggml-rpc/ggml-rpc.cpp).
_ENTRY = re.compile(r"[0-9a-f]{16}")
_TIDIED = {"time": int, "max_bytes": int, "min_free_bytes": int, "corrupted": int, "evicted": int}


@dataclass(frozen=True)
class Unit:
    """A unit file. Without a digest it is not a regular file, such as the link of a masked unit.

    The port is 0 if the unit is for all workers of the host.
    """

    name: str
    port: int
    sha256: str | None
    # Whether the file has the owner and the mode of the role's units.
    of_root: bool = False
    # What its process gets as LLAMA_CPP_CLUSTER_UNIT.
    mark: str | None = None


def read_units(folder: Path = UNIT_FOLDER) -> list[Unit]:
    """Return the units of workers, by port."""
    return _read(folder, "llama-rpc-server@*.service", _UNIT)


def read_timed_units(folder: Path = UNIT_FOLDER) -> list[Unit]:
    """Return the services that look after workers, and their timers: those of the host first, then by port."""
    return _read(folder, "llama-rpc-*", _TIMED_UNIT)


def _read(folder: Path, pattern: str, named: re.Pattern[str]) -> list[Unit]:
    found = []
    for path in folder.glob(pattern):
        name = named.fullmatch(path.name)
        if name:
            status = path.lstat()
            port = int(name[1] or 0)
            if not stat.S_ISREG(status.st_mode):
                found.append(Unit(path.name, port, None))
                continue
            content = path.read_bytes()
            of_root = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o644, 0, 0)
            mark = _MARK.search(content.decode("utf-8", "replace"))
            digest = hashlib.sha256(content).hexdigest()
            found.append(Unit(path.name, port, digest, of_root, mark[1] if mark else None))
    return sorted(found, key=lambda unit: (unit.port, unit.name))


def read_metrics(folder: Path = UNIT_FOLDER) -> dict[str, Any] | None:
    """Return the folder with the link to the metrics for node_exporter, and the units that write them, or None."""
    units = [unit for unit in METRICS_UNITS if (folder / unit).is_file()]
    try:
        text = (folder / METRICS_UNITS[-1]).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"^X-TextfileFolder=(/\S+)$", text, re.MULTILINE)
    return {"folder": found.group(1), "units": units} if found else None


def read_release(prefix: str) -> dict[str, Any]:
    """Return the release in use, whether it has the programs, and whether an upgrade has not ended."""
    current = Path(prefix) / "current"
    try:
        name = Path(os.readlink(current)).name
    except OSError:  # not there, or no link
        name = None
    return {
        "id": name,
        "program": os.access(current / "bin/rpc-server", os.X_OK),
        "cache_program": os.access(current / "libexec/rpc-cache", os.X_OK),
        # The file that _release/journal.py writes. Only its existence matters here.
        "upgrade": (Path(prefix) / "upgrade.json").exists(),
    }


def read_repack(port: int, root: Path = Path("/")) -> dict[str, Any] | None:
    """Return a worker's report of the weights that it has repacked, None if there is no valid report."""
    return _read_said(port, root, "status", "repack", _REPACK)


def read_cache_use(port: int, root: Path = Path("/")) -> dict[str, Any] | None:
    """Return a worker's report of the hits and misses of its cache so far, None if there is no valid report."""
    return _read_said(port, root, "cache", "use", _CACHE_USE)


def _read_said(port: int, root: Path, name: str, key: str, kinds: Mapping[str, type]) -> dict[str, Any] | None:
    """Return an object of a file that a worker writes about itself, None if it is not valid.

    Strangers may talk to the worker that writes this file, so nothing but these values is taken from it. A file that an
    earlier process left does not count.
    """
    start = None
    with contextlib.suppress(OSError):
        start = os.readlink(root / INVOCATIONS / f"invocation:llama-rpc-server@{port}.service")
    said = _read_json(root / STATE_FOLDER / f"{name}-{port}.json")
    found = said.get(key) if start is not None and said.get("invocation") == start else None
    if not isinstance(found, dict) or not all(_is_a(found.get(name), kind) for name, kind in kinds.items()):
        return None
    return {name: kind(found[name]) for name, kind in kinds.items()}


def _read_json(path: Path) -> dict[str, Any]:
    """Return a small JSON object from an untrusted file, empty if the file holds anything else."""
    text = b""
    with contextlib.suppress(OSError):
        # Do not follow a link, and do not wait for a pipe.
        number = os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(number, "rb") as stream:
            if stat.S_ISREG(os.fstat(number).st_mode):
                text = stream.read(MOST_STATUS_BYTES + 1)
    try:
        said = json.loads(text) if len(text) <= MOST_STATUS_BYTES else None
    except (ValueError, RecursionError):
        said = None
    return said if isinstance(said, dict) else {}


def read_cache(port: int, units: Path = UNIT_FOLDER, state: Path = CACHE_STATE_FOLDER) -> dict[str, Any] | None:
    """Return the content of a worker's tensor cache and the last time it was cleaned, None if it has no cache.

    Strangers may make the worker write there, so entries are counted by name and size, and none is opened.
    """
    try:
        found = _CACHE.search((units / f"llama-rpc-server@{port}.service").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        found = None
    if found is None:
        return None
    folder = Path(found[1]) / "rpc"
    sizes: list[int] = []
    free = None
    with contextlib.suppress(OSError):
        number = os.open(str(folder), os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
        try:
            disk = os.fstatvfs(number)
            free = disk.f_bavail * disk.f_frsize
            sizes = _entry_sizes(number)
        finally:
            os.close(number)
    said = _read_tidied(port, state)
    kept_since = None
    with contextlib.suppress(OSError):
        kept_since = int((units / f"llama-rpc-cache@{port}.timer").lstat().st_mtime)
    return {
        "folder": str(folder),
        "entries": len(sizes),
        "bytes": sum(sizes),
        "free_bytes": free,
        "max_bytes": said.get("max_bytes") or None,
        "min_free_bytes": said.get("min_free_bytes"),
        "kept_since": kept_since,
        "tidied_at": said.get("time"),
        "corrupted": said.get("corrupted"),
        "evicted": said.get("evicted"),
    }


def read_caches(folder: Path = CACHES_FOLDER) -> list[str]:
    """Return the names of the tensor caches in this folder, also of those that no worker uses any more."""
    try:
        return sorted(path.name for path in folder.iterdir() if _CACHE_FOLDER.fullmatch(path.name))
    except OSError:
        return []


def _read_tidied(port: int, state: Path) -> dict[str, Any]:
    """Return the last report of the unit that cleans a cache, empty if there is no valid one."""
    said = _read_json(state / str(port) / "status.json")
    return said if all(_is_a(said.get(key), kind) for key, kind in _TIDIED.items()) else {}


def _entry_sizes(folder: int) -> list[int]:
    sizes = []
    with os.scandir(folder) as found:
        for entry in found:
            # Leave out an entry that is deleted meanwhile.
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if _ENTRY.fullmatch(entry.name) and stat.S_ISREG(status.st_mode):
                    sizes.append(status.st_size)
    return sizes


def _is_a(value: object, kind: type) -> bool:
    """Return whether a JSON value is a boolean, or a number from 0 to below 1e15, as `kind` demands."""
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    whole = isinstance(value, int) or (kind is float and isinstance(value, float) and math.isfinite(value))
    return whole and 0 <= value < 1e15  # type: ignore[operator]


def read_account(name: str) -> dict[str, Any] | None:
    """Return the user ID and the comment of an account from any source of the host's accounts, None if unknown."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return {"uid": found.pw_uid, "comment": found.pw_gecos}
