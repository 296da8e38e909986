# SPDX-License-Identifier: GPL-3.0-or-later
"""A slow connection to a worker."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from support.harness import HANG_S, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

# All tokens together take half a minute. A progress line comes meanwhile, and then the other tokens take no time.
MESSAGE_S, TOKENS = 0.05, 600


class SlowLink:
    """A connection to a worker that takes so many seconds for a load, and counts the bytes sent to the worker.

    With `waits`, the load stops until `begin_shown` is set (some progress was shown), and again before its end until
    `load_shown` is set (the remaining time was shown). Each token takes a while until `tokens_shown` is set.
    """

    def __init__(self, worker: Worker, load_bytes: int, load_s: float, waits: bool) -> None:
        self.worker, self.load_bytes, self.bytes_per_s, self.sent = worker, load_bytes, load_bytes / load_s, 0
        self.begin_shown, self.load_shown, self.tokens_shown = (threading.Event() for _number in range(3))
        if not waits:
            self.end_waits()
        self.listener = socket.socket()
        # Bytes in the kernel's buffer are not at the worker yet, so keep the buffer small.
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(8)
        self.endpoint = f"127.0.0.1:{self.listener.getsockname()[1]}"

    def end_waits(self) -> None:
        self.begin_shown.set()
        self.load_shown.set()
        self.tokens_shown.set()

    def serve(self) -> None:
        """Serve one client after the other, as a worker does."""
        while True:
            try:
                client, _address = self.listener.accept()
            except OSError:
                return
            with client, socket.create_connection(("127.0.0.1", self.worker.port)) as server:
                back = threading.Thread(target=self._pump, args=(server, client, False))
                back.start()
                self._pump(client, server, True)
                back.join()

    def _pump(self, source: socket.socket, sink: socket.socket, slow: bool) -> None:
        with suppress(OSError):
            while data := source.recv(16384):
                sink.sendall(data)
                if slow:
                    self._slow_down(len(data))
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _slow_down(self, size: int) -> None:
        self.sent += size
        if self.sent > 0.95 * self.load_bytes:
            self.tokens_shown.wait(MESSAGE_S)
            return
        time.sleep(size / self.bytes_per_s)
        if self.sent > 0.3 * self.load_bytes:
            self.begin_shown.wait(HANG_S)
        if self.sent > 0.8 * self.load_bytes:
            self.load_shown.wait(HANG_S)


@contextmanager
def slow_link(worker: Worker, load_bytes: int, load_s: float, *, waits: bool = False) -> Iterator[SlowLink]:
    link = SlowLink(worker, load_bytes, load_s, waits)
    thread = threading.Thread(target=link.serve)
    thread.start()
    try:
        yield link
    finally:
        link.end_waits()
        link.listener.shutdown(socket.SHUT_RDWR)
        thread.join(HANG_S)
        link.listener.close()
