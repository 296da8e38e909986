# SPDX-License-Identifier: GPL-3.0-or-later
"""Talk to an RPC worker of protocol 8 as a client does, request by request.

llama.cpp's own clients only do what inference needs. A worker must answer any other request correctly, or refuse it.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count

import gguf
import numpy as np

LIMIT_S = 20
Type = gguf.GGMLQuantizationType


class Command(IntEnum):
    """Upstream's rpc_cmd."""

    ALLOC_BUFFER = 0
    GET_ALIGNMENT = 1
    GET_MAX_SIZE = 2
    BUFFER_GET_BASE = 3
    FREE_BUFFER = 4
    BUFFER_CLEAR = 5
    SET_TENSOR = 6
    SET_TENSOR_HASH = 7
    GET_TENSOR = 8
    COPY_TENSOR = 9
    GRAPH_COMPUTE = 10
    GET_DEVICE_MEMORY = 11
    INIT_TENSOR = 12
    GET_ALLOC_SIZE = 13
    HELLO = 14
    DEVICE_COUNT = 15
    GRAPH_RECOMPUTE = 16
    MEMSET_TENSOR = 17
    SET_TENSOR_2D = 18
    GET_TENSOR_2D = 19
    COMM_INIT = 20
    COMM_ALLREDUCE = 21
    COMM_FREE = 22


class Op(IntEnum):
    """Some of upstream's ggml_op."""

    NONE = 0
    ACC = 5
    MUL_MAT = 29
    MUL_MAT_ID = 30
    SET = 33
    CPY = 34
    CONT = 35
    RESHAPE = 36
    VIEW = 37
    GET_ROWS = 40
    SET_ROWS = 42
    SSM_SCAN = 77
    GATED_DELTA_NET = 86
    MAP_CUSTOM1 = 92
    MAP_CUSTOM2 = 93
    MAP_CUSTOM3 = 94
    CUSTOM = 95
    COUNT = 101


# Nodes with this flag are computed.
COMPUTE = 16
# Upstream's tensor on the wire: id, type, buffer, ne, nb, op, op_params, flags, src, view_src, view_offs, data, name,
# use_count.
WIRE_TENSOR = struct.Struct("<QIQ4I4II64si10QQQQ64si")
NUMPY = {Type.F32: np.float32, Type.I32: np.int32, Type.I64: np.int64}


class WorkerClosedError(ConnectionError):
    """The worker ended the connection, which is how it refuses a request."""


@dataclass(frozen=True)
class Buffer:
    handle: int
    base: int
    size: int


@dataclass(eq=False)
class Tensor:
    """A tensor. `ne` is as in upstream's code, with the length of a row first."""

    type: Type
    ne: tuple[int, ...]
    buffer: Buffer | None = None
    data: int = 0
    op: Op = Op.NONE
    src: tuple[Tensor, ...] = ()
    view_src: Tensor | None = None
    view_offs: int = 0
    nb: tuple[int, ...] = ()
    name: str = ""
    params: bytes = b""
    flags: int = 0
    id: int = field(default_factory=count(1).__next__)

    def __post_init__(self) -> None:
        self.ne = (*self.ne, *([1] * (4 - len(self.ne))))
        if not self.nb:
            block, size = gguf.GGML_QUANT_SIZES[self.type]
            row = self.ne[0] // block * size
            self.nb = (size, row, row * self.ne[1], row * self.ne[1] * self.ne[2])

    @property
    def nbytes(self) -> int:
        return self.nb[3] * self.ne[3]

    def wire(self) -> bytes:
        src = [source.id for source in self.src]
        return WIRE_TENSOR.pack(
            self.id, self.type, self.buffer.handle if self.buffer else 0, *self.ne, *self.nb, self.op, self.params,
            self.flags, *src, *([0] * (10 - len(src))), self.view_src.id if self.view_src else 0, self.view_offs,
            self.data, self.name.encode(), 1,
        )  # fmt: skip


