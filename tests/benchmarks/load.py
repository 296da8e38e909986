# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure how long a model takes to get onto a worker with an empty or a full cache: over loopback and 1 Gbit/s.

Each round loads the model three times over each link: into a worker that has nothing, from the cache that this load has
filled, and for the first time into another worker whose cache was seeded from the file. Ratios compare figures of the
same round. The links between hosts are those of two test hosts, master and worker1: over their bridge as it is, and
with both directions limited to 1 Gbit/s by the kernel (tbf). A transfer of zeros checks these links before each use.
The programs are those of this machine, and run in the network of these hosts: only the link differs. The kernel counts
the bytes on the wire. The target is that over the link of 1 Gbit/s, a seeded worker has the model in at most half the
time. Loopback needs the release that `make test` builds; test hosts need root.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.loopback import CORES, keep, ratios, release, repeated, task
from benchmarks.measure import (
    BenchError,
    Hosts,
    NotRunError,
    asked,
    lab,
    machine,
    output_of,
    parser_of,
    random_model,
    run_to_end,
    say,
    shown,
    spread,
    table,
)
from support.harness import run_module, running_worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from support.harness import Worker

# Layers and width. A worker's cache takes only tensors larger than 10 MiB, upstream's limit: all of these but attn_k
# and attn_v.
SIZE, SMOKE_SIZE = (7, 4096), (1, 2048)
RUN_LIMIT_S = 300
ATTEMPTS = 5

RATE_MBIT = 1000
# The kernel keeps to the rate over bursts of half a megabyte. It drops packets that wait longer than the latency, as a
# switch does.
SHAPER = f"tbf rate {RATE_MBIT}mbit burst 512kb latency 50ms".split()
SHAPER_LIMIT_S = 30
# TCP leaves 95.6 percent of a full rate for the payload.
LEAST_MBIT, MOST_MBIT = 0.85 * RATE_MBIT, RATE_MBIT
TRANSFER_BYTES = 256_000_000
TRANSFER_LIMIT_S = 120
# Over the link of that rate, a load into a seeded worker may take this share of the time of a first load.
MOST_SEEDED = 0.5
KINDS = {"first": "first", "cached": "from the cache", "seeded": "first, seeded"}
LOOPBACK, BRIDGE, SHAPED = "loopback", "between hosts", "between hosts, 1 Gbit/s"
SEEDED_RATIO = f"{SHAPED}: {KINDS['seeded']} / first"

RECEIVE = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
link, size, buffer = server.accept()[0], 0, bytearray(1 << 20)
server.settimeout(60)
first = link.recv_into(buffer, 1)
began = time.monotonic()
while got := link.recv_into(buffer):
    size += got
