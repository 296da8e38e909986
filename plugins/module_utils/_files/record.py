# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: gives complete large files their names and records them, so that they need not be hashed again.

The record of `model.gguf` is `.model.gguf.llama_cpp.json` beside it: it moves with the folder, needs no rights
elsewhere, and is found together with the file. It fits as long as the file's size, modification time and inode stay
the same. This module knows nothing of Ansible.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .progress import VERIFYING, Tell, tell_nobody

GIB = 1 << 30
_CHUNK = 1 << 20


class FileError(Exception):
    """An error whose message is one sentence: why a file cannot be put in its place."""


def digest_of_file(path: Path, found: Any = None, tell: Tell = tell_nobody) -> str:  # noqa: ANN401
    total, done = path.stat().st_size, 0
    found = hashlib.sha256() if found is None else found
    with path.open("rb") as stream:
        for chunk in iter(lambda: stream.read(_CHUNK), b""):
            found.update(chunk)
            done += len(chunk)
            tell(VERIFYING, done, total)
    return str(found.hexdigest())


def wrong_digest(what: str, found: str | None, expected: str | None, kind: str = "SHA-256 digest") -> str:
    """Return the message that a digest differs from the expected one."""
    return (
        f"{what} has the {kind} {found}, but {expected} was expected; nothing was kept: "
        "correct the expected digest if you trust what was found, or find out who replaced it."
    )


@dataclass(frozen=True)
class Record:
    """The facts about a file when it was put in its place."""

    size_bytes: int
    mtime_ns: int
    inode: int
    sha256: str | None
    # Where the file came from. The caller chooses the keys; `claim` compares the value as a whole.
    origin: dict[str, Any]
    # The file was there already and had the wanted content: the collection must not remove it.
    adopted: bool = False
    # What made it, for who reads the record.
    made_with: str | None = None


def record_path(path: Path) -> Path:
    """Return the path of a file's record."""
    return path.with_name(f".{path.name}.llama_cpp.json")


def recorded(path: Path) -> Record | None:
    """Return the record of a file, even if it no longer fits."""
    try:
        return Record(**json.loads(record_path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def known(path: Path) -> Record | None:
    """Return the record of a file if it still fits the file."""
    record = recorded(path)
    try:
        found = path.stat()
    except OSError:
        return None
    fits = record and (record.size_bytes, record.mtime_ns, record.inode) == (
        found.st_size,
        found.st_mtime_ns,
        found.st_ino,
    )
    return record if fits else None


def open_no_link(path: str, flags: int) -> int:
    """Open a file, but refuse a symbolic link, because other users may write to a model's folder."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def _write_record(
    path: Path, of: Path, sha256: str | None, origin: dict[str, Any], adopted: bool, made_with: str | None
) -> None:
    """Write the record for `path` from the file `of`, which is at `path` or will be moved there."""
    found = of.stat()
    record = Record(found.st_size, found.st_mtime_ns, found.st_ino, sha256, origin, adopted, made_with)
    place = record_path(path)
    temporary = place.with_name(place.name + ".new")
    with open(str(temporary), "w", encoding="utf-8", opener=open_no_link) as stream:
        stream.write(json.dumps(asdict(record), sort_keys=True) + "\n")
    temporary.replace(place)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that the names in it survive a power cut."""
    number = os.open(str(folder), os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # not every file system can
            os.fsync(number)
    finally:
        os.close(number)


def put(staged: Path, path: Path, sha256: str | None, origin: dict[str, Any], made_with: str | None = None) -> None:
    """Record a complete and verified file, and move it to `path` on the same file system."""
    with staged.open("rb") as stream:
        os.fsync(stream.fileno())
    # Write the record first: it fits only once the file is there, and a file without a record would count as foreign.
    _write_record(path, staged, sha256, origin, adopted=False, made_with=made_with)
    staged.replace(path)
    sync_folder(path.parent)


def claim(
    path: Path, sha256: str | None, origin: dict[str, Any], *, write: bool, tell: Tell = tell_nobody
) -> tuple[bool, bool]:
    """Return whether a file has to be brought, and whether the record of an existing file changes.

    A file that this collection did not put there is adopted if it has the wanted content. Otherwise this raises
    FileError. Nothing changes without `write`.
    """
    if path.is_dir():
        raise FileError(f"{path} is a folder: name the file in it.")
    if not path.exists():
        return True, False
    ours, fits = recorded(path), known(path)
    if fits and (fits.sha256 == sha256 if sha256 else fits.origin == origin):
        if fits.origin != origin and write:
            _write_record(path, path, fits.sha256, origin, fits.adopted, fits.made_with)
        return False, fits.origin != origin
    found = digest_of_file(path, tell=tell) if sha256 and not fits else None
    if found is not None and found == sha256:
        if write:
            _write_record(path, path, found, origin, ours.adopted if ours else True, None)
        return False, True
    if ours and not ours.adopted:
        return True, False
    is_now = "no record says what it is"
    if sha256:
        is_now = f"its SHA-256 digest is {found or (fits and fits.sha256)}, and {sha256} is wanted"
    raise FileError(
        f"{path} already exists and was not put there by this collection; {is_now}: "
        "move it away, or choose another path."
    )


def records_in(folder: Path) -> dict[Path, Record]:
    """Return the records in a folder by the path of their file, even if that file is missing."""
    found = {}
    for place in sorted(folder.glob(".*.llama_cpp.json")) if folder.is_dir() else []:
        path = folder / place.name[1 : -len(".llama_cpp.json")]
        record = recorded(path)
        if record:
            found[path] = record
    return found


def _mount_point(folder: Path) -> Path:
    while not os.path.ismount(folder):
        folder = folder.parent
    return folder


def require_space(path: Path, needed_bytes: int, what: str) -> None:
    """Raise FileError if the file system that holds, or will hold, `path` has less room than is needed."""
    folder = next(folder for folder in path.parents if folder.exists()).resolve()
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if needed_bytes > free:
        raise FileError(
            f"{what} needs {needed_bytes / GIB:.2f} GiB on {_mount_point(folder)}, "
            f"where {free / GIB:.2f} GiB are free: "
            f"{(needed_bytes - free) / GIB:.2f} GiB are missing; nothing was changed."
        )


def reason(error: OSError, path: Path) -> str:
    """Return one sentence for an error of the operating system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the file system that holds {path.parent} is full: make room and run this again."
    return f"{error.filename or path} cannot be used: {error.strerror or error}."
