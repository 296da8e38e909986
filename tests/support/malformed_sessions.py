# SPDX-License-Identifier: GPL-3.0-or-later
"""Send a worker requests that no client sends: recorded sessions with faults in them."""

from __future__ import annotations

import random
import socket
import struct
import subprocess
import threading
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from support.rpc_session import WIRE_TENSOR, Command

if TYPE_CHECKING:
    from collections.abc import Iterator

# The commands whose answer a client waits for.
ANSWERED = {
    Command.ALLOC_BUFFER, Command.BUFFER_GET_BASE, Command.GET_ALIGNMENT, Command.GET_MAX_SIZE, Command.SET_TENSOR_HASH,
    Command.GET_TENSOR, Command.COPY_TENSOR, Command.GET_DEVICE_MEMORY, Command.GET_ALLOC_SIZE, Command.HELLO,
    Command.DEVICE_COUNT, Command.GET_TENSOR_2D, Command.COMM_INIT,
}  # fmt: skip
# The commands that begin with a buffer's handle, and the offset and number of tensors in commands that have them.
WITH_HANDLE = {Command.BUFFER_GET_BASE, Command.FREE_BUFFER, Command.BUFFER_CLEAR}
WITH_TENSORS = {
    Command.SET_TENSOR: (0, 1), Command.SET_TENSOR_HASH: (0, 1), Command.GET_TENSOR: (0, 1),
    Command.INIT_TENSOR: (0, 1), Command.MEMSET_TENSOR: (0, 1), Command.COPY_TENSOR: (0, 2),
    Command.GET_ALLOC_SIZE: (4, 11), Command.SET_TENSOR_2D: (0, 1), Command.GET_TENSOR_2D: (0, 1),
    Command.COMM_ALLREDUCE: (4, 1),
}  # fmt: skip
SIZE = WIRE_TENSOR.size
# The offsets of fields in a tensor.
TYPE, BUFFER, NE, NB, OP, SRC, DATA = 8, 12, 20, 36, 52, 124, 220
ANSWER_S = 2.0

Message = tuple[int, bytes]


def _tensors(command: int, payload: bytes) -> Iterator[int]:
    """Yield the offsets of a request's tensors."""
    begin, many = WITH_TENSORS.get(Command(command), (0, 0)) if command in set(Command) else (0, 0)
    if command == Command.GRAPH_COMPUTE and len(payload) >= 16:
        (nodes,) = struct.unpack_from("<I", payload, 12)
        begin = 16 + 8 * nodes + 4
        if begin <= len(payload):
            (many,) = struct.unpack_from("<I", payload, begin - 4)
    for number in range(many):
        if begin + (number + 1) * SIZE <= len(payload):
            yield begin + number * SIZE


@dataclass
class Recording:
    """The messages of a client, and the handles and addresses by which it knew buffers."""

    messages: list[Message]
    bases: dict[int, int]  # by handle


