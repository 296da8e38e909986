# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Private to this collection: looks at llama.cpp RPC workers over their own protocol, without harming them.

What upstream's server (`ggml/src/ggml-rpc`) makes of a connection shapes this file:

- It serves one client at a time and has no time-out. The others wait in a listen queue of two and get no byte.
- It writes without `MSG_NOSIGNAL`. A client that left with a FIN before its reply was written kills the server
  (SIGPIPE); one that left with a RST does not. So linger 0 is set before connecting, and every close sends a RST.
- A client that gave up keeps its place in that queue until the server gets to it. When both are taken the server's
  kernel drops further connections silently.
"""

from __future__ import annotations

import heapq
import itertools
import re
import selectors
import socket
import struct
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from errno import ECONNREFUSED, EINPROGRESS, EMFILE, ENFILE, ETIMEDOUT
from math import inf
from os import strerror
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generator, Tuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

DEFAULT_PORT = 50052
# What a worker can be found to be; the public names, in the order in which they are counted.
STATES = ("ready", "busy", "refused", "unreachable", "unresolved", "not_rpc", "incompatible")

# Commands of ggml-rpc.cpp (`enum rpc_cmd`): one byte, the payload's size as u64, the payload; all little-endian.
_DEVICE_MEMORY = 11
_HELLO = 14
_DEVICE_COUNT = 15
_NAMES = {_DEVICE_MEMORY: "GET_DEVICE_MEMORY", _HELLO: "HELLO", _DEVICE_COUNT: "DEVICE_COUNT"}


def _request(command: int, payload: bytes = b"") -> bytes:
    return struct.pack("<BQ", command, len(payload)) + payload


# From protocol 4 on HELLO carries 24 bytes of transport capabilities: zeros ask for plain TCP. A server of either kind
# closes the connection when it gets the other form.
_HELLO_FORMS = (_request(_HELLO, bytes(24)), _request(_HELLO))
_HEADER_SIZE = 8
_HELLO_SIZES = range(3, 257)
# Upstream's own limit is 16 devices on all workers together.
_DEVICE_LIMIT = 64
# Line-based servers (HTTP among them) wait for a line end before they answer. This valid request has two: such a server
# answers it, and a worker asked for a device that it cannot have ends the session.
_NUDGE = _request(_DEVICE_MEMORY, b"\r\n\r\n")
_NUDGE_WINDOW_S = 1.0

_RESOLVER_THREADS = 100
_RESOLVER_POLL_S = 0.02
_LONGEST_WAIT_S = 1.0
_ADDRESS_LIMIT = 8
_LOOK_AGAIN_AFTER_S = 1.0
# Descriptors left to the rest of the process and to the resolver.
_SPARE_DESCRIPTORS = 128

_Dialogue = Generator[Tuple[bytes, int], bytes, str]


class EndpointError(ValueError):
    """A text does not name an endpoint; the message is one sentence with the remedy."""


class ProtocolVersionError(ValueError):
    """A text is no protocol version; the message is one sentence with the remedy."""


class _NotRpcError(Exception):
    """The peer's answer breaks the protocol."""


