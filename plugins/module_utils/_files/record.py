# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: puts large files under their names, whole and recorded, so that they need not be digested again.

The record of `model.gguf` is `.model.gguf.llama_cpp.json` beside it: it goes where the folder goes, needs no rights
elsewhere, and who finds the file finds it too. It fits as long as size, time of change and inode are as they were.
Knows nothing of Ansible.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .digest import digest_of_file

GIB = 1 << 30


class FileError(Exception):
    """One sentence: why a file cannot be put in its place."""


@dataclass(frozen=True)
class Record:
    """What was known of a file when it was put in its place."""

    size_bytes: int
    mtime_ns: int
    inode: int
    sha256: str | None
    # Where it came from, in the words of who put it there; compared as a whole.
    origin: dict[str, Any]
    # It was there already, and found to be what was wanted: it is not ours to remove.
    adopted: bool = False
    # What made it, for who reads the record.
    made_with: str | None = None


def record_path(path: Path) -> Path:
    """Return where the record of a file is."""
    return path.with_name(f".{path.name}.llama_cpp.json")


def recorded(path: Path) -> Record | None:
    """Return the record of a file, whether it still fits or not."""
    try:
        return Record(**json.loads(record_path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def known(path: Path) -> Record | None:
    """Return the record of a file if that is the file it was written for."""
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
    """Open a file as `open` does, but none that a link stands for: others may write to the folder of a model."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def _write_record(
    path: Path, of: Path, sha256: str | None, origin: dict[str, Any], adopted: bool, made_with: str | None
) -> None:
    """Write the record of what is at `of` and is, or is about to be, at `path`."""
    found = of.stat()
    record = Record(found.st_size, found.st_mtime_ns, found.st_ino, sha256, origin, adopted, made_with)
    place = record_path(path)
    temporary = place.with_name(place.name + ".new")
    with open(str(temporary), "w", encoding="utf-8", opener=open_no_link) as stream:
        stream.write(json.dumps(asdict(record), sort_keys=True) + "\n")
    temporary.replace(place)


def sync_folder(folder: Path) -> None:
    """See to it that the names in a folder outlast a power cut."""
    number = os.open(str(folder), os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # not every file system can
            os.fsync(number)
    finally:
        os.close(number)


def put(staged: Path, path: Path, sha256: str | None, origin: dict[str, Any], made_with: str | None = None) -> None:
    """Give a whole and verified file on the same file system its name."""
    with staged.open("rb") as stream:
        os.fsync(stream.fileno())
    # The record first: it fits only once the file is there, and a file without one would be taken for somebody else's.
    _write_record(path, staged, sha256, origin, adopted=False, made_with=made_with)
    staged.replace(path)
    sync_folder(path.parent)


def claim(path: Path, sha256: str | None, origin: dict[str, Any], *, write: bool) -> tuple[bool, bool]:
    """Say whether a file has to be brought, and whether the record of the one that is there was renewed.

    What is there and is no file of ours is taken over if it is what is wanted, and is otherwise refused: FileError.
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
    found = digest_of_file(path) if sha256 and not fits else None
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
    """Return the files of a folder that have a record, there or not."""
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
