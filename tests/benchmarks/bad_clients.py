# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure how misbehaving clients slow down others at a gateway: half bodies, floods, a thousand idle connections.

The groups are stand-ins that compute nothing and take 20 ms for a token. HAProxy is real, with the configuration of
role llama_gateway. Four clients ask again and again for answers of ten tokens. The benchmark takes the 95th percentile
of their answers' times before and while one kind of client misbehaves in a separate process. Misbehaving clients with a
valid key share a key of their own, which may have two requests under way.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.balancing import NO_LIMITS, answer, described, p95
from benchmarks.measure import CACHE, asked, machine, machine_line, run_to_end, say, table
from support.gateway import CLIENT_KEY, running_gateway
from support.stand_in_groups import StandIn, StandIns

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

GROUPS, CLIENTS, TOKENS, TOKEN_S = 4, 4, 10, 0.02
MOST_TIMES = 1.5
BAD_KEY = "key-of-who-misbehaves"
# Pause between two requests of a misbehaving client. All processes share two cores, and more requests would only
# measure these cores.
PAUSE_S = 0.05
HEAD = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {BAD_KEY}\r\n"


async def say_once(port: int, data: bytes, wait_s: float = 20) -> bytes:
    """Send data over a new connection, and return how the answer begins."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(100), wait_s)
    finally:
        writer.close()


async def half_a_body(port: int) -> None:
    await say_once(port, f'{HEAD}Content-Length: 10000\r\n\r\n{{"model": "noise", '.encode() + b" " * 5000)


async def a_body_of_100_mb(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{HEAD}Content-Length: 100000000\r\n\r\n".encode())
        for _part in range(100):
            writer.write(b" " * 1_000_000)
            await writer.drain()
    finally:
        writer.close()
        await reader.read(100)


async def no_json(port: int) -> None:
    await say_once(port, f"{HEAD}Connection: close\r\nContent-Length: 60000\r\n\r\n".encode() + b"x" * 60000)


async def floods_of_headers(port: int) -> None:
    await say_once(port, (HEAD + "".join(f"X-{number}: {'y' * 100}\r\n" for number in range(500))).encode() + b"\r\n")


async def idle(port: int) -> None:
    await say_once(port, b"")


async def slow_reader(port: int) -> None:
    body = json.dumps({"model": "noise", "prompt": "long", "max_tokens": 100_000, "stream": True})
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    try:
        writer.write(f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        while await reader.read(1):
            await asyncio.sleep(1)
    finally:
        writer.close()


# How many clients of each kind there are at a time, and what each does.
KINDS: dict[str, tuple[int, Callable[[int], Coroutine[None, None, None]]]] = {
    "half a body": (200, half_a_body),
    "bodies of 100 MB": (8, a_body_of_100_mb),
    "bodies that are no JSON": (8, no_json),
    "500 headers": (8, floods_of_headers),
    "idle connections": (1000, idle),
    "readers of a byte a second": (16, slow_reader),
}


def misbehave(kind: str, port: int) -> None:
    """Run all clients of one kind until the process is ended."""
    count, once = KINDS[kind]

    async def again() -> None:
        while True:
            # The gateway is meant to refuse these requests, cut them off, or stay silent.
            with suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
                await once(port)
            await asyncio.sleep(PAUSE_S)

    async def all_of_them() -> None:
        await asyncio.gather(*(again() for _number in range(count)))

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


def measured(port: int, kind: str, seconds: float) -> dict[str, float]:
    """Return the 95th percentile of the others' answers before and while clients of a kind misbehave, in ms."""
    before = p95(asyncio.run(answers(port, seconds)))
    process = multiprocessing.get_context("spawn").Process(target=misbehave, args=(kind, port))
    process.start()
    try:
        time.sleep(2)
        now = p95(asyncio.run(answers(port, seconds)))
        if not process.is_alive():
            raise RuntimeError(f"What does {kind} has ended by itself.")
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
        with running_gateway(Path(folder), told, **{**NO_LIMITS, "llama_gateway_api_keys": keys}) as gateway:
            time.sleep(2)
            for kind in KINDS:
                cases[kind] = measured(gateway.port, kind, seconds)
    rows = [
        (f"{KINDS[kind][0]}: {kind}", f"{case['before_ms']:.0f}", f"{case['p95_ms']:.0f}", f"{case['times']:.2f}")
        for kind, case in cases.items()
    ]
    facts = machine()
    head = ("clients that misbehave", "p95 before, ms", "p95 beside them, ms", "times as before")
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