@dataclass(frozen=True)
class Endpoint:
    """Where a worker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass
class WorkerStatus:
    """What was found at one endpoint: an entry of `workers` in the result of `rpc_worker_info`."""

    endpoint: str
    host: str
    port: int
    address: str | None = None
    state: str = "unreachable"
    reachable: bool = False
    protocol: dict[str, Any] | None = None
    devices: list[dict[str, int]] = field(default_factory=list)
    latency_ms: float | None = None
    message: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
        return asdict(self)


def parse_endpoint(text: str, default_port: int = DEFAULT_PORT) -> Endpoint:
    """Parse `host` or `host:port`; raises EndpointError."""
    shown = text if len(text) <= 100 else text[:100] + "..."
    host, colon, port_text = text.strip().partition(":")
    if "[" in text or ":" in port_text:
        raise EndpointError(
            f"endpoint {shown!r} is not of the form host[:port]: "
            "give a host name or an IPv4 address, llama.cpp RPC has no IPv6"
        )
    if not host:
        raise EndpointError(f"endpoint {shown!r} names no host: write it as host or host:port")
    if not _is_host(host):
        raise EndpointError(
            f"endpoint {shown!r} has an invalid host: write host or host:port, with a host name or an IPv4 address"
        )
    if host == "0.0.0.0":  # noqa: S104 - refused, not bound
        raise EndpointError(
            f"endpoint {shown!r} is the address to listen on everywhere: give the address under which hosts reach it"
        )
    port = default_port if not colon else int(port_text) if re.fullmatch(r"[0-9]{1,5}", port_text) else 0
    if not 1 <= port <= 65535:
        raise EndpointError(f"endpoint {shown!r} has an invalid port: give a number from 1 to 65535")
    return Endpoint(host, port)


def parse_endpoints(texts: Iterable[str], default_port: int = DEFAULT_PORT) -> list[Endpoint]:
    """Parse endpoints that must all differ; raises EndpointError."""
    endpoints = []
    seen = set()
    for text in texts:
        endpoint = parse_endpoint(text, default_port)
        if str(endpoint).lower() in seen:
            raise EndpointError(f"endpoint {endpoint} is given twice: name each worker once, it serves one client")
        seen.add(str(endpoint).lower())
        endpoints.append(endpoint)
    return endpoints


def parse_protocol(text: str) -> tuple[int, ...]:
    """Parse `7`, `7.0` or `7.0.0`; raises ProtocolVersionError."""
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3}){0,2}", text):
        raise ProtocolVersionError(f"{text[:100]!r} is not a protocol version: write it as '7', '7.0' or '7.0.0'")
    return tuple(int(part) for part in text.split("."))


def probe(endpoints: Sequence[Endpoint], timeout: float, expected_protocol: str | None = None) -> list[WorkerStatus]:
    """Look at all endpoints side by side, each for at most `timeout` seconds; returns one status each, in input order.

    Bad workers are states, never exceptions. Where the system does not grant a descriptor per endpoint, the endpoints
    go in waves of what it grants, and each wave has the time-out for itself.
    """
    expected = parse_protocol(expected_protocol) if expected_protocol else ()
    with _descriptors(len(endpoints)) as slots:
        return _Prober(endpoints, timeout, expected, slots).run()


def probe_until_ready(
    endpoints: Sequence[Endpoint], timeout: float, expected_protocol: str | None = None, wait: float = 0
) -> list[WorkerStatus]:
    """Look as `probe` does, and look again at those that are not ready, for `wait` seconds."""
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


def summarize(statuses: Sequence[WorkerStatus]) -> dict[str, Any]:
    """Return the public result: the workers, whether all are ready, and how many are in each state."""
    counts = {state: sum(status.state == state for status in statuses) for state in STATES}
    all_ready = bool(statuses) and counts["ready"] == len(statuses)
    return {"workers": [status.as_dict() for status in statuses], "all_ready": all_ready, "counts": counts}


def _is_host(host: str) -> bool:
    if re.fullmatch(r"[0-9.]+", host):
        return _is_ipv4(host)
    labels = host[:-1].split(".") if host.endswith(".") else host.split(".")
    return len(host) <= 253 and all(re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", x) for x in labels)


def _is_ipv4(host: str) -> bool:
    parts = host.split(".")
    return len(parts) == 4 and all(re.fullmatch(r"0|[1-9][0-9]{0,2}", part) and int(part) <= 255 for part in parts)


# The protocol, without any input or output: a dialogue yields (bytes to send, number of bytes it needs next) and
# returns a state.


def _dialogue(status: WorkerStatus, hello: bytes, expected: tuple[int, ...], started: float) -> _Dialogue:
    reply = yield from _ask(hello, _HELLO_SIZES)
    status.latency_ms = round((time.monotonic() - started) * 1000, 3)
    version = tuple(reply[:3])
    major, minor, patch = version
    status.protocol = {"version": f"{major}.{minor}.{patch}", "major": major, "minor": minor, "patch": patch}
    if version[: len(expected)] != expected:
        return "incompatible"
    # Up to protocol 2 a worker is one device: it is not counted, and asked for without a number.
    requests = [_request(_DEVICE_MEMORY)]
    if major >= 3:
        (count,) = struct.unpack("<I", (yield from _ask(_request(_DEVICE_COUNT), range(4, 5))))
        if not 1 <= count <= _DEVICE_LIMIT:
            raise _NotRpcError(f"it claims to have {count} devices")
        requests = [_request(_DEVICE_MEMORY, struct.pack("<I", index)) for index in range(count)]
    for index, request in enumerate(requests):
        free, total = struct.unpack("<QQ", (yield from _ask(request, range(16, 17))))
        status.devices.append({"index": index, "memory_free_bytes": free, "memory_total_bytes": total})
    return "ready"


def _ask(request: bytes, sizes: range) -> Generator[tuple[bytes, int], bytes, bytes]:
    header = yield request, _HEADER_SIZE
    (size,) = struct.unpack("<Q", header)
    if size not in sizes:
        what = f'"{header.decode("ascii")}"' if re.fullmatch(rb"[ -~]+", header) else f"a size field of {size}"
        raise _NotRpcError(f"it answered {_NAMES[request[0]]} with {what}")
    return (yield b"", size)


class _Look:
    """One endpoint on its way to a state."""

    def __init__(self, endpoint: Endpoint, deadline: float) -> None:
        self.status = WorkerStatus(str(endpoint), endpoint.host, endpoint.port)
        self.deadline = deadline
        self.alarm = inf  # when to act if nothing happens
        self.queued = 0.0  # since when it waits for a free slot
        self.addresses: list[str] = []
        self.tried = 0  # index of the address in use
        self.form = 0  # index of the form of HELLO in use
        self.refusal = ""  # the first address that refused, while others are tried
        self.connection: _Connection | None = None
        self.done = False


class _Connection:
    """One connection, from connect on, and the dialogue over it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.dialogue: _Dialogue | None = None  # set when connected
        self.started = time.monotonic()
        self.answered = False
        self.last_chance = False  # the next alarm is the end
        self.nudged = False
        self.needed = 0
        self.buffer = b""

    def begin(self, dialogue: _Dialogue) -> None:
        """Send the first request."""
        self.dialogue = dialogue
        self._send(*next(dialogue))

    def receive(self, dialogue: _Dialogue) -> str | None:
        """Read what the dialogue needs and no more; returns the state when it is over."""
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
        """Whether what has come so far is the beginning of a worker's answer."""
        return self.answered and (self.needed != _HEADER_SIZE or not any(self.buffer[1:]))

    def nudge(self) -> None:
        """Get line-based servers to answer."""
        self.nudged = True
        self.sock.send(_NUDGE)

    def _send(self, request: bytes, needed: int) -> None:
        self.needed = needed
        if request:
            # Never short: all that is ever sent fits many times into the smallest send buffer.
            self.sock.send(request)


