# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-ins for many RPC workers, on loopback: they speak only the handshake, of protocol 7.0.0 by default."""

from __future__ import annotations

import asyncio
import struct
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.worker_status import WorkerStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

# The answers of a worker with one device: to HELLO, DEVICE_COUNT and GET_DEVICE_MEMORY.
HELLO_7 = struct.pack("<Q4B24x", 28, 7, 0, 0, 0)
COUNT_1 = struct.pack("<QI", 4, 1)
MEMORY = struct.pack("<QQQ", 16, 5, 9)
_LIMIT_S = 20


def status(endpoint: str, state: str = "ready", protocol: str | None = "7.0.0", *free: int) -> WorkerStatus:
    """Return what a probe says of a worker, with a device for each number of free bytes."""
    host, port = endpoint.split(":")
    version = None
    if protocol and state in ("ready", "incompatible"):
        major, minor, patch = (int(part) for part in protocol.split("."))
        version = {"version": protocol, "major": major, "minor": minor, "patch": patch}
    devices = [{"index": i, "memory_free_bytes": n, "memory_total_bytes": n} for i, n in enumerate(free or (1000,))]
    return WorkerStatus(
        endpoint, host, int(port), host, state, state == "ready", version, devices, f"{endpoint} is {state}."
    )


@contextmanager
def many_workers(count: int, major: int = 7) -> Iterator[list[str]]:
    """Answer as a worker of a major version of the protocol, from 4 on, on so many ports; yield their endpoints."""
    endpoints: list[str] = []
    up, loop = threading.Event(), asyncio.new_event_loop()
    over = asyncio.Event()
    hello = HELLO_7.replace(bytes([7]), bytes([major]))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            for size, reply in ((33, hello), (9, COUNT_1), (13, MEMORY), (1, b"")):
                await reader.readexactly(size)
                writer.write(reply)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def main() -> None:
        servers = [await asyncio.start_server(serve, "127.0.0.1", 0) for _number in range(count)]
        endpoints.extend(f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers)
        up.set()
        await over.wait()
        for server in servers:
            server.close()
            await server.wait_closed()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    try:
        assert up.wait(_LIMIT_S)
        yield endpoints
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(_LIMIT_S)
        loop.close()
