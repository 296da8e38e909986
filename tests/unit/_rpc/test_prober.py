# SPDX-License-Identifier: GPL-3.0-or-later
"""The prober's results for peers of every kind, also hostile ones; tests/integration has real workers."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc import prober, protocol
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.endpoint import (
    Endpoint,
    EndpointError,
    parse_endpoint,
    parse_endpoints,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.prober import probe, probe_until_ready
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.protocol import (
    ProtocolVersionError,
    parse_protocol,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.sentences import newer_than_tested
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.worker_status import WorkerStatus
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.stand_in_workers import COUNT_1, HELLO_7, MEMORY, many_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMEOUT = 0.3
# The time-out in seconds of probes that end with the peer's answer, on a busy machine.
ENOUGH = 5.0
# Seconds by which such a probe may be late.
SLACK = 5.0


class Peer:
    """A server on loopback that runs a script with each connection, and records what it sees."""

    def __init__(self, script: Callable[[Peer, socket.socket], None]) -> None:
        self.script = script
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=20)
        self.port = self.listener.getsockname()[1]
        self.over = threading.Event()
        self.connections = 0
        self.received = b""
        self.left: list[str] = []
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self.port)

    def _serve(self) -> None:
        while True:
            connection, _address = self.listener.accept()
            if self.over.is_set():
                connection.close()
                return
            self.connections += 1
            connection.settimeout(5)
            with connection, suppress(OSError):
                self.script(self, connection)

    def take(self, connection: socket.socket, size: int) -> bytes:
        """Receive exactly `size` bytes, as a worker does."""
        data = b""
        while len(data) < size:
            chunk = connection.recv(size - len(data))
            if not chunk:
                raise ConnectionError
            data += chunk
        self.received += data
        return data

    def await_end(self, connection: socket.socket) -> None:
        """Record how the client closes the connection."""
        try:
            while connection.recv(4096):
                pass
            self.left.append("FIN")
        except ConnectionResetError:
            self.left.append("RST")

    def close(self) -> None:
        self.over.set()
        with socket.socket() as wake:  # not create_connection: it looks names up, which some tests replace
            wake.connect(self.listener.getsockname())
        self.thread.join(10)
        self.listener.close()
        assert not self.thread.is_alive()


@contextmanager
def serving(script: Callable[[Peer, socket.socket], None]) -> Iterator[Peer]:
    peer = Peer(script)
    try:
        yield peer
    finally:
        peer.close()


def sends(*chunks: bytes, pause: float = 0.0, then: str = "wait") -> Callable[[Peer, socket.socket], None]:
    """Return a script that takes HELLO, sends the chunks, and closes, resets or waits for the client to leave."""

    def script(peer: Peer, connection: socket.socket) -> None:
        connection.recv(100)
        for chunk in chunks:
            connection.sendall(chunk)
            time.sleep(pause)
        if then == "wait":
            peer.await_end(connection)
        elif then == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return script


def worker(major: int, minor: int, patch: int, devices: int = 1) -> Callable[[Peer, socket.socket], None]:
    """Return a script that acts as upstream's server of that protocol; it also hangs up on the other HELLO."""
    caps = 24 if major >= 4 else 0

    def script(peer: Peer, connection: socket.socket) -> None:
        command, size = struct.unpack("<BQ", peer.take(connection, 9))
        if (command, size) != (14, caps):
            return
        peer.take(connection, caps)
        reply = bytes([major, minor, patch]) + (bytes(25) if caps else b"")
        connection.sendall(struct.pack("<Q", len(reply)) + reply)
        while True:
            try:
                command, size = struct.unpack("<BQ", peer.take(connection, 9))
            except ConnectionResetError:
                peer.left.append("RST")
                raise
            except ConnectionError:
                peer.left.append("FIN")
                raise
            if command == 15 and size == 0 and major >= 3:
                connection.sendall(struct.pack("<QI", 4, devices))
            elif command == 11 and size == (4 if major >= 3 else 0):
                index = struct.unpack("<I", peer.take(connection, 4))[0] if major >= 3 else 0
                if index >= devices:
                    return
                connection.sendall(struct.pack("<QQQ", 16, 1000 + index, 2000 + index))
            else:
                return

    return script


