# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the look at one endpoint until its state is known, and the connection to it."""

from __future__ import annotations

import socket
import time
from math import inf

from .endpoint import Endpoint
from .protocol import HEADER_SIZE, NUDGE, Dialogue
from .worker_status import WorkerStatus


class Look:
    """The look at one endpoint until its state is known."""

    def __init__(self, endpoint: Endpoint, deadline: float) -> None:
        self.status = WorkerStatus(str(endpoint), endpoint.host, endpoint.port)
        self.deadline = deadline
        self.alarm = inf  # when to act if nothing happens
        self.queued = 0.0  # since when it waits for a free slot
        self.addresses: list[str] = []
        self.tried = 0  # index of the address in use
        self.form = 0  # index of the form of HELLO in use
        self.refusal = ""  # the first address that refused, while others are tried
        self.connection: Connection | None = None
        self.done = False


class Connection:
    """One connection, from connect on, and the dialogue over it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.dialogue: Dialogue | None = None  # set when connected
        self.started = time.monotonic()
        self.answered = False
        self.last_chance = False  # the next alarm ends the look
        self.nudged = False
        self.needed = 0
        self.buffer = b""

    def begin(self, dialogue: Dialogue) -> None:
        """Send the first request."""
        self.dialogue = dialogue
        self._send(*next(dialogue))

    def receive(self, dialogue: Dialogue) -> str | None:
        """Read only what the dialogue needs; return the state when the dialogue is over, None before."""
        data = self.sock.recv(self.needed - len(self.buffer))
        if not data:
            raise ConnectionResetError
        self.answered = True
        self.buffer += data
        if len(self.buffer) < self.needed:
            return None
        reply, self.buffer = self.buffer, b""
        try:
            self._send(*dialogue.send(reply))
        except StopIteration as end:
            return str(end.value)
        return None

    def plausible(self) -> bool:
        """Return whether the data so far can be the beginning of a worker's answer."""
        return self.answered and (self.needed != HEADER_SIZE or not any(self.buffer[1:]))

    def nudge(self) -> None:
        """Get line-based servers to answer."""
        self.nudged = True
        self.sock.send(NUDGE)

    def _send(self, request: bytes, needed: int) -> None:
        self.needed = needed
        if request:
            # A send is never short: all requests together fit many times into the smallest send buffer.
            self.sock.send(request)
