# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: reads the beginning of a file at a URL, and fetches little more of it than is read."""

from __future__ import annotations

import contextlib
from io import RawIOBase
from typing import BinaryIO, Callable, NoReturn, TypeVar

from .web import DownloadError, Limits, Progress, Response, TransientError, patiently, range_of, reading, request, shown

T = TypeVar("T")
# The first range, and the longest one: each is twice as long as the one before.
FIRST_BYTES, MOST_BYTES = 256 << 10, 4 << 20
_CHUNK = 64 << 10


class Beginning(RawIOBase):
    """The beginning of a file at a URL, as a stream that asks for the next range when all before it is read.

    If the server ignores ranges, it sends the whole file, and the stream ends the connection when no more is read.
    What has arrived is in `store`. After an interruption, the stream continues with the bytes that are missing.
    """

    def __init__(self, url: str, limits: Limits, token: str | None, store: BinaryIO) -> None:
        super().__init__()
        self.url, self.limits, self.token, self.store = url, limits, token, store
        self.total: int | None = None  # the size of the file, if the server says it
        self.arrived = 0  # bytes, with those that came twice
        self._have = self._at = self._farthest = 0
        self._start = 0  # of what the response has
        self._length = FIRST_BYTES
        self._validator: str | None = None
        self._ranges = True
        self._response: Response | None = None
        self._end: int | None = None  # where the response ends, if it says so
        self._progress: Progress = lambda: None

    def use(self, read: Callable[[Beginning], T]) -> T:
        """Return what `read` makes of the stream; after an interruption, it reads again what has arrived.

        Raises DownloadError, and whatever `read` raises.
        """

        def attempt(progress: Progress) -> T:
            self._progress, self._at = progress, 0
            if not self._ranges:
                self._forget()
            try:
                if not self._have:
                    self._ask()
                return read(self)
            finally:
                self._hang_up()

        return patiently(self.url, self.limits, attempt)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Continue at a position, counted from the beginning."""
        del whence
        self._at = offset
        return offset

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes; fewer only at the end of the file."""
        while self._have < self._at + size and self._more():
            pass
        self.store.seek(self._at)
        data = self.store.read(max(0, min(size, self._have - self._at)))
        self._at += len(data)
        return data

    def _forget(self) -> None:
        self.store.seek(0)
        self.store.truncate()
        self._have, self._validator, self._length = 0, None, FIRST_BYTES

    def _hang_up(self) -> None:
        if self._response:
            with contextlib.suppress(OSError):
                self._response.close()
        self._response = None

    def _ask(self) -> None:
        """Request the next range."""
        headers = {"Range": f"bytes={self._have}-{self._have + self._length - 1}"}
        if self._have and self._validator:
            headers["If-Range"] = self._validator
        try:
            response = request(self.url, self.limits, self.token, headers=headers)
        except DownloadError as error:
            if error.status != 416:
                raise
            if self.total is not None:
                self._changed()
            self.total = self._have
            return
        self._response = response
        found = range_of(response, self._have, self.url)
        self._ranges = response.status == 206
        if found.start != self._have:
            self._changed()
        length = response.headers.get("Content-Length", "")
        self._end = self._have + int(length) if length.isdigit() else None
        self.total, self._validator = self.total if found.total is None else found.total, found.validator
        self._start = self._have

    def _changed(self) -> NoReturn:
        self._forget()
        raise TransientError("it was changed on the server while it was read")

    def _more(self) -> bool:
        """Receive some bytes, and return whether there can be more."""
        if self.total is not None and self._have >= self.total:
            return False
        self.limits.check(shown(self.url))
        if self._response is None:
            self._ask()
        if self._response is None:
            return False
        with reading(self._response, self.limits):
            chunk = self._response.read1(_CHUNK)
        if chunk:
            self.store.seek(self._have)
            self.store.write(chunk)
            self._have += len(chunk)
            self.arrived += len(chunk)
            if self._have > self._farthest:
                self._farthest = self._have
                self._progress()
            return True
        if self._end is not None and self._have < self._end:
            raise TransientError(f"the connection ended after {self._have} of {self._end} bytes")
        if not self._ranges:
            self.total = self._have  # the server did not say how long the file is
        elif self._have == self._start:
            raise TransientError("the server sent nothing")
        self._length = min(2 * self._length, MOST_BYTES)
        self._hang_up()
        return True
