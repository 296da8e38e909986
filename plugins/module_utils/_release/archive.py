# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: examine a tar archive of known digest and unpack it, whole or not at all. Knows nothing of Ansible.

It does not rely on `tarfile`'s own extraction filters: Python 3.8 to 3.11 have them only in late patch releases.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, NoReturn, Sequence

from .._files.digest import digest_of, wrong_digest
from .source_patch import Patch, PatchError, apply, touched

try:
    from lzma import LZMAError
except ImportError:  # a Python without xz: tarfile then says that it cannot read such an archive
    LZMAError = EOFError  # type: ignore[misc,assignment]

MARKER = ".verified_archive.json"
MAX_LINKS = 40  # as the kernel does (path_resolution(7))
CHUNK = 1 << 20

FILE = "file"
FOLDER = "folder"
SYMLINK = "symbolic link"
HARDLINK = "hard link"


# Raised by tarfile and its decompressors for an incomplete or damaged archive.
BROKEN = (tarfile.TarError, zlib.error, LZMAError, EOFError, OSError, ValueError)


class ArchiveError(Exception):
    """The archive or its destination cannot be used; the message is one sentence."""


@dataclass(frozen=True)
class Member:
    """One member of an archive; `path` is normalised and relative to the root, `target` is as in the archive."""

    path: tuple[str, ...]
    kind: str
    name: str
    target: str = ""


def _refuse(name: str, why: str) -> NoReturn:
    raise ArchiveError(f"the archive is refused, nothing was unpacked: its member {name!r} {why}.")


def _inner_path(name: str) -> tuple[str, ...]:
    """Return the parts of a member's name; refuse a name that leads out of the root."""
    if name.startswith("/"):
        _refuse(name, "has an absolute path")
    parts = tuple(part for part in name.split("/") if part not in {"", "."})
    if ".." in parts:
        _refuse(name, "has a path that leads to a parent folder")
    return parts


def _resolve(member: Member, links: dict[tuple[str, ...], str]) -> None:
    """Follow a symbolic link as the kernel would after unpacking; refuse it if it leaves the root."""
    done: list[str] = []
    todo = list(member.path)
    followed = 0
    while todo:
        part = todo.pop(0)
        if part in {"", "."}:
            continue
        if part == "..":
            if not done:
                _refuse(member.name, f"is a link that leads out of the root, to {member.target!r}")
            done.pop()
            continue
        done.append(part)
        target = links.get(tuple(done))
        if target is None:
            continue
        followed += 1
        if followed > MAX_LINKS:
            _refuse(member.name, "is a link that leads back to itself")
        if target.startswith("/"):
            _refuse(member.name, f"is a link that leads out of the root, to {target!r}")
        done.pop()
        todo = [*target.split("/"), *todo]


def check(members: Iterable[Member]) -> None:
    """Raise ArchiveError, naming the member, for the first member that could affect anything outside the root."""
    members = list(members)
    kinds: dict[tuple[str, ...], str] = {}
    for member in members:
        if kinds.get(member.path, FOLDER) != FOLDER or (member.path in kinds and member.kind != FOLDER):
            _refuse(member.name, "appears twice")
        if member.kind == HARDLINK:
            if member.target.startswith("/") or ".." in member.target.split("/"):
                _refuse(member.name, f"is a hard link that leads out of the root, to {member.target!r}")
            if kinds.get(_inner_path(member.target)) != FILE:
                _refuse(member.name, f"is a hard link to {member.target!r}, which is not a file that comes before it")
        kinds[member.path] = member.kind
    links = {member.path: member.target for member in members if member.kind == SYMLINK}
    for member in members:
        for depth in range(1, len(member.path)):
            kind = kinds.get(member.path[:depth], FOLDER)
            if kind != FOLDER:
                _refuse(member.name, f"lies beneath a {kind}, {'/'.join(member.path[:depth])!r}")
        if member.kind == SYMLINK:
            _resolve(member, links)


