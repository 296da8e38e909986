# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: reads the beginning of a file at a URL, and fetches little more of it than is read."""

from __future__ import annotations

import contextlib
from io import RawIOBase
from typing import BinaryIO, Callable, TypeVar

from .web import (
    DownloadError,
    Limits,
    Progress,
    Response,
    TransientError,
    patiently,
    range_of,
    reading,
    request,
    shown,
)

T = TypeVar("T")
# So much is fetched first, and twice as much whenever that is not enough; of a server that ignores ranges more at once,
# because it begins anew each time.
FIRST_BYTES, WITHOUT_RANGES_BYTES = 256 << 10, 16 << 20
_CHUNK = 64 << 10


class Beginning(RawIOBase):
    """What has arrived of a file at a URL, as a stream; it is in `store`."""

    def __init__(self, url: str, limits: Limits, token: str | None, store: BinaryIO) -> None:
        super().__init__()
        self.url, self.limits, self.token, self.store = url, limits, token, store
        self.total: int | None = None  # the size of the file, if the server says it
        self.arrived = 0  # bytes, with those that came twice
        self._wanted = FIRST_BYTES
        self._have = self._at = self._farthest = 0
        self._validator: str | None = None
        self.lacks = False  # whether more was read than has arrived

    def use(self, read: Callable[[Beginning], T]) -> T:
        """Return what `read` makes of the stream; it reads again when more has arrived, if it lacked something."""
        while True:
            patiently(self.url, self.limits, self._fetch)
            self._at, self.lacks = 0, False
            try:
                return read(self)
            except Exception:
                if not self.lacks or self._is_whole:
                    raise
            self._wanted = 2 * max(self._wanted, self._have)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Continue at a position, counted from the beginning."""
        del whence
        self._at = offset
        return offset

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, or fewer if no more have arrived."""
        self.lacks = self.lacks or self._at + size > self._have
        self.store.seek(self._at)
        data = self.store.read(max(0, min(size, self._have - self._at)))
        self._at += len(data)
        return data

    @property
    def _is_whole(self) -> bool:
        return self.total is not None and self._have >= self.total

    def _forget(self) -> None:
        self.store.seek(0)
        self.store.truncate()
        self._have, self._validator = 0, None

    def _fetch(self, progress: Progress) -> None:
        """Receive what is missing of the wanted bytes."""
        if self._have >= self._wanted or self._is_whole:
            return
        headers = {"Range": f"bytes={self._have}-{self._wanted - 1}"}
        if self._have and self._validator:
            headers["If-Range"] = self._validator
        try:
            response = request(self.url, self.limits, self.token, headers=headers)
        except DownloadError as error:
            if error.status != 416:
                raise
            if self._have:
                self._forget()
                raise TransientError("it was changed on the server while it was read") from None
            self.total = 0
            return
        with contextlib.closing(response), reading(response, self.limits):
            self._receive(response, progress)
        if self._have < self._wanted and not self._is_whole:
            least = min(self._wanted, self.total or self._wanted)
            raise TransientError(f"the connection ended after {self._have} of {least} bytes")

    def _receive(self, response: Response, progress: Progress) -> None:
        found = range_of(response, self._have, self.url)
        if found.start != self._have:
            self._forget()
        if response.status != 206:
            self._wanted = max(self._wanted, WITHOUT_RANGES_BYTES)
        self.total, self._validator = found.total, found.validator
        self.store.seek(self._have)
        while self._have < self._wanted:
            self.limits.check(shown(self.url))
            chunk = response.read1(min(_CHUNK, self._wanted - self._have))
            if not chunk:
                break
            self.store.write(chunk)
            self._have += len(chunk)
            self.arrived += len(chunk)
            if self._have > self._farthest:
                self._farthest = self._have
                progress()
        if self.total is None and response.status != 206 and self._have < self._wanted:
            self.total = self._have  # the server did not say how long the file is
