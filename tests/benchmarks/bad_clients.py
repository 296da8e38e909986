# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure how misbehaving clients slow down others at a gateway: floods, half requests, a thousand slow readers.

The groups are stand-ins that compute nothing and take 20 ms for a token. HAProxy is real, with the configuration of
role llama_gateway. Four clients ask again and again for answers of ten tokens. The benchmark takes the 95th percentile
of their answers' times before and while one kind of client misbehaves in a separate process, first from one address and
then from fifty. Misbehaving clients with a valid key share a key of their own, which may have two requests under way.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.balancing import answer, described, p95, resident_mib
from benchmarks.measure import CACHE, asked, machine, machine_line, run_to_end, say, table
from support.gateway import CLIENT_KEY, running_gateway
from support.stand_in_groups import StandIn, StandIns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

GROUPS, CLIENTS, TOKENS, TOKEN_S = 4, 4, 10, 0.02
ADDRESSES = (1, 50)
MOST_TIMES = 1.5
BAD_KEY = "key-of-who-misbehaves"
# Pause between two requests of a misbehaving client. All processes share two cores, and more requests would only
# measure these cores.
PAUSE_S = 0.05
HEAD = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {BAD_KEY}\r\n"


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], AbstractAsyncContextManager[Connection]]


@asynccontextmanager
async def connected(port: int, address: str) -> AsyncIterator[Connection]:
    """Yield a connection from an address of this machine, and close it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0), limit=1000)
    try:
        yield reader, writer
    finally:
        writer.close()


async def say_once(connect: Connect, data: bytes) -> None:
    """Send data over a new connection, and wait until an answer begins."""
    async with connect() as (reader, writer):
        writer.write(data)
        await asyncio.wait_for(reader.read(100), 20)


async def half_a_body(connect: Connect) -> None:
    await say_once(connect, f'{HEAD}Content-Length: 10000\r\n\r\n{{"model": "noise", '.encode() + b" " * 5000)


async def a_body_of_100_mb(connect: Connect) -> None:
    async with connect() as (reader, writer):
        writer.write(f"{HEAD}Content-Length: 100000000\r\n\r\n".encode())
        for _part in range(100):
            writer.write(b" " * 1_000_000)
            await writer.drain()
        await reader.read(100)


async def no_json(connect: Connect) -> None:
    await say_once(connect, f"{HEAD}Connection: close\r\nContent-Length: 60000\r\n\r\n".encode() + b"x" * 60000)


async def floods_of_headers(connect: Connect) -> None:
    await say_once(
        connect, (HEAD + "".join(f"X-{number}: {'y' * 100}\r\n" for number in range(500))).encode() + b"\r\n"
    )


async def half_a_header(connect: Connect) -> None:
    await say_once(connect, b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"y" * 560_000)


async def idle(connect: Connect) -> None:
    await say_once(connect, b"")


async def keep_asking_for_health(connect: Connect) -> None:
    async with connect() as (reader, writer):
        while True:
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            if not await asyncio.wait_for(reader.read(1000), 20):
                return
            await asyncio.sleep(PAUSE_S)


async def slow_reader(connect: Connect) -> None:
    body = json.dumps({"model": "noise", "prompt": "long", "max_tokens": 100_000, "stream": True})
    async with connect() as (reader, writer):
        writer.write(f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        while await reader.read(1):
            await asyncio.sleep(1)


# How many clients of each kind there are at a time, and what each does.
KINDS: dict[str, tuple[int, Callable[[Connect], Coroutine[None, None, None]]]] = {
    "ask for /health again and again": (8000, keep_asking_for_health),
    "send half a header, of 560 KB": (400, half_a_header),
    "send half a body": (1000, half_a_body),
    "send a body of 100 MB": (8, a_body_of_100_mb),
    "send a body that is not JSON": (8, no_json),
    "send 500 headers": (8, floods_of_headers),
    "connect and send nothing": (1000, idle),
    "read a byte a second": (1000, slow_reader),
}


def misbehave(kind: str, port: int, addresses: int) -> None:
    """Run all clients of one kind until the process is ended."""
    count, once = KINDS[kind]
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    async def again(number: int) -> None:
        # 127.0.0.1 is the address of the clients that behave.
        connect = partial(connected, port, f"127.0.1.{number % addresses + 1}")
        while True:
            # The gateway is meant to refuse these requests, cut them off, or stay silent.
            with suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
                await once(connect)
            await asyncio.sleep(PAUSE_S)

    async def all_of_them() -> None:
        await asyncio.gather(*(again(number) for number in range(count)))

    asyncio.run(all_of_them())


async def answers(port: int, seconds: float) -> list[float]:
    """Let clients ask again and again; return the seconds that each answer took."""
    found: list[float] = []
    deadline = time.monotonic() + seconds

    async def ask() -> None:
        while time.monotonic() < deadline:
            whole, _served = await answer(port, CLIENT_KEY, TOKENS)
            found.append(whole)

    await asyncio.gather(*(ask() for _number in range(CLIENTS)))
    return found


def measured(port: int, kind: str, addresses: int, seconds: float) -> dict[str, float]:
    """Return the 95th percentile of the others' answers before and while clients of a kind misbehave, in ms."""
    before = p95(asyncio.run(answers(port, seconds)))
    process = multiprocessing.get_context("spawn").Process(target=misbehave, args=(kind, port, addresses))
    process.start()
    try:
        time.sleep(2)
        now = p95(asyncio.run(answers(port, seconds)))
        if not process.is_alive():
            raise RuntimeError(f"Those that {kind} have ended by themselves.")
    finally:
        process.terminate()
        process.join()
    return {"before_ms": 1000 * before, "p95_ms": 1000 * now, "times": now / before}