def _kind(info: tarfile.TarInfo) -> str:
    if info.isdir():
        return FOLDER
    if info.issym():
        return SYMLINK
    if info.islnk():
        return HARDLINK
    if info.isreg():
        return FILE
    _refuse(info.name, "is neither a file, a folder nor a link (a device, a pipe or the like)")


def _examine(tar: tarfile.TarFile, root: tuple[str, ...]) -> list[tuple[tarfile.TarInfo, Member]]:
    """Check every member; return those below `root` with their paths relative to it."""
    everything: list[tuple[tarfile.TarInfo, Member]] = []
    for info in tar:
        path = _inner_path(info.name)
        kind = _kind(info)
        if path:
            everything.append((info, Member(path, kind, info.name, info.linkname)))
        elif kind != FOLDER:
            _refuse(info.name, "is in the place of the root")
    check(member for _info, member in everything)
    if not root:
        return everything
    wanted: list[tuple[tarfile.TarInfo, Member]] = []
    for info, member in everything:
        if member.path[: len(root)] != root or (member.path == root and member.kind == FOLDER):
            continue
        target = member.target
        if member.kind == HARDLINK:
            place = _inner_path(target)
            if place[: len(root)] != root:
                _refuse(member.name, f"is a hard link that leads out of the root, to {target!r}")
            target = "/".join(place[len(root) :])
        wanted.append((info, Member(member.path[len(root) :], member.kind, member.name, target)))
    if not wanted or not wanted[0][1].path:
        raise ArchiveError(f"the archive holds no folder {'/'.join(root)!r}; nothing was unpacked.")
    check(member for _info, member in wanted)
    return wanted


def _write(tar: tarfile.TarFile, members: list[tuple[tarfile.TarInfo, Member]], folder: Path) -> None:
    """Write checked members; owners and special mode bits are dropped, times and the executable bit kept."""
    for info, member in members:
        path = folder.joinpath(*member.path)
        if member.kind == FOLDER:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if member.kind == SYMLINK:
            path.symlink_to(member.target)
        elif member.kind == HARDLINK:
            os.link(folder.joinpath(*_inner_path(member.target)), path, follow_symlinks=False)
        else:
            source = tar.extractfile(info)
            if source is None:
                _refuse(member.name, "cannot be read")
            # "x" fails if the path exists, so nothing is written through an existing link.
            with source, path.open("xb") as sink:
                shutil.copyfileobj(source, sink, CHUNK)
            path.chmod(0o755 if info.mode & 0o100 else 0o644)
            os.utime(path, (info.mtime, info.mtime))


def _patch(
    tar: tarfile.TarFile, members: list[tuple[tarfile.TarInfo, Member]], patches: Sequence[Patch]
) -> dict[str, bytes | None]:
    """Return the content of each patched file by its path, None for a deleted file. Raises PatchError."""
    names = touched(patches)
    kinds = {"/".join(member.path): member.kind for _info, member in members}
    for _info, member in members:  # some archives do not name their folders
        for depth in range(1, len(member.path)):
            kinds.setdefault("/".join(member.path[:depth]), FOLDER)
    before: dict[str, bytes] = {}
    for info, member in members:  # in archive order, because a compressed archive is read from its beginning
        path = "/".join(member.path)
        if path in names and member.kind == FILE:
            source = tar.extractfile(info)
            before[path] = source.read() if source else b""
    for path, name in names.items():
        parts = path.split("/")
        beneath = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
        odd = [part for part in beneath if kinds.get(part, FOLDER) != FOLDER]
        odd += [path] if kinds.get(path, FILE) != FILE else []
        if odd:
            raise PatchError(
                f"The patch {name} is refused: it changes {path}, and {odd[0]} is a {kinds[odd[0]]} there."
            )
    contents = apply(patches, before.get)
    files = {path for path, content in contents.items() if content is not None}
    for path in sorted(files):
        above = files & {path[: end.start()] for end in re.finditer("/", path)}
        if above:
            raise PatchError(f"The patch {names[path]} is refused: it adds {path}, and {above.pop()} is a file then.")
    return contents