def look(peer: Peer, timeout: float = TIMEOUT, expected: str | None = None) -> WorkerStatus:
    start = time.monotonic()
    (status,) = probe([peer.endpoint], timeout, expected)
    assert time.monotonic() - start < timeout + SLACK
    assert str(peer.endpoint) in status.message
    assert status.message.endswith(".")
    return status


@pytest.mark.parametrize(
    ("version", "devices", "connections"),
    [
        pytest.param((2, 0, 0), 1, 2, id="one-device-not-counted"),
        pytest.param((3, 6, 1), 2, 2, id="devices-counted"),
        pytest.param((4, 0, 2), 1, 1, id="long-hello"),
        pytest.param((7, 0, 0), 16, 1, id="all-devices-upstream-allows"),
        pytest.param((8, 2, 1), 1, 1, id="newer-than-known"),
    ],
)
def test_a_worker_of_each_generation_is_ready(version: tuple[int, int, int], devices: int, connections: int) -> None:
    with serving(worker(*version, devices)) as peer:
        status = look(peer, timeout=ENOUGH)
    names = dict(zip(("major", "minor", "patch"), version))
    assert (status.state, status.reachable, status.address) == ("ready", True, "127.0.0.1"), status.message
    assert status.protocol == {"version": ".".join(map(str, version)), **names}
    assert status.devices == [
        {"index": i, "memory_free_bytes": 1000 + i, "memory_total_bytes": 2000 + i} for i in range(devices)
    ]
    assert peer.connections == connections
    assert peer.left == ["RST"], "a worker that writes to a client that left with FIN dies of SIGPIPE"
    said = newer_than_tested([status])
    assert len(said) == (version > protocol.NEWEST_TESTED)
    assert all(f"RPC protocol 8.2.1 of {peer.endpoint} is newer than 8.0.0, the newest" in each for each in said)
    # It gets one HELLO, and no byte that it does not need.
    if version == (7, 0, 0):
        hello = b"\x0e" + struct.pack("<Q", 24) + bytes(24)
        asked = b"".join(b"\x0b" + struct.pack("<QI", 4, index) for index in range(devices))
        assert peer.received == hello + b"\x0f" + bytes(8) + asked


@pytest.mark.parametrize(
    ("expected", "state"),
    [("7", "ready"), ("7.0", "ready"), ("7.0.1", "ready"), ("7.0.2", "incompatible"), ("7.1", "incompatible"),
     ("6", "incompatible"), ("70", "incompatible")],
)  # fmt: skip
def test_the_expected_protocol_is_compared_by_its_parts(expected: str, state: str) -> None:
    with serving(worker(7, 0, 1)) as peer:
        status = look(peer, timeout=ENOUGH, expected=expected)
    assert status.state == state
    assert (f"protocol 7.0.1 where {expected} is expected" in status.message) == (state == "incompatible")


HOSTILE = {
    "http-that-answers-at-once": (sends(b"HTTP/1.1 400 Bad Request\r\n\r\n", then="close"), "not_rpc", '"HTTP/1.1"'),
    "ssh-banner": (sends(b"SSH-2.0-OpenSSH_9.2\r\n"), "not_rpc", '"SSH-2.0-"'),
    "garbage": (sends(b"\xff\x80garbage" * 20), "not_rpc", "size field"),
    "huge-size-field": (sends(struct.pack("<Q", 2**63) + HELLO_7[8:]), "not_rpc", str(2**63)),
    "size-too-small": (sends(struct.pack("<Q", 2) + b"\x07\x00"), "not_rpc", "size field of 2"),
    "endless-zeros": (sends(*[bytes(65536)] * 200), "not_rpc", "size field of 0"),
    "endless-after-a-valid-hello": (sends(HELLO_7, *[b"\xee" * 65536] * 200), "not_rpc", "DEVICE_COUNT"),
    "one-byte-at-a-time": (sends(*(bytes([x]) for x in HELLO_7), pause=0.05), "not_rpc", "did not finish"),
    "hangs-up-in-the-middle": (sends(HELLO_7[:20], then="close"), "not_rpc", "in the middle"),
    "resets-in-the-middle": (sends(HELLO_7[:20], then="reset"), "not_rpc", "in the middle"),
    "many-small-pieces": (sends(*(bytes([x]) for x in HELLO_7 + COUNT_1 + MEMORY), pause=0.001), "ready", "is ready"),
    "closes-at-once": (sends(then="close"), "not_rpc", "without an answer"),
    "resets-at-once": (sends(then="reset"), "not_rpc", "without an answer"),
    "silent": (sends(), "busy", "accepts connections but did not answer within 0.3 s, so another client"),
    "device-count-too-long": (sends(HELLO_7, struct.pack("<QQ", 8, 1)), "not_rpc", "DEVICE_COUNT"),
    "no-devices": (sends(HELLO_7, struct.pack("<QI", 4, 0)), "not_rpc", "0 devices"),
    "four-billion-devices": (sends(HELLO_7, struct.pack("<QI", 4, 2**32 - 1)), "not_rpc", "4294967295 devices"),
    "memory-malformed": (sends(HELLO_7 + COUNT_1 + MEMORY[:8] + b"x"), "not_rpc", "did not finish"),
    "memory-size-wrong": (sends(HELLO_7 + COUNT_1 + struct.pack("<Q", 17)), "not_rpc", "GET_DEVICE_MEMORY"),
    "stalls-after-hello": (sends(HELLO_7), "not_rpc", "did not finish"),
}


