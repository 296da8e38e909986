# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure a token's cost if master and workers are apart: two workers of one core each, behind relays that delay.

Each relay holds data for half a round trip, in both directions, and does not limit the rate. The reference goes through
the same relays without a delay, so all figures include the relays' own cost. A real network adds loss and changing
times, which the relays do not simulate. Each round measures all cases once and begins with another case. Ratios compare
figures of the same round. Needs the release that `make test` builds.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from benchmarks.loopback import CORES, Rates, in_rounds, keep, model, obstacle, ratio, workers
from benchmarks.measure import NotRunError, asked, run_to_end, shown, spread, table
from benchmarks.throughput import measured, planned

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.harness import Worker

ROUND_TRIPS_MS = (0, 1, 10, 50)
SPLIT_MODES = ("layer", "tensor")
TOKENS, PROMPT = 8, 64


def pump(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
    """Pass on each piece of data after the delay, until the source ends."""
    pieces: queue.Queue[tuple[float, bytes]] = queue.Queue()

    def send() -> None:
        with suppress(OSError):
            while True:
                due, data = pieces.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)

    sender = threading.Thread(target=send)
    sender.start()
    data = b"."
    while data:
        try:
            data = source.recv(1 << 20)
        except OSError:
            data = b""
        pieces.put((time.monotonic() + delay_s, data))
    sender.join()


def serve(listener: socket.socket, worker: Worker, delay_s: float) -> None:
    """Serve one client after the other, as a worker does."""
    while True:
        try:
            client, _address = listener.accept()
        except OSError:
            return
        with client, socket.create_connection(("127.0.0.1", worker.port)) as server:
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=pump, args=(server, client, delay_s))
            back.start()
            pump(client, server, delay_s)
            back.join()


@contextmanager
def relay(worker: Worker, delay_s: float) -> Iterator[str]:
    """Relay connections to a worker with a delay, and yield the relay's endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener, worker, delay_s))
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def case(path: Path, found: list[Worker], round_trip_ms: int, mode: str) -> Rates:
    with ExitStack() as stack:
        endpoints = [stack.enter_context(relay(worker, round_trip_ms / 2000)) for worker in found]
        names = "/".join(f"RPC{number}" for number in range(len(endpoints)))
        shares = "/".join(map(str, planned(path, len(endpoints)) if mode == "layer" else [1] * len(endpoints)))
        over = ("--rpc", ",".join(endpoints), "-dev", names, "-ts", shares, "-ngl", "999", "-t", "1", "-sm", mode)
        (read,) = measured(path, *over, "-p", str(PROMPT), "-n", "0")
        (generated,) = measured(path, *over, "-p", "0", "-n", str(TOKENS))
    return {"a token, ms": 1000 / float(generated["avg_ts"]), f"{PROMPT} tokens of a prompt, ms": read["avg_ns"] / 1e6}


def named(round_trip_ms: int, mode: str) -> str:
    return f"{mode}, {round_trip_ms} ms"


def main() -> int:
    """Measure, print the table, and write all values as JSON."""
    args = asked(__doc__, "a tiny model, which only shows that it runs", rounds=2)
    if why := obstacle(2):
        raise NotRunError(f"distance; {why}.")
    path = model(smoke=args.smoke)
    pairs = [(round_trip, mode) for mode in SPLIT_MODES for round_trip in ROUND_TRIPS_MS]
    with workers(*((1, [core]) for core in CORES[:2]), cached=True) as found:
        cases = {named(*pair): lambda pair=pair: case(path, found, *pair) for pair in pairs}
        rounds = in_rounds(cases, args.repetitions, "distance")
    rows = []
    for round_trip, mode in pairs:
        name = named(round_trip, mode)
        for test in rounds[0][name]:
            values = spread([done[name][test] for done in rounds])
            rows.append([mode, round_trip, test, shown(values), shown(ratio(rounds, name, named(0, mode), test), 2)])
    print("\nTwo workers of one core, each behind a relay that delays\n")
    print(table(["split mode", "round trip, ms", "what", "median (range)", "ratio to: 0 ms"], rows))
    print(f"\nAll of it: {keep('distance', args, {'rounds': rounds})}")
    return 0


if __name__ == "__main__":
    run_to_end(main)