def recorded(client: list[str], worker: int) -> Recording:
    """Run a client, whose last argument is to be an endpoint, through a relay to a worker that serves it alone.

    A client connects several times. Only the messages of the last connection count, as that one computes.
    """
    recordings: list[Recording] = []

    def relay(ours: socket.socket) -> None:
        recording = Recording([], {})
        with ours, socket.create_connection(("127.0.0.1", worker)) as theirs:

            def read(sock: socket.socket, size: int) -> bytes:
                found = b""
                while len(found) < size:
                    part = sock.recv(size - len(found))
                    if not part:
                        raise EOFError
                    found += part
                return found

            with suppress(EOFError, ConnectionError):
                while True:
                    head = read(ours, 9)
                    command, size = struct.unpack("<BQ", head)
                    payload = read(ours, size)
                    theirs.sendall(head + payload)
                    recording.messages.append((command, payload))
                    if command in ANSWERED:
                        head = read(theirs, 8)
                        answer = read(theirs, struct.unpack("<Q", head)[0])
                        ours.sendall(head + answer)
                        if command == Command.ALLOC_BUFFER:
                            recording.bases[struct.unpack_from("<Q", answer)[0]] = 0
                        if command == Command.BUFFER_GET_BASE:
                            recording.bases[struct.unpack("<Q", payload)[0]] = struct.unpack("<Q", answer)[0]
        recordings.append(recording)

    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        process = subprocess.Popen(
            [*client, f"127.0.0.1:{server.getsockname()[1]}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        server.settimeout(0.1)
        threads = []
        while process.poll() is None:
            with suppress(TimeoutError):
                threads.append(threading.Thread(target=relay, args=(server.accept()[0],)))
                threads[-1].start()
        for thread in threads:
            thread.join()
    assert process.returncode == 0
    return max(recordings, key=lambda recording: len(recording.messages))


# The possible faults in a tensor: a wrong field, or fields copied from another tensor of the same request.
FIELDS = [
    (TYPE, 1, list(range(45))),
    (NE, 4, [0, 1, 7, 8, 31, 32, 256, 1 << 20]),
    (NB, 4, [0, 1, 18, 34, 144, 1 << 16]),
    (OP, 1, [0, 1, 2, 5, 29, 30, 33, 34, 35, 36, 37, 38, 39, 40, 42, 95]),
]
SHARED = [[(DATA, 8)], [(BUFFER, 8), (DATA, 8), (TYPE, 4), (NE, 16), (NB, 16)]]
MOVES = [-64, -1, 1, 16, 18, 64, 144, 4096]


def _spoil_tensor(rng: random.Random, payload: bytearray, places: list[int]) -> None:
    at, other = rng.choice(places), rng.choice(places)
    kind = rng.randrange(8)
    if kind < len(FIELDS):
        field, many, values = FIELDS[kind]
        struct.pack_into("<I", payload, at + field + 4 * rng.randrange(many), rng.choice(values))
    elif kind < 6:
        for field, size in SHARED[kind - 4]:
            payload[at + field : at + field + size] = payload[other + field : other + field + size]
    elif kind == 6:
        source = at + SRC + 8 * rng.randrange(3)
        payload[source : source + 8] = payload[other : other + 8]
    else:
        (data,) = struct.unpack_from("<Q", payload, at + DATA)
        struct.pack_into("<Q", payload, at + DATA, max(0, data + rng.choice(MOVES)) if data else 0)


def _spoil(rng: random.Random, command: int, payload: bytearray) -> tuple[int, bytes]:
    """Change something in a request."""
    places = list(_tensors(command, bytes(payload)))
    kind = rng.randrange(12)
    if kind < 8 and places:
        _spoil_tensor(rng, payload, places)
    elif kind < 10 and payload:
        for _byte in range(rng.choice([1, 1, 4])):
            payload[rng.randrange(min(len(payload), 4096))] = rng.randrange(256)
    elif kind == 10:
        del payload[rng.randrange(len(payload) + 1) :]
    else:
        command = rng.randrange(25)
    return command, bytes(payload)


def _unasked(rng: random.Random, weights: list[bytes], uids: list[int]) -> list[Message]:
    """Return valid requests about weights that no client sends: they read, partly write, copy and free weights."""
    tensor, other = bytearray(rng.choice(weights)), rng.choice(weights)
    kind = rng.randrange(10)
    if kind == 0:
        return [(Command.GET_TENSOR, tensor + struct.pack("<QQ", rng.choice([0, 18, 36]), rng.choice([1, 100, 2304])))]
    if kind == 1:
        data = rng.randbytes(rng.choice([1, 18, 144, 2304]))
        return [(Command.SET_TENSOR, tensor + struct.pack("<BQ", 0, rng.choice([0, 18, 144, 1000])) + data)]
    if kind == 2:
        return [(Command.COPY_TENSOR, bytes(tensor) + other)]
    if kind == 3:
        return [(Command.MEMSET_TENSOR, tensor + struct.pack("<QQB", rng.choice([0, 64]), rng.choice([1, 2304]), 7))]
    if kind == 4:
        return [(rng.choice([Command.FREE_BUFFER, Command.BUFFER_CLEAR]), bytes(tensor[BUFFER : BUFFER + 8]))]
    if kind == 5:
        # Put another shape in the weight's place, over this weight and over the next.
        struct.pack_into("<4I4I", tensor, NE, 256, rng.choice([8, 24, 64]), 1, 1, 18, 144, 144 * 64, 144 * 64)
        struct.pack_into("<I", tensor, TYPE, 2)
        return [(Command.SET_TENSOR, tensor + struct.pack("<BQ", 0, 0) + rng.randbytes(rng.choice([1152, 3456, 9216])))]
    if kind in (6, 7):
        count, stride = rng.choice([1, 2, 4]), rng.choice([0, 18, 36, 144])
        rows = struct.pack("<4Q", rng.choice([0, 18, 1000]), 18, rng.choice([count, 1 << 40]), stride)
        if kind == 6:
            return [(Command.GET_TENSOR_2D, bytes(tensor) + rows)]
        return [(Command.SET_TENSOR_2D, bytes(tensor) + rows + rng.randbytes(18 * count))]
    if kind == 8:
        link = struct.pack("<4I64s", 0, rng.randrange(2), 2, 1, b"127.0.0.1")
        reduce = (Command.COMM_ALLREDUCE, struct.pack("<I", 0) + bytes(tensor))
        return [(Command.COMM_INIT, link), *rng.choice([[], [reduce], [(Command.COMM_FREE, struct.pack("<I", 0))]])]
    return [(Command.GRAPH_RECOMPUTE, struct.pack("<IQ", 0, rng.choice(uids)))] * 2


def spoilt(recording: Recording, seed: int) -> list[Message]:
    """Return the session with one to five things wrong, the same for the same seed."""
    rng = random.Random(seed)
    messages = list(recording.messages)
    weights = [payload[:SIZE] for command, payload in messages if command == Command.SET_TENSOR]
    uids = [
        struct.unpack_from("<Q", payload, 4)[0] for command, payload in messages if command == Command.GRAPH_COMPUTE
    ]
    computing = next(i for i, (command, _payload) in enumerate(messages) if command == Command.GRAPH_COMPUTE)
    for _fault in range(rng.randint(1, 5)):
        # Half of the faults come once the weights are there.
        at = rng.randrange(computing if rng.random() < 0.5 else 1, len(messages))
        kind = rng.randrange(8)
        if kind < 4:
            command, payload = messages[at]
            messages[at] = _spoil(rng, command, bytearray(payload))
        elif kind < 6:
            messages[at:at] = _unasked(rng, weights, uids)
        elif kind == 6:
            messages.insert(at, rng.choice(messages[1:]))
        else:
            del messages[at]
    return messages


class _Client:
    """A client that sends recorded messages, with a worker's own buffers in place of the recorded ones."""

    def __init__(self, sock: socket.socket, recording: Recording) -> None:
        self.sock, self.recording = sock, recording
        self.handles: dict[int, int] = {}
        self.bases: dict[int, int] = {}
        self.to_come = iter(list(recording.bases))

    def read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self.sock.recv(min(size - len(found), 1 << 20))
            if not part:
                raise EOFError
            found += part
        return found

    def address(self, recorded_address: int) -> int:
        """Return the worker's address for a recorded one, from the buffer that begins before it or shortly after."""
        near = [(base, handle) for handle, base in self.recording.bases.items() if 0 < base <= recorded_address + 64]
        if not recorded_address or not near:
            return recorded_address
        base, handle = max(near)
        return (recorded_address - base + self.bases.get(handle, base)) % 2**64

    def own(self, command: int, payload: bytes) -> bytes:
        changed = bytearray(payload)
        places = [0] if command in WITH_HANDLE and len(payload) >= 8 else []
        for at in places + [tensor + BUFFER for tensor in _tensors(command, payload)]:
            (handle,) = struct.unpack_from("<Q", changed, at)
            struct.pack_into("<Q", changed, at, self.handles.get(handle, handle))
        for at in _tensors(command, payload):
            (data,) = struct.unpack_from("<Q", changed, at + DATA)
            struct.pack_into("<Q", changed, at + DATA, self.address(data))
        return bytes(changed)

    def send(self, command: int, payload: bytes) -> None:
        sent = self.own(command, payload)
        self.sock.sendall(struct.pack("<BQ", command, len(sent)) + sent)
        if command not in ANSWERED:
            return
        answer = self.read(min(struct.unpack("<Q", self.read(8))[0], 1 << 24))
        if command == Command.ALLOC_BUFFER and len(answer) == 16:
            self.handles[next(self.to_come, 0)] = struct.unpack_from("<Q", answer)[0]
        if command == Command.BUFFER_GET_BASE and len(answer) == 8 and len(payload) == 8:
            self.bases[struct.unpack("<Q", payload)[0]] = struct.unpack("<Q", answer)[0]


def send(port: int, recording: Recording, messages: list[Message]) -> None:
    """Send these messages to a worker on this loopback port, as far as it takes them."""
    with closing(socket.create_connection(("127.0.0.1", port))) as sock:
        sock.settimeout(ANSWER_S)
        client = _Client(sock, recording)
        with suppress(EOFError, ConnectionError, TimeoutError):
            for command, payload in messages:
                client.send(command, payload)