@pytest.mark.parametrize(("script", "state", "said"), HOSTILE.values(), ids=HOSTILE.keys())
def test_every_kind_of_peer_has_a_state_and_a_sentence_in_time(
    script: Callable[[Peer, socket.socket], None], state: str, said: str
) -> None:
    with serving(script) as peer:
        status = look(peer, TIMEOUT if "did not" in said else ENOUGH)
    assert (status.state, status.reachable) == (state, True), status.message
    assert said in status.message
    assert "FIN" not in peer.left


def test_an_http_server_that_waits_for_the_end_of_a_line_is_not_taken_for_a_busy_worker() -> None:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def log_message(self, *_args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        (status,) = probe([Endpoint("127.0.0.1", server.server_port)], 2)
        thread.join(10)
    assert status.state == "not_rpc", status.message


def test_a_worker_that_gets_free_in_the_last_moment_is_busy() -> None:
    def script(peer: Peer, connection: socket.socket) -> None:
        # Wait for the nudge, which is for servers that wait for a line.
        while len(connection.recv(100, socket.MSG_PEEK)) <= 33:
            time.sleep(0.001)
        worker(7, 0, 0)(peer, connection)

    with serving(script) as peer:
        status = look(peer)
    assert status.state == "busy", status.message
    assert "another client most likely holds it" in status.message


@contextmanager
def full_queue() -> Iterator[Endpoint]:
    """Yield a port whose kernel drops connections, as a packet filter does."""
    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        client.connect(listener.getsockname())
        yield Endpoint("127.0.0.1", listener.getsockname()[1])


@pytest.mark.parametrize(
    ("here", "state", "said"),
    [
        (True, "busy", "full queue"),
        (False, "unreachable", r"no answer within 0\.3 s.* firewalls let port \d+/tcp through"),
    ],
)
def test_a_port_that_drops_packets_is_a_busy_worker_here_and_unreachable_elsewhere(
    monkeypatch: pytest.MonkeyPatch, here: bool, state: str, said: str
) -> None:
    if not here:  # the kernel knows nothing about the listener of another host
        monkeypatch.setattr(prober, "_listens_here", lambda *_args: False)
    with full_queue() as endpoint:
        start = time.monotonic()
        (status,) = probe([endpoint], TIMEOUT)
        assert time.monotonic() - start < TIMEOUT + SLACK
    assert (status.state, status.reachable) == (state, here), status.message
    assert re.search(said, status.message)


def fake_lookup(names: dict[str, list[str]], blocked: threading.Event | None = None) -> Callable[..., list[object]]:
    def getaddrinfo(host: str, *_args: object) -> list[object]:
        if blocked and host not in names:
            blocked.wait(10)
        if not names.get(host):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in names[host]]

    return getaddrinfo


def test_the_addresses_of_a_name_are_tried_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"two": ["127.0.0.2", "127.0.0.1"], "none": ["127.0.0.2", "127.0.0.3"]}
    monkeypatch.setattr(socket, "getaddrinfo", fake_lookup(names))
    with serving(worker(7, 0, 0)) as peer:
        two, none = probe([Endpoint("two", peer.port), Endpoint("none", peer.port)], 2)
    assert (two.state, two.address) == ("ready", "127.0.0.1")
    assert "llama.cpp itself tries only the first address of a name, here 127.0.0.2: give 127.0.0.1" in two.message
    assert (none.state, none.address) == ("refused", "127.0.0.2")