class _Prober:
    """All looks of one call, in one thread."""

    def __init__(self, endpoints: Sequence[Endpoint], timeout: float, expected: tuple[int, ...], slots: int) -> None:
        self.timeout = timeout
        self.nudge_window = min(_NUDGE_WINDOW_S, timeout / 4)
        self.expected = expected
        self.slots = slots  # connections that may be open at a time
        self.selector = selectors.DefaultSelector()
        self.alarms: list[tuple[float, int, _Look]] = []
        self.serial = itertools.count()
        self.waiting: deque[_Look] = deque()
        deadline = time.monotonic() + timeout
        self.looks = [_Look(endpoint, deadline) for endpoint in endpoints]
        self.unfinished = len(self.looks)
        self.open = 0

    def run(self) -> list[WorkerStatus]:
        by_name: dict[str, list[_Look]] = {}
        for look in self.looks:
            if _is_ipv4(look.status.host):
                self.enqueue(look, [look.status.host])
            else:
                by_name.setdefault(look.status.host, []).append(look)
                self.set_alarm(look, look.deadline)
        resolver = _Resolver(by_name)
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
        """Handle what happens until the next alarm, then the alarms that are due."""
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

    def set_alarm(self, look: _Look, when: float) -> None:
        look.alarm = when
        heapq.heappush(self.alarms, (when, next(self.serial), look))

    # Each of the following takes one look one step further.

    def resolved(self, look: _Look, addresses: list[str], reason: str) -> None:
        if look.done:
            return
        if addresses:
            self.enqueue(look, addresses)
        else:
            self.finish(look, "unresolved", _unresolved(look.status, reason))

    def enqueue(self, look: _Look, addresses: list[str]) -> None:
        look.addresses = addresses
        look.alarm = inf
        look.queued = time.monotonic()
        self.waiting.append(look)

    def launch(self, look: _Look) -> None:
        # Time spent waiting for a slot is not the endpoint's.
        look.deadline += time.monotonic() - look.queued
        self.connect(look)

    def connect(self, look: _Look) -> None:
        try:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        except OSError as error:
            if error.errno in (EMFILE, ENFILE) and self.open:
                self.slots = self.open
                self.enqueue(look, look.addresses)
            else:
                self.finish(look, "unreachable", _unreachable(look.status, f"no socket here: {error.strerror}"))
            return
        look.status.address = look.addresses[look.tried]
        look.connection = connection = _Connection(sock)
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

    def connect_failed(self, look: _Look, error_number: int) -> None:
        status = look.status
        if error_number == ETIMEDOUT and look.connection and _listens_here(look.connection.sock, status):
            status.reachable = True
            self.finish(look, "busy", _busy(status, "has a full queue of waiting clients"))
            return
        self.disconnect(look)
        if error_number == ECONNREFUSED and not look.refusal:
            look.refusal = str(status.address)
        look.tried += 1
        if look.tried < len(look.addresses) and time.monotonic() < look.deadline:
            self.connect(look)
        elif look.refusal:
            status.address = look.refusal
            self.finish(look, "refused", _refused(status))
        else:
            timed_out = f"no answer within {self.timeout:g} s"
            reason = timed_out if error_number == ETIMEDOUT else strerror(error_number)
            self.finish(look, "unreachable", _unreachable(status, reason))

    def handle(self, look: _Look) -> None:
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
        except _NotRpcError as error:
            self.finish(look, "not_rpc", _not_rpc(look.status, str(error)))
        else:
            if state == "ready":
                self.finish(look, state, _ready(look.status, look.addresses[0]))
            elif state == "incompatible":
                self.finish(look, state, _incompatible(look.status, self.expected))
            elif connection.nudged and look.status.protocol:
                self.too_late(look)

    def connected(self, look: _Look, connection: _Connection) -> None:
        look.status.reachable = True
        self.selector.modify(connection.sock, selectors.EVENT_READ, look)
        connection.begin(_dialogue(look.status, _HELLO_FORMS[look.form], self.expected, connection.started))
        self.set_alarm(look, look.deadline - self.nudge_window)

    def hung_up(self, look: _Look, connection: _Connection) -> None:
        if connection.nudged and look.status.protocol:
            self.too_late(look)
        elif connection.answered:
            self.finish(look, "not_rpc", _not_rpc(look.status, "it hung up in the middle of its answer"))
        elif look.form + 1 < len(_HELLO_FORMS):
            look.form += 1
            self.disconnect(look)
            self.connect(look)
        else:
            self.finish(look, "not_rpc", _not_rpc(look.status, "it closes connections without an answer"))

    def too_late(self, look: _Look) -> None:
        """Settle on a worker that got to us in the last moment, when the nudge had already ended the session."""
        self.finish(look, "busy", _busy(look.status, "answered only at the end of the time-out"))

    def expire(self, look: _Look, now: float) -> None:
        connection = look.connection
        if connection is None:
            reason = f"no answer from the resolver within {self.timeout:g} s"
            self.finish(look, "unresolved", _unresolved(look.status, reason))
        elif connection.dialogue is None:
            self.connect_failed(look, ETIMEDOUT)
        elif not connection.last_chance:
            connection.last_chance = True
            # All of it, also where this process got to it late.
            self.set_alarm(look, max(look.deadline, now + self.nudge_window))
            # Whoever hung up on the first form of HELLO does not wait for a line.
            if look.form == 0 and not connection.answered:
                with suppress(OSError):  # seen again, and handled, when reading
                    connection.nudge()
        elif connection.nudged and connection.plausible():
            self.too_late(look)
        elif connection.answered:
            reason = f"it did not finish its answer within {self.timeout:g} s"
            self.finish(look, "not_rpc", _not_rpc(look.status, reason))
        else:
            self.finish(
                look, "busy", _busy(look.status, f"accepts connections but did not answer within {self.timeout:g} s")
            )

    def disconnect(self, look: _Look) -> None:
        if look.connection:
            self.selector.unregister(look.connection.sock)
            look.connection.sock.close()
            look.connection = None
            self.open -= 1

    def finish(self, look: _Look, state: str, message: str) -> None:
        self.disconnect(look)
        look.status.state = state
        look.status.message = message
        look.done = True
        self.unfinished -= 1


