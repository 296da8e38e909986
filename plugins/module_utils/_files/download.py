# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: downloads large files with a known digest, and resumes interrupted downloads. Knows nothing of Ansible."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import http.client
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterator
from urllib.parse import urlsplit

from .progress import DOWNLOADING, JOINING, VERIFYING, Tell, tell_nobody
from .record import FileError, claim, digest_of_file, open_no_link, put, require_space, wrong_digest
from .web import (
    DownloadError,
    Limits,
    Progress,
    Response,
    TransientError,
    explained,
    patiently,
    range_of,
    request,
    shown,
    size_of,
)

CHUNK = 1 << 20
LOCK_POLL_S = 0.2


def _part_of(path: Path) -> Path:
    return path.with_name(path.name + ".part")


@dataclass(frozen=True)
class Wanted:
    """One file to download; `digest` is its SHA-256 digest, or its git blob name (40 digits)."""

    url: str
    path: Path
    digest: str
    size_bytes: int | None = None

    @property
    def part(self) -> Path:
        """The path of the bytes that have arrived so far."""
        return _part_of(self.path)

    @property
    def note(self) -> Path:
        """The path of the note about the part, which a later run needs to resume the download."""
        return self.path.with_name(f".{self.path.name}.part.json")

    @property
    def sha256(self) -> str | None:
        """The digest if it is a SHA-256 digest, else None."""
        return self.digest if len(self.digest) == 64 else None


@dataclass(frozen=True)
class Whole:
    """A file to join from pieces; `sha256` is its digest if it is known."""

    path: Path
    sha256: str | None

    @property
    def part(self) -> Path:
        """The path of what is joined so far."""
        return _part_of(self.path)


def git_blob(path: Path, tell: Tell = tell_nobody) -> str:
    """Return the git blob name of a file's content."""
    return digest_of_file(path, hashlib.sha1(b"blob %d\0" % path.stat().st_size), tell)  # noqa: S324 (git's choice)


@contextlib.contextmanager
def _locked(part: Path, limits: Limits) -> Iterator[BinaryIO]:
    """Open a part and lock it against other runs."""
    while True:
        with open(str(part), "a+b", opener=open_no_link) as stream:
            while True:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    limits.check(f"{part}, which another run is fetching,")
                    time.sleep(LOCK_POLL_S)
            try:
                mine = os.path.samestat(os.fstat(stream.fileno()), part.stat())
            except FileNotFoundError:
                mine = False
            if mine:  # else another run has finished this download in the meantime
                yield stream
                return