def test_an_address_that_drops_packets_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prober, "_listens_here", lambda *_args: False)
    monkeypatch.setattr(socket, "getaddrinfo", fake_lookup({"two": ["127.0.0.2", "127.0.0.1"]}))
    with serving(worker(7, 0, 0)) as peer, socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.2", peer.port))
        listener.listen(0)
        client.connect(listener.getsockname())
        (status,) = probe([Endpoint("two", peer.port)], 2)
    assert (status.state, status.address) == ("ready", "127.0.0.1"), status.message


def test_a_resolver_that_hangs_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", fake_lookup({"good": ["127.0.0.1"]}, release))
    with serving(worker(7, 0, 0)) as peer:
        hanging = [Endpoint(f"hangs{i}", 50052) for i in range(50)]
        start = time.monotonic()
        *unresolved, good, numeric = probe([*hanging, Endpoint("good", peer.port), Endpoint("127.0.0.1", peer.port)], 2)
        assert time.monotonic() - start < 2 + SLACK
        release.set()
    assert {status.state for status in unresolved} == {"unresolved"}
    assert "no answer from the resolver within 2 s" in unresolved[0].message
    assert (good.state, numeric.state) == ("ready", "ready")


def test_workers_are_looked_at_until_they_are_ready_and_only_those_that_are_not() -> None:
    looks: dict[Endpoint, int] = {}
    good, late, never = (Endpoint("h", port) for port in (1, 2, 3))

    def look(endpoints: list[Endpoint], *_args: object) -> list[WorkerStatus]:
        found = []
        for endpoint in endpoints:
            looks[endpoint] = looks.get(endpoint, 0) + 1
            ready = endpoint == good or (endpoint == late and looks[endpoint] == 3)
            found.append(WorkerStatus(str(endpoint), "h", endpoint.port, state="ready" if ready else "refused"))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prober, "probe", look)
        patch.setattr(prober, "_LOOK_AGAIN_AFTER_S", 0.01)
        assert [s.state for s in probe_until_ready([good, late], 1, wait=ENOUGH)] == ["ready", "ready"]
        assert (looks[good], looks[late]) == (1, 3)
        assert [s.state for s in probe_until_ready([good, never], 1, wait=0.05)] == ["ready", "refused"]
        looks.clear()
        probe_until_ready([never], 1)
        assert looks == {never: 1}


# The scale test and the descriptor test need a process with its own limits and memory.

ROOT = Path(__file__).resolve().parents[3]
ALONE = rf"""
import json, re, resource, sys, time
def peak():  # not ru_maxrss: a process starts with that of its parent
    return int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1])
sys.path.insert(0, {str(ROOT / ".venv/collections")!r})
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.endpoint import parse_endpoints
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.prober import probe
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.worker_status import summarize
timeout, soft, hard, *texts = json.load(sys.stdin)
endpoints = parse_endpoints(texts)
if hard:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
before, start = peak(), time.monotonic()
result = summarize(probe(endpoints, timeout))
json.dump({{"seconds": time.monotonic() - start, "counts": result["counts"],
           "grown_kib": peak() - before,
           "limit_kept": resource.getrlimit(resource.RLIMIT_NOFILE) == limit}}, sys.stdout)
"""


def probe_alone(timeout: float, endpoints: list[str], soft: int = 0, hard: int = 0) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE],
        input=json.dumps([timeout, soft, hard, *endpoints]),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_500_endpoints_of_which_50_never_answer_take_little_time_and_memory() -> None:
    with many_workers(450) as ready:
        listeners = [socket.create_server(("127.0.0.1", 0), backlog=0) for _number in range(50)]
        clients = []
        try:
            silent = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
            # The queue of half of them is full.
            clients += [socket.create_connection(listener.getsockname()) for listener in listeners[:25]]
            found = probe_alone(ENOUGH, [*silent[:25], *ready, *silent[25:]])
        finally:
            for sock in [*listeners, *clients]:
                sock.close()
    assert found["counts"]["ready"] == 450
    assert found["counts"]["busy"] == 50
    # One after the other, the silent endpoints take 250 s; in parallel, they take a few, even on a busy machine.
    assert found["seconds"] < 50
    assert 0 < found["grown_kib"] < 64 * 1024