def main() -> int:
    args = asked(__doc__, "each kind for a second: only that it runs", rounds=1)
    seconds = 1.0 if args.smoke else 8.0
    say(f"{CLIENTS} clients before {GROUPS} groups, beside each kind of others for {seconds:.0f} s")
    groups = [StandIn(f"group{number}", token_s=TOKEN_S) for number in range(GROUPS)]
    keys = [{"name": "first", "key": CLIENT_KEY}, {"name": "bad", "key": BAD_KEY, "requests": 2}]
    cases = {}
    with tempfile.TemporaryDirectory(prefix="bad-") as folder, StandIns(groups):
        told = [described(group) for group in groups]
        with running_gateway(Path(folder), told, llama_gateway_api_keys=keys) as gateway:
            time.sleep(2)
            for kind in KINDS:
                for addresses in ADDRESSES:
                    cases[f"{kind}, from {addresses}"] = {
                        "clients": KINDS[kind][0],
                        **measured(gateway.port, kind, addresses, seconds),
                        "memory_mib": resident_mib(gateway.process.pid),
                    }
    rows = [
        (
            f"{case['clients']} that {kind}",
            *(f"{case[name]:.0f}" for name in ("before_ms", "p95_ms")),
            f"{case['times']:.2f}",
            f"{case['memory_mib']:.0f}",
        )
        for kind, case in cases.items()
    ]
    facts = machine()
    head = (
        "clients that misbehave",
        "p95 before, ms",
        "p95 beside them, ms",
        "times as before",
        "HAProxy's memory, MiB",
    )
    print(f"\n{machine_line(facts)}\n\n{table(head, rows)}")
    missed = [kind for kind, case in cases.items() if case["times"] > MOST_TIMES]
    print(f"\n{'Missed: ' + ', '.join(missed) if missed else 'Met'}: at most {MOST_TIMES} times as before.")
    output = CACHE / "benchmarks/bad_clients/bad_clients.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"machine": facts, "cases": cases}, indent=2) + "\n")
    print(f"All of it: {output}")
    return 1 if missed and not args.smoke else 0


if __name__ == "__main__":
    run_to_end(main)
