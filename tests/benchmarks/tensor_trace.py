# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure where the time of a token goes in split mode tensor, and what is sent for it: two workers of one core each.

A relay between the master and each worker, which knows the messages of the protocol, counts what is sent: the messages
of a longer run less those of a shorter one, divided by the further tokens. The relay delays messages, so the time of a
token is that of a run without it. During that run the benchmark looks again and again which workers run on their cores:
the share of such looks is the share of the time. In that run workers sleep between requests, so that a running worker
computes. If workers stay awake, as they do by default, a token takes less time (throughput.py). The bytes of graphs
would be saved if a worker kept more than its last graph and could be told which one to run. The counts are those of one
worker, and the other's are the same. Needs the release that `make test` builds.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.loopback import CORES, compared, cores_awake, in_rounds, keep, model, obstacle, release, report, workers
from benchmarks.measure import BenchError, NotRunError, asked, run_to_end
from support.harness import free_port
from support.rpc_session import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.loopback import Rates
    from support.harness import Worker

RUN_LIMIT_S = 300
# Tokens of the shorter and of the longer run that are counted, and of the run that is timed.
COUNTED, SMOKE_COUNTED = (8, 40), (4, 8)
TIMED, SMOKE_TIMED = 128, 16
# The time between two looks. A worker computes for a millisecond or two at a time.
LOOK_S = 0.0005
AS_THEY_ARE, AWAKE = "cores as they are", "cores kept awake"
MS = "ms"
# u8 cmd | u64 size | payload
HEAD = struct.Struct("<BQ")
GRAPHS = (Command.GRAPH_COMPUTE, Command.GRAPH_RECOMPUTE)


def bench(path: Path, endpoints: Sequence[str], tokens: int) -> list[str | Path]:
    """Return the command that generates so many tokens in split mode tensor once, without a prompt and a warm-up."""
    names = "/".join(f"RPC{number}" for number in range(len(endpoints)))
    command = ["taskset", "-c", ",".join(map(str, CORES)), release().bin / "llama-bench", "-m", path, "-o", "jsonl"]
    command += ["--rpc", ",".join(endpoints), "-dev", names, "-ts", "/".join("1" for _endpoint in endpoints)]
    command += ["-sm", "tensor", "-ngl", "999", "-t", "1", "-p", "0", "-n", str(tokens), "-r", "1"]
    return [*command, "--no-warmup", "--load-mode", "none"]


# --- messages -------------------------------------------------------------------------------------------------------


class Counts:
    """Counts of messages to a worker by command, of partial results asked of it, and of bytes in both directions."""

    def __init__(self, sum_bytes: int) -> None:
        self.sum_bytes = sum_bytes
        self.found: Counter[str] = Counter()
        self._unread = b""
        self._skipped = 0

    def answered(self, data: bytes) -> None:
        self.found["bytes from a worker"] += len(data)

    def asked(self, data: bytes) -> None:
        """Count the next data for the worker, which may end anywhere in a message."""
        self.found["bytes to a worker"] += len(data)
        skip = min(self._skipped, len(data))
        self._skipped -= skip
        self._unread += data[skip:]
        while len(self._unread) >= HEAD.size:
            command, size = HEAD.unpack_from(self._unread)
            if command == Command.GET_TENSOR and len(self._unread) < HEAD.size + size:
                return
            message, self._unread = self._unread[: HEAD.size + size], self._unread[HEAD.size + size :]
            self._skipped = HEAD.size + size - len(message)
            self.count(Command(command), HEAD.size + size, message)

    def count(self, command: Command, size: int, message: bytes) -> None:
        self.found[f"messages to a worker: {command.name}"] += 1
        self.found["bytes to a worker: graphs"] += size * (command in GRAPHS)
        # The last eight bytes are the number of bytes asked for. A partial result is as wide as the model.
        if command == Command.GET_TENSOR and struct.unpack("<Q", message[-8:])[0] == self.sum_bytes:
            self.found["partial results asked of a worker"] += 1


@contextmanager
def counted(worker: Worker, counts: Counts) -> Iterator[str]:
    """Relay between a master and a worker, one connection at a time; yield the relay's endpoint."""

    def pass_on(source: socket.socket, target: socket.socket, count: Any) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                count(data)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        while True:
            client = listener.accept()[0]
            with client, socket.create_connection(("127.0.0.1", worker.port)) as server:
                if stopped.is_set():
                    return
                for link in (client, server):
                    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                back = threading.Thread(target=pass_on, args=(server, client, counts.answered))
                back.start()
                pass_on(client, server, counts.asked)
                back.join()

    stopped = threading.Event()
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            stopped.set()
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()