class _Resolver:
    """Looks names up in a few daemon threads, because getaddrinfo can block for minutes and cannot be cancelled."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = deque(names)
        self._answers: deque[tuple[str, list[str], str]] = deque()
        self.pending = len(self._names)
        for _thread in range(min(self.pending, _RESOLVER_THREADS)):
            with suppress(RuntimeError):  # the system grants no more threads; those that run do the work
                threading.Thread(target=self._work, daemon=True).start()

    def answers(self) -> Iterator[tuple[str, list[str], str]]:
        """Give (name, addresses, reason why there are none) as they come."""
        while self._answers:
            self.pending -= 1
            yield self._answers.popleft()

    def stop(self) -> None:
        """Begin no other look-up."""
        self._names.clear()

    def _work(self) -> None:
        while True:
            try:
                name = self._names.popleft()
            except IndexError:
                return
            self._answers.append((name, *self._look_up(name)))

    @staticmethod
    def _look_up(name: str) -> tuple[list[str], str]:
        try:
            found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
        except OSError as error:
            return [], str(error.strerror or error)
        except UnicodeError:
            return [], "not a host name"
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))[:_ADDRESS_LIMIT], "no IPv4 address"


@contextmanager
def _descriptors(wanted: int) -> Iterator[int]:
    """Allow this many more open files if the system lets us, for as long as needed; gives how many to use at most."""
    import resource  # not on every platform on which this file is merely imported

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
    """Whether the port that let our connection time out is listened to on this very host.

    Then its queue of waiting clients was full. On another host the same cannot be told from a packet filter.
    """
    address = str(status.address)
    try:
        if not address.startswith("127.") and sock.getsockname()[0] != address:
            return False
        sockets = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()]
    except OSError:
        return False
    (packed,) = struct.unpack("=I", socket.inet_aton(address))
    listeners = (f"{packed:08X}:{status.port:04X}", f"{0:08X}:{status.port:04X}")
    # The fields are sl, local address, remote address, state; 0A is LISTEN.
    return any(fields[1] in listeners and fields[3] == "0A" for fields in sockets)


# What is said about each state: one sentence that ends in what to do next.


def _ready(status: WorkerStatus, first_address: str) -> str:
    version = status.protocol["version"] if status.protocol else ""
    free = sum(device["memory_free_bytes"] for device in status.devices) / 1024**3
    devices = "1 device" if len(status.devices) == 1 else f"{len(status.devices)} devices"
    text = f"{status.endpoint} is ready: RPC protocol {version}, {devices}, {free:.1f} GiB free"
    if status.address != first_address:
        text += (
            f" (llama.cpp itself tries only the first address of a name, here {first_address}: give {status.address})"
        )
    return text + "."


def _busy(status: WorkerStatus, finding: str) -> str:
    return (
        f"{status.endpoint} {finding}, so another client most likely holds it: wait until that "
        f"client is done, or find it on the worker with `ss -tnp 'sport = :{status.port}'` and stop it."
    )


def _refused(status: WorkerStatus) -> str:
    return (
        f"{status.endpoint} refuses connections: start the RPC server on that host and check that it listens on "
        f"{status.address}, port {status.port}."
    )


def _unreachable(status: WorkerStatus, reason: str) -> str:
    return (
        f"{status.endpoint} cannot be reached ({reason}): check that the host is up, that there is a route to "
        f"{status.address} and that firewalls let port {status.port}/tcp through from this host; a worker whose "
        "queue of waiting clients is full looks the same."
    )


def _unresolved(status: WorkerStatus, reason: str) -> str:
    return (
        f"{status.endpoint} cannot be looked up ({reason}): check the spelling of {status.host}, add it to DNS or "
        "/etc/hosts on this host, or give its IPv4 address."
    )


def _not_rpc(status: WorkerStatus, finding: str) -> str:
    return (
        f"{status.endpoint} does not behave like a llama.cpp RPC server ({finding}): check that the port is right "
        "and what listens there."
    )


def _incompatible(status: WorkerStatus, expected: tuple[int, ...]) -> str:
    version = status.protocol["version"] if status.protocol else ""
    return (
        f"{status.endpoint} speaks RPC protocol {version} where {'.'.join(map(str, expected))} is expected: install "
        "the same llama.cpp release on all hosts."
    )
