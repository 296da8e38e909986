# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: probe llama.cpp RPC workers over their own protocol, without harming them.

How upstream's server (`ggml/src/ggml-rpc`) treats a connection shapes this file:

- It serves one client at a time and has no time-out. The others wait in a listen queue of two and get no byte.
- It writes without `MSG_NOSIGNAL`. A client that left with a FIN before its reply was written kills the server
  (SIGPIPE); one that left with a RST does not. So linger 0 is set before connecting, and every close sends a RST.
- A client that gave up keeps its place in that queue until the server gets to it. If both places are taken, the
  server's kernel drops further connections silently.
"""

from __future__ import annotations

import heapq
import itertools
import selectors
import socket
import struct
import time
from collections import deque
from contextlib import contextmanager, suppress
from errno import ECONNREFUSED, EINPROGRESS, EMFILE, ENFILE, ETIMEDOUT
from math import inf
from os import strerror
from typing import Iterator, Sequence

from . import sentences
from .connection import Connection, Look
from .endpoint import Endpoint, is_ipv4
from .listeners import addresses_of
from .protocol import HELLO_FORMS, NotRpcError, dialogue_with, parse_protocol
from .resolver import Resolver
from .worker_status import WorkerStatus

_NUDGE_WINDOW_S = 1.0
_RESOLVER_POLL_S = 0.02
_LONGEST_WAIT_S = 1.0
_LOOK_AGAIN_AFTER_S = 1.0
# Descriptors left to the rest of the process and to the resolver.
_SPARE_DESCRIPTORS = 128


def probe(endpoints: Sequence[Endpoint], timeout: float, expected_protocol: str | None = None) -> list[WorkerStatus]:
    """Return the status of each endpoint, in input order. Probe all in parallel, each for at most `timeout` seconds.

    Bad workers are states, never exceptions. If the system does not grant a descriptor for each endpoint, the others
    wait for a free one, and that wait does not count towards their time-out.
    """
    expected = parse_protocol(expected_protocol) if expected_protocol else ()
    with _descriptors(len(endpoints)) as slots:
        return _Prober(endpoints, timeout, expected, slots).run()


def probe_until_ready(
    endpoints: Sequence[Endpoint], timeout: float, expected_protocol: str | None = None, wait: float = 0
) -> list[WorkerStatus]:
    """Return statuses as `probe` does, after probing workers that are not ready again for up to `wait` seconds."""
    deadline = time.monotonic() + wait
    statuses = probe(endpoints, timeout, expected_protocol)
    while True:
        unready = [index for index, status in enumerate(statuses) if status.state != "ready"]
        left = deadline - time.monotonic()
        if not unready or left <= 0:
            return statuses
        time.sleep(min(_LOOK_AGAIN_AFTER_S, left))
        again = probe([endpoints[index] for index in unready], timeout, expected_protocol)
        for index, status in zip(unready, again):
            statuses[index] = status


class _Prober:
    """All looks of one call, in one thread."""

    def __init__(self, endpoints: Sequence[Endpoint], timeout: float, expected: tuple[int, ...], slots: int) -> None:
        self.timeout = timeout
        self.nudge_window = min(_NUDGE_WINDOW_S, timeout / 4)
        self.expected = expected
        self.slots = slots  # connections that may be open at a time
        self.selector = selectors.DefaultSelector()
        self.alarms: list[tuple[float, int, Look]] = []
        self.serial = itertools.count()
        self.waiting: deque[Look] = deque()
        deadline = time.monotonic() + timeout
        self.looks = [Look(endpoint, deadline) for endpoint in endpoints]
        self.unfinished = len(self.looks)
        self.open = 0

    def run(self) -> list[WorkerStatus]:
        by_name: dict[str, list[Look]] = {}
        for look in self.looks:
            if is_ipv4(look.status.host):
                self.enqueue(look, [look.status.host])
            else:
                by_name.setdefault(look.status.host, []).append(look)
                self.set_alarm(look, look.deadline)
        resolver = Resolver(by_name)
        try:
            while self.unfinished:
                for name, addresses, reason in resolver.answers():
                    for look in by_name[name]:
                        self.resolved(look, addresses, reason)
                while self.waiting and self.open < self.slots:
                    self.launch(self.waiting.popleft())
                self.wait(_RESOLVER_POLL_S if resolver.pending else _LONGEST_WAIT_S)
        finally:
            resolver.stop()
            for look in self.looks:
                self.disconnect(look)
            self.selector.close()
        return [look.status for look in self.looks]

    def wait(self, longest: float) -> None:
        """Handle socket events until the next alarm, then the alarms that are due."""
        if not self.unfinished:
            return
        now = time.monotonic()
        if self.alarms:
            longest = min(longest, max(0.0, self.alarms[0][0] - now))
        for key, _events in self.selector.select(longest):
            self.handle(key.data)
        now = time.monotonic()
        while self.alarms and self.alarms[0][0] <= now:
            when, _serial, look = heapq.heappop(self.alarms)
            if look.alarm == when and not look.done:
                self.expire(look, now)

    def set_alarm(self, look: Look, when: float) -> None:
        look.alarm = when
        heapq.heappush(self.alarms, (when, next(self.serial), look))

    # Each of the following methods takes one look one step further.

    def resolved(self, look: Look, addresses: list[str], reason: str) -> None:
        if look.done:
            return
        if addresses:
            self.enqueue(look, addresses)
        else:
            self.finish(look, "unresolved", sentences.unresolved(look.status, reason))

    def enqueue(self, look: Look, addresses: list[str]) -> None:
        look.addresses = addresses
        look.alarm = inf
        look.queued = time.monotonic()
        self.waiting.append(look)

    def launch(self, look: Look) -> None:
        # Time spent waiting for a slot does not count against the endpoint.
        look.deadline += time.monotonic() - look.queued
        self.connect(look)

    def connect(self, look: Look) -> None:
        try:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        except OSError as error:
            if error.errno in (EMFILE, ENFILE) and self.open:
                self.slots = self.open
                self.enqueue(look, look.addresses)
            else:
                self.finish(
                    look, "unreachable", sentences.unreachable(look.status, f"no socket here: {error.strerror}")
                )
            return
        look.status.address = look.addresses[look.tried]
        look.connection = connection = Connection(sock)
        self.open += 1
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.selector.register(sock, selectors.EVENT_WRITE, look)
        error_number = sock.connect_ex((look.status.address, look.status.port))
        if error_number not in (0, EINPROGRESS):
            self.connect_failed(look, error_number)
            return
        left = look.deadline - connection.started
        self.set_alarm(look, connection.started + left / (len(look.addresses) - look.tried))

    def connect_failed(self, look: Look, error_number: int) -> None:
        status = look.status
        if error_number == ETIMEDOUT and look.connection and _listens_here(look.connection.sock, status):
            status.reachable = True
            self.finish(look, "busy", sentences.busy(status, "has a full queue of waiting clients"))
            return
        self.disconnect(look)
        if error_number == ECONNREFUSED and not look.refusal:
            look.refusal = str(status.address)
        look.tried += 1
        if look.tried < len(look.addresses) and time.monotonic() < look.deadline:
            self.connect(look)
        elif look.refusal:
            status.address = look.refusal
            self.finish(look, "refused", sentences.refused(status))
        else:
            timed_out = f"no answer within {self.timeout:g} s"
            reason = timed_out if error_number == ETIMEDOUT else strerror(error_number)
            self.finish(look, "unreachable", sentences.unreachable(status, reason))

    def handle(self, look: Look) -> None:
        connection = look.connection
        if connection is None:
            return
        try:
            if connection.dialogue is None:
                error_number = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error_number:
                    self.connect_failed(look, error_number)
                else:
                    self.connected(look, connection)
                return
            state = connection.receive(connection.dialogue)
        except BlockingIOError:
            return
        except OSError:
            self.hung_up(look, connection)
        except NotRpcError as error:
            self.finish(look, "not_rpc", sentences.not_rpc(look.status, str(error)))
        else:
            if state == "ready":
                self.finish(look, state, sentences.ready(look.status, look.addresses[0]))
            elif state == "incompatible":
                self.finish(look, state, sentences.incompatible(look.status, self.expected))
            elif connection.nudged and look.status.protocol:
                self.too_late(look)

    def connected(self, look: Look, connection: Connection) -> None:
        look.status.reachable = True
        self.selector.modify(connection.sock, selectors.EVENT_READ, look)
        connection.begin(dialogue_with(look.status, HELLO_FORMS[look.form], self.expected))
        self.set_alarm(look, look.deadline - self.nudge_window)

    def hung_up(self, look: Look, connection: Connection) -> None:
        if connection.nudged and look.status.protocol:
            self.too_late(look)
        elif connection.answered:
            self.finish(look, "not_rpc", sentences.not_rpc(look.status, "it hung up in the middle of its answer"))
        elif look.form + 1 < len(HELLO_FORMS):
            look.form += 1
            self.disconnect(look)
            self.connect(look)
        else:
            self.finish(look, "not_rpc", sentences.not_rpc(look.status, "it closes connections without an answer"))

    def too_late(self, look: Look) -> None:
        """Report a worker as busy that answered only in the last moment, after the nudge had ended the session."""
        self.finish(look, "busy", sentences.busy(look.status, "answered only at the end of the time-out"))

    def expire(self, look: Look, now: float) -> None:
        connection = look.connection
        if connection is None:
            reason = f"no answer from the resolver within {self.timeout:g} s"
            self.finish(look, "unresolved", sentences.unresolved(look.status, reason))
        elif connection.dialogue is None:
            self.connect_failed(look, ETIMEDOUT)
        elif not connection.last_chance:
            connection.last_chance = True
            # Leave the whole nudge window, even if this process handles the alarm late.
            self.set_alarm(look, max(look.deadline, now + self.nudge_window))
            # A server that hung up on the first form of HELLO does not wait for a line end.
            if look.form == 0 and not connection.answered:
                with suppress(OSError):  # the next read gets the error again and handles it
                    connection.nudge()
        elif connection.nudged and connection.plausible():
            self.too_late(look)
        elif connection.answered:
            reason = f"it did not finish its answer within {self.timeout:g} s"
            self.finish(look, "not_rpc", sentences.not_rpc(look.status, reason))
        else:
            self.finish(
                look,
                "busy",
                sentences.busy(look.status, f"accepts connections but did not answer within {self.timeout:g} s"),
            )

    def disconnect(self, look: Look) -> None:
        if look.connection:
            self.selector.unregister(look.connection.sock)
            look.connection.sock.close()
            look.connection = None
            self.open -= 1

    def finish(self, look: Look, state: str, message: str) -> None:
        self.disconnect(look)
        look.status.state = state
        look.status.message = message
        look.done = True
        self.unfinished -= 1


@contextmanager
def _descriptors(wanted: int) -> Iterator[int]:
    """Raise the limit of open files for this many more, if possible, until the end; yield how many to use at most."""
    import resource  # missing on some platforms that only import this file

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted + _SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    raised = soft != resource.RLIM_INFINITY and limit > soft
    if raised:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError):
            raised, limit = False, soft
    try:
        yield max(8, limit - _SPARE_DESCRIPTORS)
    finally:
        if raised:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _listens_here(sock: socket.socket, status: WorkerStatus) -> bool:
    """Return whether the port on which our connection timed out has a listener on this host.

    Then its queue of waiting clients was full. On another host, a full queue looks the same as a packet filter.
    """
    address = str(status.address)
    try:
        here = address.startswith("127.") or sock.getsockname()[0] == address
    except OSError:
        return False
    return here and not addresses_of(status.port).isdisjoint({address, "0.0.0.0"})  # noqa: S104 (recognised, not bound)