@pytest.mark.parametrize(
    ("soft", "hard", "others"),
    [
        pytest.param(64, 4096, 300, id="the-soft-limit-is-raised-and-put-back"),
        pytest.param(64, 64, 300, id="in-waves"),
        # Others are open already, so fewer are free than the prober expects: it learns from the system's refusal.
        pytest.param(9, 9, 40, id="fewer-than-expected"),
    ],
)
def test_few_file_descriptors_are_enough(soft: int, hard: int, others: int) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=500) as listener:
        port = listener.getsockname()[1]
        refused = [f"127.0.{i // 250 + 1}.{i % 250 + 1}:{port}" for i in range(others)]
        found = probe_alone(TIMEOUT, [f"127.0.0.1:{port}", *refused], soft, hard)
    assert found["counts"]["refused"] == others
    assert found["counts"]["busy"] == 1
    assert found["limit_kept"]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["", ":50052"], "names no host"),
        (["host:70000", "host:0", "host:", "host:http", "host:-1", "host:\u0661"], "from 1 to 65535"),
        (["[::1]:5", "::1"], "no IPv6"),
        (["a:b:c", "http://host:1"], r"host\[:port\]"),
        (["a b", "300.1.1.1", "1.2.3", "-host", "a..b", "a" * 64, "\u00fcber:1"], "invalid host"),
        (["0.0.0.0:50052"], "give the address under which"),
    ],
)
def test_a_bad_endpoint_is_named_with_the_remedy(texts: list[str], said: str) -> None:
    for text in texts:
        with pytest.raises(EndpointError, match=said) as caught:
            parse_endpoint(text)
        assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [(" node1 ", Endpoint("node1", 50052)), ("a_b.c-d.example.:65535", Endpoint("a_b.c-d.example.", 65535))],
)
def test_good_endpoints(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint
    assert parse_endpoint(str(endpoint)) == endpoint
    with pytest.raises(EndpointError, match="given twice"):
        parse_endpoints([text, str(endpoint).upper()])


@pytest.mark.parametrize("text", ["", "v7", "7.", "7.0.0.0", "7,0", "1000", "\u0667", "7\n"])
def test_a_bad_protocol_version_is_named_with_the_remedy(text: str) -> None:
    with pytest.raises(ProtocolVersionError, match="write it as '7'"):
        parse_protocol(text)


@given(st.text() | st.text(alphabet=":[].0123456789ab- "))
def test_parse_endpoint_raises_only_its_own_error(text: str) -> None:
    try:
        endpoint = parse_endpoint(text)
    except EndpointError as error:
        assert len(str(error)) < 1000  # noqa: PT017
    else:
        assert parse_endpoint(str(endpoint)) == endpoint


# Replies that begin correctly reach deeper code than random bytes.
REPLIES = st.lists(st.sampled_from([HELLO_7, COUNT_1, MEMORY, struct.pack("<QI", 4, 64)]) | st.binary(max_size=80))


@given(st.sampled_from(protocol.HELLO_FORMS), REPLIES.map(b"".join))
def test_no_bytes_make_the_dialogue_raise_or_ask_for_much(hello: bytes, data: bytes) -> None:
    status = WorkerStatus("h:1", "h", 1)
    dialogue = protocol.dialogue_with(status, hello, (7,))
    try:
        _request, needed = next(dialogue)
        while needed <= len(data):
            assert 0 < needed <= 256
            _request, needed = dialogue.send(data[:needed])
            data = data[needed:]
    except StopIteration as end:
        assert end.value in ("ready", "incompatible")  # noqa: PT017
    except protocol.NotRpcError as error:
        assert "\n" not in str(error)  # noqa: PT017


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chunks=st.lists(st.sampled_from([HELLO_7, COUNT_1, MEMORY, HELLO_7[:9]]) | st.binary(max_size=40), max_size=6),
    pause=st.sampled_from([0.0, 0.0, 0.01]),
    then=st.sampled_from(["close", "reset", "wait"]),
)
def test_no_peer_makes_a_probe_raise_or_run_late(chunks: list[bytes], pause: float, then: str) -> None:
    with serving(sends(*chunks, pause=pause, then=then)) as peer:
        status = look(peer, timeout=0.08)
    assert status.state in ("ready", "busy", "not_rpc")
