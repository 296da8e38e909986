# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure how long requests wait at a gateway before many groups of unlike speed, and the gateway's own cost.

The groups are stand-ins that compute nothing: each has two slots and a given time for a token. HAProxy is real, with
the configuration of role llama_gateway. Two further cases remove the slots from that configuration and use `balance
leastconn` and `balance roundrobin`, so that requests wait at the groups. The wait in one ideal queue before all slots
is computed from the same requests. A wait is the time of an answer without the time in which its group worked on it.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import random
import re
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import CACHE, asked, machine, machine_line, run_to_end, say, table
from support.gateway import CLIENT_KEY, Gateway, running_gateway
from support.stand_in_groups import StandIn, StandIns

if TYPE_CHECKING:
    from collections.abc import Callable

SLOTS = 2
TOKENS = (10, 50)
TOKEN_S = (0.02, 0.04, 0.06, 0.08)
MOST_TIMES_IDEAL = 1.2
HOLD_LIMIT_S = 120
PATH = "/v1/completions"
NO_LIMITS = {
    "llama_gateway_queue_length": 100_000,
    "llama_gateway_requests_per_key": 100_000,
    "llama_gateway_connections_per_address": 3000,
    "llama_gateway_queue_timeout": 600,
}


async def answer(
    port: int, key: str, tokens: int, *, stream: bool = False, held: asyncio.Barrier | None = None
) -> tuple[float, float]:
    """Ask once over a new connection; return the seconds until the answer, and those that the group worked.

    Of a stream, the first line is the answer, and the group's seconds are 0.
    A stream that is `held` stays open from the first to the second time that all parties of the barrier wait.
    """
    body = json.dumps({"model": "noise", "prompt": str(random.random()), "max_tokens": tokens, "stream": stream})
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        status = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        if status != b"200":
            raise RuntimeError(f"A request got status {status.decode()}.")
        if stream:
            await reader.readline()
            seconds = time.monotonic() - began
            if held:
                await held.wait()
                await held.wait()
            return seconds, 0.0
        text = await reader.read()
        return time.monotonic() - began, float(json.loads(text)["served_s"])
    finally:
        writer.close()


async def waits_of(port: int, clients: int, seconds: float) -> list[float]:
    """Let each client ask again at once after an answer; return the seconds that each request waited."""
    found: list[float] = []
    # From now on, the gateway knows this address, which may have many connections.
    await answer(port, CLIENT_KEY, 1)
    deadline = time.monotonic() + seconds

    async def ask(number: int) -> None:
        drawn = random.Random(number)
        while time.monotonic() < deadline:
            whole, served = await answer(port, CLIENT_KEY, drawn.randint(*TOKENS))
            found.append(whole - served)

    await asyncio.gather(*(ask(number) for number in range(clients)))
    return found


def ideal_waits(speeds: list[float], clients: int, seconds: float) -> list[float]:
    """Return the waits in one queue without a cost, whose first request gets the fastest free slot."""
    drawn = [random.Random(number) for number in range(clients)]
    free = [(speed, slot) for speed in speeds for slot in range(SLOTS)]
    heapq.heapify(free)
    events: list[tuple[float, int, int, tuple[float, int] | None]] = [
        (0.0, number, number, None) for number in range(clients)
    ]
    heapq.heapify(events)
    queue: list[tuple[float, int]] = []
    found: list[float] = []
    while events:
        now, order, client, slot = heapq.heappop(events)
        if slot is not None:
            heapq.heappush(free, slot)
        if now < seconds:
            queue.append((now, client))
        while queue and free:
            since, first = queue.pop(0)
            taken = heapq.heappop(free)
            found.append(now - since)
            heapq.heappush(events, (now + drawn[first].randint(*TOKENS) * taken[0], order, first, taken))
    return found


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def change(gateway: Gateway, groups: list[StandIn], balance: str) -> None:
    """Turn the gateway into a plain proxy: it knows no slots, and requests wait in the groups' own queues."""
    path = gateway.folder / "haproxy.cfg"
    text = re.sub(r"balance leastconn", f"balance {balance}", path.read_text())
    path.write_text(re.sub(r"^(    server group.*) maxconn \d+", r"\1", text, flags=re.MULTILINE))
    for group in groups:
        group.queues = True
    gateway.reload()