def _rewrite(folder: Path, contents: dict[str, bytes | None]) -> None:
    """Write, create or delete patched files in a folder; none of their paths leads through a link."""
    for name, content in contents.items():
        path = folder / name
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        if path.exists():
            path.unlink()  # not overwritten, so that a hard link to it elsewhere in the archive keeps its content
        if content is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(mode)


class Archive:
    """An open archive. Its digest is verified before its members are examined."""

    def __init__(self, src: str, sha256: str, subdir: str = "", patches: Sequence[Patch] = ()) -> None:
        """Open and check the archive. Raises ArchiveError, or PatchError if a patch does not apply."""
        self.src = src
        self.sha256 = sha256.lower()
        self.root = _inner_path(subdir)
        self._stamp: dict[str, object] = {"sha256": self.sha256, "subdir": "/".join(self.root)}
        if patches:
            self._stamp["patches"] = [patch.sha256 for patch in patches]
        try:
            # The same open file is hashed, examined and unpacked, so nobody can exchange it in between.
            self._stream = Path(src).open("rb")  # noqa: SIM115
        except OSError as error:
            raise ArchiveError(f"the archive {src} cannot be read: {error.strerror}.") from None
        try:
            self._members = self._open()
            self._patched = self._read(patches)
        except BaseException:
            self._stream.close()
            raise

    def _open(self) -> list[tuple[tarfile.TarInfo, Member]]:
        found = digest_of(self._stream)
        if found != self.sha256:
            raise ArchiveError(wrong_digest(f"the archive {self.src}", found, self.sha256))
        self._stream.seek(0)
        try:
            self._tar = tarfile.open(fileobj=self._stream, mode="r:*")  # noqa: SIM115
            return _examine(self._tar, self.root)
        except BROKEN as error:
            raise ArchiveError(
                f"{self.src} is not a whole archive (tar, plain or with gzip, bzip2 or xz); nothing was "
                f"unpacked: {error}."
            ) from None

    def _read(self, patches: Sequence[Patch]) -> dict[str, bytes | None]:
        try:
            return _patch(self._tar, self._members, patches) if patches else {}
        except BROKEN as error:
            raise ArchiveError(f"{self.src} is not a whole archive; nothing was unpacked: {error}.") from None

    def __enter__(self) -> Archive:  # noqa: PYI034 (Python 3.8 has no Self)
        return self

    def __exit__(self, *_details: object) -> None:
        self._stream.close()

    @property
    def patched(self) -> list[str]:
        """The files that the patches change, add or delete, sorted."""
        return sorted(self._patched)

    def is_unpacked_at(self, dest: str) -> bool:
        """Return whether this archive is already unpacked there. Raises ArchiveError for a folder of other origin."""
        folder = Path(dest)
        if not folder.exists() and not folder.is_symlink():
            return False
        try:
            stamp = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
                return False
            raise ArchiveError(
                f"{dest} already exists and was not unpacked by this module; remove it or choose another place."
            ) from None
        return bool(stamp == self._stamp)

    def unpack(self, dest: str) -> None:
        """Unpack beside `dest` and rename the result into place, so that `dest` is never incomplete."""
        folder = Path(dest)
        temporary = Path()
        umask = os.umask(0o022)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=str(folder.parent)))
            fresh = temporary / "new"
            fresh.mkdir()
            _write(self._tar, self._members, fresh)
            _rewrite(fresh, self._patched)
            with (fresh / MARKER).open("x", encoding="utf-8") as marker:
                json.dump(self._stamp, marker)
            if folder.exists():
                folder.rename(temporary / "old")
            fresh.rename(folder)
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise ArchiveError(
                    f"the disk that holds {folder.parent} is full; nothing was unpacked: make room and run this again."
                ) from None
            raise ArchiveError(f"{self.src} cannot be unpacked to {dest}: {error.strerror or error}.") from None
        except BROKEN as error:
            raise ArchiveError(f"{self.src} is not a whole archive; nothing was unpacked: {error}.") from None
        finally:
            os.umask(umask)
            if temporary.name:
                shutil.rmtree(str(temporary), ignore_errors=True)