class _Download:
    """The download of one file; `stream` is its part."""

    def __init__(self, wanted: Wanted, stream: BinaryIO, limits: Limits, token: str | None, tell: Tell) -> None:
        self.wanted = wanted
        self.tell = tell
        self.stream = stream
        self.limits = limits
        self.token = token
        self.total = wanted.size_bytes
        self.validator: str | None = None
        self.have = 0
        self.hash = hashlib.sha256()
        self.resumed = False
        self._take_up()

    def _take_up(self) -> None:
        """Resume from the part of an earlier run if it belongs to the same file."""
        try:
            note = json.loads(self.wanted.note.read_text(encoding="utf-8"))
            same = note["digest"] == self.wanted.digest
            self.validator, noted = note["validator"], note["total"]
        except (OSError, ValueError, KeyError, TypeError):
            same, self.validator, noted = False, None, None
        if not same:
            self.restart()
            return
        self.total = self.total or noted
        self.stream.seek(0)
        for chunk in iter(lambda: self.stream.read(CHUNK), b""):
            self.hash.update(chunk)
            self.have += len(chunk)
            self.tell(VERIFYING, self.have, self.total)
            self.limits.check(shown(self.wanted.url))
        self.resumed = self.have > 0

    def restart(self) -> None:
        """Discard the part and begin again."""
        self.stream.truncate(0)
        self.have, self.hash, self.validator = 0, hashlib.sha256(), None

    def _write_note(self) -> None:
        note = {"digest": self.wanted.digest, "validator": self.validator, "total": self.total}
        with open(str(self.wanted.note), "w", encoding="utf-8", opener=open_no_link) as stream:
            stream.write(json.dumps(note) + "\n")

    def attempt(self, progress: Progress) -> None:
        """Request and receive the missing bytes."""
        if self.total is not None and self.have > self.total:
            self.restart()
        if self.have and self.have == self.total:
            return
        headers = {"Range": f"bytes={self.have}-"} if self.have else {}
        if self.have and self.validator:
            headers["If-Range"] = self.validator
        try:
            response = request(self.wanted.url, self.limits, self.token, headers=headers)
        except DownloadError as error:
            if error.status != 416:
                raise
            self.restart()
            raise TransientError("the server has less of it than had arrived") from None
        with contextlib.closing(response):
            self._begin(response)
            self._receive(response, progress)
        if self.total is not None and self.have != self.total:
            raise TransientError(f"the connection ended after {self.have} of {self.total} bytes")

    def _begin(self, response: Response) -> None:
        """Read the headers; restart if the server sends the whole file; check for space before anything is written."""
        found = range_of(response, self.have, self.wanted.url)
        if response.status == 206:
            self.total = found.total or self.total
        else:
            self.restart()
            self.total = found.total or self.wanted.size_bytes
        expected = self.wanted.size_bytes
        if expected is not None and self.total != expected:
            raise FileError(
                f"{shown(self.wanted.url)} has {self.total} bytes on the server, and {expected} were expected: it is "
                "another version of the file, or the server cannot be trusted."
            )
        self.validator = found.validator
        if self.total is not None:
            require_space(self.wanted.path, self.total - self.have, shown(self.wanted.url))
        self._write_note()

    def _receive(self, response: Response, progress: Progress) -> None:
        try:
            # read1 returns the bytes that have arrived and does not wait for a whole chunk, so the limits are checked.
            for chunk in iter(lambda: response.read1(CHUNK), b""):
                if self.total is not None and self.have + len(chunk) > self.total:
                    raise FileError(
                        f"{shown(self.wanted.url)}: the server sends more than the file's {self.total} bytes, so it "
                        "cannot be trusted; what has arrived was removed."
                    )
                self.stream.write(chunk)
                self.hash.update(chunk)
                self.have += len(chunk)
                progress()
                self.tell(DOWNLOADING, self.have, self.total)
                self.limits.check(shown(self.wanted.url))
        except (http.client.HTTPException, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
                if self.total is not None or error.errno == errno.EIO:
                    raise
                # Nobody knows whether it would ever end, so what has arrived must not stay and fill the disk.
                os.ftruncate(self.stream.fileno(), 0)
                raise FileError(
                    f"{shown(self.wanted.url)} does not fit ({error.strerror}), and its server does not say how large "
                    f"it is; what had arrived was removed. Make more room for {self.wanted.path.parent}, or use a "
                    "server that says it."
                ) from None
            raise explained(error, urlsplit(response.url).hostname or "", self.limits.stall_s) from None
        finally:
            self.stream.flush()

    def digest(self) -> str:
        """Return the digest of the bytes that have arrived, of the same kind as the wanted digest."""
        return self.hash.hexdigest() if self.wanted.sha256 else git_blob(self.wanted.part, self.tell)

    def run(self) -> None:
        """Fetch and verify the file; fetch all of it again if a resumed part is wrong. Raise FileError."""
        patiently(self.wanted.url, self.limits, self.attempt)
        if self.digest() != self.wanted.digest and self.resumed:
            # The bytes of the earlier run may be damaged, or belong to another version.
            self.resumed = False
            self.restart()
            patiently(self.wanted.url, self.limits, self.attempt)
        found = self.digest()
        if found != self.wanted.digest:
            kind = "SHA-256 digest" if self.wanted.sha256 else "git object name"
            raise FileError(wrong_digest(shown(self.wanted.url), found, self.wanted.digest, kind))


def _discard(wanted: Wanted) -> None:
    for path in (wanted.part, wanted.note):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Create a folder. On an exception remove the new folders that are still empty."""
    absent = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except Exception:
        for folder in absent:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def fetch(
    wanted: Wanted,
    origin: dict[str, Any],
    limits: Limits,
    token: str | None = None,
    check: Callable[[Path], None] | None = None,
    tell: Tell = tell_nobody,
) -> bool:
    """Fetch one file unless it is there, and return whether anything was changed.

    Raises DownloadError, FileError, and OSError if the disk refuses. `check` gets the path of the downloaded file, and
    raises FileError if the file must not be kept, even with the right digest.
    """
    with _folder(wanted.path.parent), _locked(wanted.part, limits) as stream:
        done = False
        try:
            needed, renewed = claim(wanted.path, wanted.sha256, origin, write=True, tell=tell)
            if not needed:
                done = True
                return renewed
            _Download(wanted, stream, limits, token, tell).run()
            if check:
                check(wanted.part)
            os.fchmod(stream.fileno(), 0o644)
            put(wanted.part, wanted.path, wanted.sha256, origin)
            done = True
        except FileError:
            done = True
            raise
        finally:
            # Keep the part of an interrupted download for the next run.
            if done or wanted.part.stat().st_size == 0:
                _discard(wanted)
    return True


def join(pieces: list[Path], stream: BinaryIO, tell: Tell = tell_nobody) -> str:
    """Write the pieces to a stream, one after another, and return the SHA-256 digest of the whole."""
    total, done = sum(piece.stat().st_size for piece in pieces), 0
    found = hashlib.sha256()
    for piece in pieces:
        with open(str(piece), "rb", opener=open_no_link) as source:
            for chunk in iter(lambda: source.read(CHUNK), b""):
                stream.write(chunk)
                found.update(chunk)
                done += len(chunk)
                tell(JOINING, done, total)
    stream.flush()
    return found.hexdigest()


def make(
    whole: Whole,
    pieces: list[Wanted],
    origin: dict[str, Any],
    limits: Limits,
    bring: Callable[[], object],
    check: Callable[[Path], None],
    tell: Tell = tell_nobody,
) -> bool:
    """Join a file from the pieces that `bring` fetches, unless it is there; return whether anything was changed.

    The pieces stay. What a killed run has joined is joined again. `check` and errors are as those of `fetch`.
    """

    def joining(what: str, done: int, total: int | None) -> None:
        tell(what, done, total)
        limits.check(f"{whole.path}")

    with _folder(whole.path.parent), _locked(whole.part, limits) as stream:
        try:
            needed, renewed = claim(whole.path, whole.sha256, origin, write=True, tell=tell)
            if not needed:
                return renewed
            bring()
            stream.truncate(0)
            found = join([piece.path for piece in pieces], stream, joining)
            if whole.sha256 and found != whole.sha256:
                raise FileError(
                    f"{whole.path}, joined from {len(pieces)} pieces, has the SHA-256 digest {found}, but "
                    f"{whole.sha256} was expected; the pieces are kept: give the digest of the whole file, if you "
                    "trust what was found."
                )
            check(whole.part)
            os.fchmod(stream.fileno(), 0o644)
            put(whole.part, whole.path, found, origin)
        finally:
            with contextlib.suppress(FileNotFoundError):
                whole.part.unlink()
    return True


def _size_of_part(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def plan(
    files: list[Wanted],
    origin: dict[str, Any],
    limits: Limits,
    token: str | None,
    tell: Tell = tell_nobody,
    whole: Whole | None = None,
) -> dict[Wanted, int | None]:
    """Return the files that have to be fetched, with their sizes, if known.

    Raises FileError if there is no room for all of them together, and for the whole that is joined from them.
    """
    missing = [file for file in files if claim(file.path, file.sha256, origin, write=False, tell=tell)[0]]
    sizes = {file: file.size_bytes or size_of(file.url, limits, token) for file in missing}
    room = sum(max(0, (size or 0) - _size_of_part(file.part)) for file, size in sizes.items())
    if whole:
        there = sum(file.path.stat().st_size for file in files if file not in sizes)
        room += there + sum(size or 0 for size in sizes.values()) - _size_of_part(whole.part)
        require_space(whole.path, room, f"{whole.path}, joined from pieces,")
    elif missing:
        require_space(missing[0].path, room, shown(missing[0].url))
    return sizes