print(size * 8 / 1e6 / (time.monotonic() - began))
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60) as link:
    for _ in range(int(sys.argv[3]) // 1_000_000):
        link.sendall(bytes(1_000_000))
"""


@dataclass(frozen=True)
class Side:
    """The place where a program runs: this machine's network, or that of a test host."""

    address: str
    namespace: int | None = None  # a process in that network
    device: str = "lo"  # the device that sends to it
    sender: int | str = "self"  # a process in the network that has this device

    @property
    def prefix(self) -> tuple[str, ...]:
        return () if self.namespace is None else ("nsenter", f"--net=/proc/{self.namespace}/ns/net")

    def received(self) -> int:
        """Return the bytes sent to it so far, with the packets' headers."""
        for line in Path(f"/proc/{self.sender}/net/dev").read_text().splitlines():
            name, found, counters = line.partition(":")
            if found and name.strip() == self.device:
                return int(counters.split()[8])
        raise BenchError(f"There is no network device {self.device} any more.")

    @property
    def loopback(self) -> Side:
        """The loopback of the same network; that of a test host has no other traffic."""
        return Side(HERE.address, self.namespace, sender=self.namespace or "self")


HERE = Side("127.0.0.1")


@dataclass(frozen=True)
class Run:
    """One load of a model: its seconds without those of computing two tokens, and the weights on workers in MB."""

    seconds: float
    computing_seconds: float
    weights_mb: float


def model(*, smoke: bool) -> Path:
    return random_model(*(SMOKE_SIZE if smoke else SIZE))


# --- links ----------------------------------------------------------------------------------------------------------


def side(hosts: Hosts, name: str, number: int) -> Side:
    """Return the network of a test host, by a process in it and by this machine's end of its link."""
    namespace, index = hosts.ssh(name, "readlink /proc/self/ns/net; cat /sys/class/net/host0/iflink").split()
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            if os.readlink(process / "ns/net") == namespace:
                break
        except OSError:  # The process has ended.
            continue
    else:
        raise BenchError(f"No process of this machine is in the network of {name}.")
    devices = [
        path.parent.name for path in Path("/sys/class/net").glob("*/ifindex") if path.read_text().strip() == index
    ]
    if not devices:
        raise BenchError(f"This machine has no end of the link of {name}.")
    return Side(f"10.87.{hosts.number}.{number}", int(process.name), devices[0])


@contextmanager
def shaped(*sides: Side) -> Iterator[None]:
    """Limit the rate to each of these hosts."""
    with ExitStack() as stack:
        for one in sides:
            add = ["tc", "qdisc", "add", "dev", one.device, "root", *SHAPER]
            output_of(add, f"This kernel shapes no link with {' '.join(SHAPER)}", SHAPER_LIMIT_S)
            remove = ["tc", "qdisc", "del", "dev", one.device, "root"]
            stack.callback(subprocess.run, remove, capture_output=True, check=False)
        yield


def transfer(master: Side, worker: Side) -> float:
    """Return the rate at which a TCP connection brings zeros from the master to the worker, in Mbit/s."""
    with subprocess.Popen(
        [*worker.prefix, sys.executable, "-c", RECEIVE, worker.address], stdout=subprocess.PIPE, text=True
    ) as receiver:
        try:
            assert receiver.stdout
            send = [sys.executable, "-c", SEND, worker.address, receiver.stdout.readline().strip(), str(TRANSFER_BYTES)]
            output_of([*master.prefix, *send], "The transfer that measures the link failed", TRANSFER_LIMIT_S)
            return float(receiver.communicate(timeout=TRANSFER_LIMIT_S)[0])
        finally:
            receiver.kill()


# --- loads ----------------------------------------------------------------------------------------------------------


def run(
    path: Path, endpoints: list[str], bin_folder: Path, prefix: tuple[str, ...] = (), extra_args: Sequence[str] = ()
) -> Run | None:
    """Load a model once; None if the run lost its last lines and was repeated, as its time is that of both runs."""
    options = {
        "model": str(path),
        "prompt": "the",
        "workers": endpoints,
        "n_predict": 1,
        "ctx_size": 256,
        "threads": 1,
        "bin_folder": str(bin_folder),
        "timeout": RUN_LIMIT_S,
        "extra_args": list(extra_args),
    }
    found = task("distributed_inference", options, prefix=prefix)
    if found["attempts"] != 1:
        return None
    perf = found["perf"]
    computing_ms = (perf["prompt_eval"]["time_ms"] or 0) + (perf["eval"]["time_ms"] or 0)
    weights_mib = sum(device["model_buffer_mib"] for device in found["devices"] if device["endpoint"])
    return Run((found["wall_time_ms"] - computing_ms) / 1000, computing_ms / 1000, weights_mib * 2**20 / 1e6)


def load(path: Path, endpoint: str, master: Side, worker: Side) -> dict[str, float] | None:
    """Load the model once and count the bytes sent to the worker; return None if the run had to be repeated."""
    before = worker.received()
    done = run(path, [endpoint], release().bin, master.prefix)
    return None if done is None else {**asdict(done), "sent_mb": (worker.received() - before) / 1e6}


def seeded(path: Path, folder: Path) -> float:
    """Put the model's tensors into a cache; return how many seconds that took."""
    folder.mkdir(parents=True)
    options = {"model": str(path), "folder": str(folder), "program": str(release().rpc_cache), "min_free": "1G"}
    began = time.monotonic()
    run_module("rpc_cache_seed", options, changes=True)
    return time.monotonic() - began


def loads(path: Path, master: Side, worker: Side) -> dict[str, dict[str, float]] | None:
    """Load into a worker that has nothing, then from the cache that this load has filled, and into a seeded worker."""
    # On a disk, where a worker's cache is.
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        folder = Path(name)

        def with_cache(cache: Path) -> AbstractContextManager[Worker]:
            prefix = (*worker.prefix, "env", f"LLAMA_CACHE={cache}")
            options = {"threads": len(CORES), "prefix": prefix, "address": worker.address}
            return running_worker(release(), folder / "log", "-c", **options)

        with with_cache(folder / "cache") as running:
            first = load(path, running.endpoint, master, worker)
            if not any(kept.is_file() for kept in (folder / "cache").rglob("*")):
                raise BenchError("The worker kept nothing in its cache.")
            cached = load(path, running.endpoint, master, worker)
        seed_seconds = seeded(path, folder / "seeded" / "rpc")
        with with_cache(folder / "seeded") as running:
            after_seeding = load(path, running.endpoint, master, worker)
    if not (first and cached and after_seeding):
        return None
    return {"first": first, "cached": cached, "seeded": {**after_seeding, "seed_seconds": seed_seconds}}


def measured(path: Path, hosts: Hosts | None, repetitions: int) -> tuple[list[dict[str, Any]], list[dict[str, float]]]:
    """Return the loads of each round by link, and the rates of the links between hosts in Mbit/s."""
    master, worker = (side(hosts, "master", 10), side(hosts, "worker1", 11)) if hosts else (HERE, HERE)
    links = [LOOPBACK, BRIDGE, SHAPED] if hosts else [LOOPBACK]
    rounds, transfers = [], []
    for number in range(repetitions):
        done: dict[str, Any] = {}
        rates: dict[str, float] = {}
        # Every round begins with another link.
        for link in [*links[number % len(links) :], *links[: number % len(links)]]:
            ends = (worker.loopback, worker.loopback) if link == LOOPBACK else (master, worker)
            with shaped(*ends) if link == SHAPED else ExitStack():
                if link != LOOPBACK:
                    rates[link] = transfer(*ends)
                if link == SHAPED and not LEAST_MBIT <= rates[link] <= MOST_MBIT:
                    raise BenchError(f"The link that is shaped to {RATE_MBIT} Mbit/s lets {rates[link]:.0f} through.")
                done[link] = repeated(lambda ends=ends: loads(path, *ends), ATTEMPTS)
        rounds.append(done)
        transfers.append(rates)
        said = ", ".join(f"{link} {one['first']['seconds']:.1f} s" for link, one in done.items())
        say(f"round {number + 1} of {repetitions}: first load over {said}")
    return rounds, transfers


def summary(rounds: list[dict[str, Any]], transfers: list[dict[str, float]]) -> dict[str, Any]:
    """Return the figures of each link, and their ratios in the same round."""

    def values(link: str, kind: str, what: str) -> list[float]:
        return [done[link][kind][what] for done in rounds]

    links = [link for link in (LOOPBACK, BRIDGE, SHAPED) if link in rounds[0]]
    found: dict[str, Any] = {"links": {}, "ratios": {}}
    for link in links:
        found["links"][link] = {
            kind: {
                **{
                    what: spread(values(link, kind, what), 4)
                    for what in ("seconds", "computing_seconds", "weights_mb", "sent_mb")
                },
                "sent_mb_per_s": ratios(values(link, kind, "sent_mb"), values(link, kind, "seconds")),
            }
            for kind in KINDS
        }
        found["links"][link]["seed_seconds"] = spread(values(link, "seeded", "seed_seconds"), 4)
        if link != LOOPBACK:
            found["links"][link]["transfer_mbit_per_s"] = spread([rates[link] for rates in transfers], 4)
    for link in links:
        for kind in ("cached", "seeded"):
            found["ratios"][f"{link}: {KINDS[kind]} / first"] = ratios(
                values(link, kind, "seconds"), values(link, "first", "seconds")
            )
    for link in links[1:]:
        for kind, name in KINDS.items():
            found["ratios"][f"{name}: {link} / {LOOPBACK}"] = ratios(
                values(link, kind, "seconds"), values(LOOPBACK, kind, "seconds")
            )
    found["missed"] = missed(found["ratios"])
    return found


def missed(found: dict[str, Any]) -> list[str]:
    """Return one sentence for each missed target."""
    ratio = found.get(SEEDED_RATIO)
    if ratio is None or ratio["median"] <= MOST_SEEDED:
        return []
    said = f"Over {RATE_MBIT} Mbit/s a seeded worker has the model in {ratio['median']:.2f} of the time of one without"
    return [f"{said}, more than {MOST_SEEDED}."]


def report(found: dict[str, Any]) -> str:
    links = found["links"]
    rows = [
        [
            link,
            KINDS[kind],
            shown(kinds[kind]["seconds"], 2),
            f"{kinds[kind]['weights_mb']['median']:.0f}",
            shown(kinds[kind]["sent_mb"], 0),
            shown(kinds[kind]["sent_mb_per_s"], 0),
        ]
        for link, kinds in links.items()
        for kind in KINDS
    ]
    head = ["link", "load", "seconds, median (range)", "weights, MB", "over the wire, MB", "over the wire, MB/s"]
    seeding = [[link, shown(kinds["seed_seconds"], 2)] for link, kinds in links.items()]
    parts = [
        table(head, rows),
        table(
            ["ratio", "median (range)", "target"],
            [
                [name, shown(ratio, 3), f"at most {MOST_SEEDED}" if name == SEEDED_RATIO else ""]
                for name, ratio in found["ratios"].items()
            ],
        ),
        table(["link", "seeding, seconds"], seeding),
    ]
    rate = "transfer_mbit_per_s"
    if checks := [[link, shown(kinds[rate], 0)] for link, kinds in links.items() if rate in kinds]:
        parts.append(table(["link", "a transfer of zeros, Mbit/s"], checks))
    if SEEDED_RATIO in found["ratios"]:
        met = f"Met: over {RATE_MBIT} Mbit/s a seeded worker has the model in at most {MOST_SEEDED} of the time."
        parts.append("\n".join(found["missed"]) or met)
    return "\n\n".join(parts)


def main() -> int:
    args = asked(parser_of(__doc__), "a small model, loopback, once: whether it runs")
    between_hosts = not args.smoke and os.geteuid() == 0
    before = machine()
    path = model(smoke=args.smoke)
    with lab(103, ["master", "worker1"]) if between_hosts else nullcontext() as hosts:
        results = summary(*measured(path, hosts, args.repetitions))
    size = path.stat().st_size
    about = {"shaper": SHAPER, "before": before, "model": path.name, "model_bytes": size}
    kept = keep("load", args, {**about, **results})
    print(f"One worker, {path.name}, {size / 1e9:.2f} GB. The file is in this machine's memory.")
    if not between_hosts:
        print("What others send over loopback meanwhile counts as well.")
    print(f"\n{report(results)}\n\nAll values: {kept}")
    if not between_hosts and not args.smoke:
        raise NotRunError("links between test hosts, which are containers; they need root: sudo make bench")
    return 1 if results["missed"] else 0


if __name__ == "__main__":
    run_to_end(main)
