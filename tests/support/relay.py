# SPDX-License-Identifier: GPL-3.0-or-later
"""A connection between a master and a worker that counts what goes to the worker, and that a test can slow down."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from support.harness import HANG_S, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

# All tokens together take half a minute. A progress line comes meanwhile, and then the other tokens take no time.
MESSAGE_S, TOKENS = 0.05, 600


class Relay:
    """It serves one client after the other, as a worker does."""

    def __init__(self, worker: Worker, buffer: int | None = None) -> None:
        self.worker, self.sent = worker, 0
        self.listener = socket.socket()
        if buffer:
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(8)
        self.endpoint = f"127.0.0.1:{self.listener.getsockname()[1]}"

    def serve(self) -> None:
        while True:
            try:
                client, _address = self.listener.accept()
            except OSError:
                return
            with client, socket.create_connection(("127.0.0.1", self.worker.port)) as server:
                for link in (client, server):
                    # Both ends set this option too.
                    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                back = threading.Thread(target=self._answers, args=(server, client))
                back.start()
                with suppress(OSError):
                    self.pass_on(client, server)
                _end(client, server)
                back.join()

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on what a client sends, until it leaves."""
        while data := client.recv(16384):
            server.sendall(data)
            self.sent += len(data)
            self.passed(len(data))

    def passed(self, size: int) -> None:
        """Return once the next bytes may come."""

    def let_go(self) -> None:
        """Hold nothing back any more."""

    @staticmethod
    def _answers(server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)
        _end(client, server)


def _end(*links: socket.socket) -> None:
    for link in links:
        with suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)


class SlowLink(Relay):
    """A connection that takes so many seconds for a load.

    With `waits`, the load stops until `begin_shown` is set (some progress was shown), and again before its end until
    `load_shown` is set (the remaining time was shown). Each token takes a while until `tokens_shown` is set.
    """

    def __init__(self, worker: Worker, load_bytes: int, load_s: float, *, waits: bool = False) -> None:
        # Bytes in the kernel's buffer are not at the worker yet, so keep the buffer small.
        super().__init__(worker, buffer=65536)
        self.load_bytes, self.bytes_per_s = load_bytes, load_bytes / load_s
        self.begin_shown, self.load_shown, self.tokens_shown = (threading.Event() for _number in range(3))
        if not waits:
            self.let_go()

    def let_go(self) -> None:
        self.begin_shown.set()
        self.load_shown.set()
        self.tokens_shown.set()

    def passed(self, size: int) -> None:
        if self.sent > 0.95 * self.load_bytes:
            self.tokens_shown.wait(MESSAGE_S)
            return
        time.sleep(size / self.bytes_per_s)
        if self.sent > 0.3 * self.load_bytes:
            self.begin_shown.wait(HANG_S)
        if self.sent > 0.8 * self.load_bytes:
            self.load_shown.wait(HANG_S)


Kind = TypeVar("Kind", bound=Relay)


@contextmanager
def relaying(relay: Kind) -> Iterator[Kind]:
    """Serve through a relay; yield it."""
    thread = threading.Thread(target=relay.serve)
    thread.start()
    try:
        yield relay
    finally:
        relay.let_go()
        relay.listener.shutdown(socket.SHUT_RDWR)
        thread.join(HANG_S)
        relay.listener.close()