class Session:
    """A client's connection. Close it after use, because a worker serves one client at a time."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((address, port), LIMIT_S)
        self.close = self.socket.close
        self.uid = 0
        self.uid_of_device: dict[int, int] = {}
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.request(Command.HELLO, bytes(24), answer=28)
        except BaseException:
            self.close()
            raise

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            try:
                part = self.socket.recv(size - len(found))
            except ConnectionError as error:
                raise WorkerClosedError from error
            if not part:
                raise WorkerClosedError
            found += part
        return bytes(found)

    def send(self, command: int, payload: bytes) -> None:
        try:
            self.socket.sendall(struct.pack("<BQ", command, len(payload)) + payload)
        except ConnectionError as error:
            raise WorkerClosedError from error

    def request(self, command: int, payload: bytes, *, answer: int | None = None) -> bytes:
        """Send a request that has an answer, and return the answer, which must have so many bytes if that is given."""
        self.send(command, payload)
        (size,) = struct.unpack("<Q", self._read(8))
        assert answer in (None, size)
        return self._read(size)

    def alloc(self, size: int, device: int = 0) -> Buffer:
        asked = struct.pack("<IQ", device, size)
        handle, got = struct.unpack("<QQ", self.request(Command.ALLOC_BUFFER, asked, answer=16))
        (base,) = struct.unpack("<Q", self.request(Command.BUFFER_GET_BASE, struct.pack("<Q", handle), answer=8))
        return Buffer(handle, base, got)

    def free(self, buffer: Buffer) -> None:
        self.send(Command.FREE_BUFFER, struct.pack("<Q", buffer.handle))

    def clear(self, buffer: Buffer, value: int = 0) -> None:
        self.send(Command.BUFFER_CLEAR, struct.pack("<QB", buffer.handle, value))

    def set(self, tensor: Tensor, data: bytes, offset: int = 0, *, keep: bool = False) -> None:
        self.send(Command.SET_TENSOR, tensor.wire() + struct.pack("<BQ", keep, offset) + data)

    def set_by_hash(self, tensor: Tensor, data: bytes) -> bool:
        """Return whether the worker had the data in its cache."""
        asked = tensor.wire() + struct.pack("<QQ", 0, fnv_1a(data))
        return bool(self.request(Command.SET_TENSOR_HASH, asked, answer=1)[0])

    def get(self, tensor: Tensor, offset: int = 0, size: int | None = None) -> bytes:
        size = tensor.nbytes - offset if size is None else size
        return self.request(Command.GET_TENSOR, tensor.wire() + struct.pack("<QQ", offset, size), answer=size)

    def copy(self, source: Tensor, target: Tensor) -> None:
        self.request(Command.COPY_TENSOR, source.wire() + target.wire(), answer=1)

    def memset(self, tensor: Tensor, value: int, offset: int, size: int) -> None:
        self.send(Command.MEMSET_TENSOR, tensor.wire() + struct.pack("<QQB", offset, size, value))

    def compute(self, *nodes: Tensor, device: int = 0) -> None:
        known: dict[int, Tensor] = {}

        def visit(tensor: Tensor) -> None:
            if tensor.id not in known:
                known[tensor.id] = tensor
                for other in (*tensor.src, *([tensor.view_src] if tensor.view_src else [])):
                    visit(other)

        for node in nodes:
            node.flags = COMPUTE
            visit(node)
        self.uid += 1
        self.uid_of_device[device] = self.uid
        numbers = (device, self.uid, len(nodes), *(node.id for node in nodes), len(known))
        payload = struct.pack(f"<IQI{len(nodes)}QI", *numbers)
        self.send(Command.GRAPH_COMPUTE, payload + b"".join(tensor.wire() for tensor in known.values()))

    def recompute(self, device: int = 0, uid: int | None = None) -> None:
        """Have a graph computed again: the device's last one, or the one with this number, which counts from 1."""
        asked = self.uid_of_device[device] if uid is None else uid
        self.send(Command.GRAPH_RECOMPUTE, struct.pack("<IQ", device, asked))

    def set_rows(self, tensor: Tensor, rows: bytes, offset: int, size: int, stride: int) -> None:
        """Store rows of `size` bytes, `stride` bytes apart in the tensor."""
        self.send(
            Command.SET_TENSOR_2D, tensor.wire() + struct.pack("<4Q", offset, size, len(rows) // size, stride) + rows
        )

    def get_rows(self, tensor: Tensor, offset: int, size: int, count: int, stride: int) -> bytes:
        return self.request(
            Command.GET_TENSOR_2D, tensor.wire() + struct.pack("<4Q", offset, size, count, stride), answer=size * count
        )

    def values(self, tensor: Tensor) -> np.ndarray:
        return np.frombuffer(self.get(tensor), NUMPY[tensor.type]).reshape(tensor.ne[::-1]).copy()


class Arena:
    """Places for tensors in one buffer, one after another."""

    def __init__(self, session: Session, size: int, device: int = 0) -> None:
        self.buffer = session.alloc(size, device)
        self.used = 0

    def place(self, kind: Type, *ne: int, name: str = "", op: Op = Op.NONE, src: tuple[Tensor, ...] = ()) -> Tensor:
        tensor = Tensor(kind, ne, self.buffer, self.buffer.base + self.used, op=op, src=src, name=name)
        self.used += -(-tensor.nbytes // 64) * 64
        assert self.used <= self.buffer.size
        return tensor


def view(tensor: Tensor, kind: Type, ne: tuple[int, ...], offset: int = 0, op: Op = Op.VIEW) -> Tensor:
    return Tensor(
        kind, ne, tensor.buffer, tensor.data + offset, op=op, src=(tensor,), view_src=tensor, view_offs=offset
    )


def fnv_1a(data: bytes) -> int:
    """Return the hash by which the worker's cache names this data."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return value