def resident_mib(pid: int) -> float:
    """Return the memory of a process and its children, in MiB."""
    pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    lines = [re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{one}/status").read_text()) for one in pids]
    return sum(int(line[1]) for line in lines if line) / 1024


async def holding(port: int, count: int, look: Callable[[], float]) -> float:
    """Return the result of `look` while `count` streams are under way."""
    held = asyncio.Barrier(count + 1)
    async with asyncio.timeout(HOLD_LIMIT_S), asyncio.TaskGroup() as streams:
        for _number in range(count):
            streams.create_task(answer(port, CLIENT_KEY, 100_000, stream=True, held=held))
        await held.wait()
        found = look()
        await held.wait()
    return found


async def first_tokens(port: int, key: str, count: int) -> float:
    """Return the median time until a first token, in ms; the group takes no time for it."""
    return 1000 * statistics.median([(await answer(port, key, 1, stream=True))[0] for _number in range(count)])


async def rate(port: int, key: str, clients: int, seconds: float) -> float:
    """Return the number of requests answered per second."""
    deadline = time.monotonic() + seconds
    done = 0

    async def ask() -> None:
        nonlocal done
        while time.monotonic() < deadline:
            await answer(port, key, 0)
            done += 1

    await asyncio.gather(*(ask() for _number in range(clients)))
    return done / seconds


def described(group: StandIn) -> dict[str, Any]:
    place = {"address": "127.0.0.1", "port": group.port, "ready_port": group.port}
    return {"name": group.name, "model": group.model, "slots": group.slots, **place}


def measure_waits(folder: Path, count: int, clients: int, seconds: float) -> dict[str, float]:
    """Return the 95th percentile of the wait in seconds, by what assigns requests to groups."""
    speeds = [TOKEN_S[number % len(TOKEN_S)] for number in range(count)]
    groups = [StandIn(f"group{number}", slots=SLOTS, token_s=speed) for number, speed in enumerate(speeds)]
    found = {"one queue, computed": p95(ideal_waits(speeds, clients, seconds))}
    with StandIns(groups), running_gateway(folder, [described(group) for group in groups], **NO_LIMITS) as gateway:
        time.sleep(2)
        found["the gateway"] = p95(asyncio.run(waits_of(gateway.port, clients, seconds)))
        if most := [group.name for group in groups if group.most_busy > SLOTS]:
            raise RuntimeError(f"{most[0]} got more requests than slots.")
        for name, balance in (("least connections", "leastconn"), ("round robin", "roundrobin")):
            change(gateway, groups, balance)
            time.sleep(2)
            found[name] = p95(asyncio.run(waits_of(gateway.port, clients, seconds)))
    return found


def measure_cost(folder: Path, streams: int, seconds: float) -> dict[str, float]:
    """Return the gateway's own cost: time, rate and memory."""
    # Each stream takes two connections of this process.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    group = StandIn("group0", slots=10_000)
    with StandIns([group]), running_gateway(folder, [described(group)], **NO_LIMITS) as gateway:
        time.sleep(2)
        direct = asyncio.run(first_tokens(group.port, group.key, 200))
        through = asyncio.run(first_tokens(gateway.port, CLIENT_KEY, 200))
        requests = asyncio.run(rate(gateway.port, CLIENT_KEY, 32, seconds))
        idle = resident_mib(gateway.process.pid)
        group.token_s = 1.0
        memory = asyncio.run(holding(gateway.port, streams, lambda: resident_mib(gateway.process.pid)))
    return {
        "first_token_ms": through - direct,
        "requests_per_second": requests,
        "idle_mib": idle,
        "streams": streams,
        "streams_mib": memory,
    }


def main() -> int:
    args = asked(__doc__, "few groups and clients, for a moment: only that it runs", rounds=1)
    count, clients, seconds, streams = (8, 32, 3.0, 50) if args.smoke else (64, 256, 40.0, 2000)
    say(f"{count} stand-ins for groups with {SLOTS} slots each, of four speeds, and {clients} clients")
    with tempfile.TemporaryDirectory(prefix="balancing-") as folder:
        waits = measure_waits(Path(folder), count, clients, seconds)
    with tempfile.TemporaryDirectory(prefix="balancing-") as folder:
        cost = measure_cost(Path(folder), streams, 2.0 if args.smoke else 10.0)
    ideal = waits["one queue, computed"]
    rows = [(name, f"{value:.2f}", f"{value / ideal:.2f}") for name, value in waits.items()]
    facts = machine()
    print(f"\n{machine_line(facts)}\n\n{table(('who decides', 'p95 of the wait, s', 'times the ideal'), rows)}")
    print(
        f"\nThe gateway adds {cost['first_token_ms']:.1f} ms to a first token and passes "
        f"{cost['requests_per_second']:.0f} requests a second. It has {cost['streams_mib']:.0f} MiB with {streams} "
        f"streams, and {cost['idle_mib']:.0f} before them."
    )
    missed = waits["the gateway"] > MOST_TIMES_IDEAL * ideal
    print(f"{'Missed' if missed else 'Met'}: at most {MOST_TIMES_IDEAL} times the wait of one ideal queue.")
    output = CACHE / "benchmarks/balancing/balancing.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"machine": facts, "p95_wait_s": waits, "cost": cost}, indent=2) + "\n")
    print(f"All of it: {output}")
    return 1 if missed and not args.smoke else 0


if __name__ == "__main__":
    run_to_end(main)