def sent(path: Path, width: int, tokens: int) -> Counter[str]:
    """Return the counts of what a run over two workers sends to the first one, and gets from it."""
    with ExitStack() as stack:
        running = stack.enter_context(workers(*((1, [core]) for core in CORES[:2])))
        counts = [Counts(4 * width) for _worker in running]
        endpoints = [stack.enter_context(counted(worker, one)) for worker, one in zip(running, counts)]
        done = subprocess.run(
            bench(path, endpoints, tokens), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=RUN_LIMIT_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise BenchError(f"llama-bench failed over relays: {done.stderr.strip()[-600:]}")
        return counts[0].found


def sent_per_token(path: Path, width: int, lengths: tuple[int, int]) -> Rates:
    shorter, longer = (sent(path, width, tokens) for tokens in lengths)
    found = {name: (longer[name] - shorter[name]) / (lengths[1] - lengths[0]) for name in sorted(longer)}
    # Messages that are sent once, as weights are, are equally many in both runs.
    return {name: value for name, value in found.items() if value}


# --- time -----------------------------------------------------------------------------------------------------------


class Running:
    """Whether a thread of a worker is on a core, or waits for nothing but one."""

    def __init__(self, worker: Worker) -> None:
        self.folder = Path(f"/proc/{worker.process.pid}/task")

    def __bool__(self) -> bool:
        for task in self.folder.iterdir():
            with suppress(OSError):  # The thread has ended.
                if (task / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"R":
                    return True
        return False


def looks(process: subprocess.Popen[str], running: Sequence[Running]) -> tuple[str, float, list[tuple[float, int]]]:
    """Look at workers until llama-bench prints its figures; return these, their time, and how many ran at each look."""
    said: list[tuple[str, float]] = []

    def read() -> None:
        assert process.stdout
        said.append((process.stdout.readline(), time.monotonic()))

    reader = threading.Thread(target=read)
    reader.start()
    seen = []
    while reader.is_alive():
        seen.append((time.monotonic(), sum(map(bool, running))))
        time.sleep(LOOK_S)
    reader.join()
    return (*said[0], seen)


def of_a_token(path: Path, tokens: int) -> Rates:
    """Return the milliseconds of a token, and those in which both workers run, one does, or none."""
    with workers(*((1, [core]) for core in CORES[:2]), spin=False) as found:
        command = bench(path, [worker.endpoint for worker in found], tokens)
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                line, came, seen = looks(process, [Running(worker) for worker in found])
                if process.wait(RUN_LIMIT_S) or not line:
                    raise BenchError("llama-bench failed.")
            finally:
                process.kill()
    (took_ns,) = json.loads(line)["samples_ns"]
    ran = Counter(many for when, many in seen if when >= came - took_ns / 1e9)
    token_ms = took_ns / 1e6 / tokens
    return {
        "a token": token_ms,
        **{name: token_ms * ran[many] / ran.total() for many, name in ((2, "both run"), (1, "one runs"), (0, "none"))},
    }


def main() -> int:
    args = asked(__doc__, "a small model, once: whether it runs, not where time goes")
    if obstacle(2):
        raise NotRunError(f"split mode tensor; {obstacle(2)}.")
    path = model(smoke=args.smoke, wide=True)
    width = int(path.name.split("x")[1].split("-")[0])
    tokens = SMOKE_TIMED if args.smoke else TIMED
    counts = sent_per_token(path, width, SMOKE_COUNTED if args.smoke else COUNTED)

    def awake() -> Rates:
        with cores_awake():
            return of_a_token(path, tokens)

    not_run = {AWAKE: obstacle(2, awake=True)} if obstacle(2, awake=True) else {}
    cases = {AS_THEY_ARE: lambda: of_a_token(path, tokens), **({} if not_run else {AWAKE: awake})}
    times = compared(in_rounds(cases, args.repetitions, "a token"), MS, lambda _case: AS_THEY_ARE)
    results = {"model": path.name, "tokens": tokens, "per_token": counts, "times": times, "not_run": not_run}
    kept = keep("tensor_trace", args, results)
    print(f"{path.name} over two workers of one core each, split mode tensor\n")
    print("\n".join(f"{value:>12.1f}  {name}" for name, value in counts.items()))
    print(f"\n{report(times, MS, AS_THEY_ARE, not_run)}\n\nAll values: {kept}")
    return 0


if __name__ == "__main__":
    run_to_end(main)
