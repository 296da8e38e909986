# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the part of llama.cpp's RPC protocol that looks at a worker, without any input or output.

A dialogue yields (bytes to send, number of bytes it needs next) and returns a state.
"""

from __future__ import annotations

import re
import struct
from typing import Generator, Tuple

from .worker_status import WorkerStatus

# Commands of ggml-rpc.cpp (`enum rpc_cmd`): one byte, the payload's size as u64, the payload; all little-endian.
_DEVICE_MEMORY = 11
_HELLO = 14
_DEVICE_COUNT = 15
_NAMES = {_DEVICE_MEMORY: "GET_DEVICE_MEMORY", _HELLO: "HELLO", _DEVICE_COUNT: "DEVICE_COUNT"}


def _request(command: int, payload: bytes = b"") -> bytes:
    return struct.pack("<BQ", command, len(payload)) + payload


# From protocol 4 on HELLO carries 24 bytes of transport capabilities: zeros ask for plain TCP. A server of either kind
# closes the connection when it gets the other form.
HELLO_FORMS = (_request(_HELLO, bytes(24)), _request(_HELLO))
HEADER_SIZE = 8
_HELLO_SIZES = range(3, 257)
# The newest protocol that tests of this collection speak.
NEWEST_TESTED = (8, 0, 0)
# Upstream's own limit is 16 devices on all workers together.
_DEVICE_LIMIT = 64
# Line-based servers (HTTP among them) wait for a line end before they answer. This valid request has two, so such a
# server answers it. It asks for a device that no worker can have, so a worker ends the session.
NUDGE = _request(_DEVICE_MEMORY, b"\r\n\r\n")
Dialogue = Generator[Tuple[bytes, int], bytes, str]


class ProtocolVersionError(ValueError):
    """A text is no protocol version; the message is one sentence with the remedy."""


class NotRpcError(Exception):
    """The peer's answer breaks the protocol."""


def parse_protocol(text: str) -> tuple[int, ...]:
    """Parse `7`, `7.0` or `7.0.0`; raises ProtocolVersionError."""
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3}){0,2}", text):
        raise ProtocolVersionError(f"{text[:100]!r} is not a protocol version: write it as '7', '7.0' or '7.0.0'")
    return tuple(int(part) for part in text.split("."))


def dialogue_with(status: WorkerStatus, hello: bytes, expected: tuple[int, ...]) -> Dialogue:
    """Greet a worker, ask for its devices, and put its answers into `status`; return its state."""
    reply = yield from _ask(hello, _HELLO_SIZES)
    version = tuple(reply[:3])
    major, minor, patch = version
    status.protocol = {"version": f"{major}.{minor}.{patch}", "major": major, "minor": minor, "patch": patch}
    if version[: len(expected)] != expected:
        return "incompatible"
    # Up to protocol 2 a worker is one device: there is no count, and the request has no number.
    requests = [_request(_DEVICE_MEMORY)]
    if major >= 3:
        (count,) = struct.unpack("<I", (yield from _ask(_request(_DEVICE_COUNT), range(4, 5))))
        if not 1 <= count <= _DEVICE_LIMIT:
            raise NotRpcError(f"it claims to have {count} devices")
        requests = [_request(_DEVICE_MEMORY, struct.pack("<I", index)) for index in range(count)]
    for index, request in enumerate(requests):
        free, total = struct.unpack("<QQ", (yield from _ask(request, range(16, 17))))
        status.devices.append({"index": index, "memory_free_bytes": free, "memory_total_bytes": total})
    return "ready"


def _ask(request: bytes, sizes: range) -> Generator[tuple[bytes, int], bytes, bytes]:
    header = yield request, HEADER_SIZE
    (size,) = struct.unpack("<Q", header)
    if size not in sizes:
        what = f'"{header.decode("ascii")}"' if re.fullmatch(rb"[ -~]+", header) else f"a size field of {size}"
        raise NotRpcError(f"it answered {_NAMES[request[0]]} with {what}")
    return (yield b"", size)
