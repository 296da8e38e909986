# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a model takes to get onto a worker whose cache is empty or full: over loopback and over 1 Gbit/s.

Each round loads the model three times over each link: into a worker that has nothing, from the cache that this has
filled, and for the first time into another worker whose cache was seeded from the file. Ratios are of figures of the
same round. The links between hosts are those of two test hosts, master and
worker1: over their bridge as it is, and with both directions limited to 1 Gbit/s by the kernel (tbf), which a transfer
of zeros shows before each use. The programs are this machine's, in the network of these hosts: only the link differs.
What goes over the wire is counted by the kernel. Loopback needs the release that `make test` builds; test hosts need
root.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopback import CORES, keep, precise, ratios, release, shown_ratio
from measure import CACHE, ROOT, BenchError, Hosts, end_on_signals, lab, machine, say, table

sys.path.insert(0, str(ROOT / "tests/integration"))
from harness import run_module, running_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

# Of these only what is larger than 10 MiB, upstream's limit, goes into a worker's cache: all but attn_k and attn_v.
LAYERS, WIDTH = 7, 4096
SMOKE_LAYERS, SMOKE_WIDTH = 1, 2048
MODEL_LIMIT_S = 600
RUN_LIMIT_S = 300
# Those that lost their last lines are done again, as what they say of time is of a repetition.
ATTEMPTS = 4

RATE_MBIT = 1000
# Over bursts of half a megabyte the kernel keeps to the rate; what waits longer than this is dropped, as by a switch.
SHAPER = f"tbf rate {RATE_MBIT}mbit burst 512kb latency 50ms".split()
# Of a full rate, TCP leaves 95.6 percent for what is sent.
LEAST_MBIT, MOST_MBIT = 0.85 * RATE_MBIT, RATE_MBIT
TRANSFER_BYTES = 256_000_000
TRANSFER_LIMIT_S = 120
KINDS = {"first": "first", "cached": "from the cache", "seeded": "first, seeded"}
LOOPBACK, BRIDGE, SHAPED = "loopback", "between hosts", "between hosts, 1 Gbit/s"

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
    """Where a program runs: in this machine's network, or in that of a test host."""

    address: str
    namespace: int | None = None  # a process that is in that network
    device: str = "lo"  # what sends to it
    sender: int | str = "self"  # a process in the network that has this device

    @property
    def prefix(self) -> tuple[str, ...]:
        return () if self.namespace is None else ("nsenter", f"--net=/proc/{self.namespace}/ns/net")

    def received(self) -> int:
        """Return how many bytes went to it so far, with what packets have around them."""
        for line in Path(f"/proc/{self.sender}/net/dev").read_text().splitlines():
            name, found, counters = line.partition(":")
            if found and name.strip() == self.device:
                return int(counters.split()[8])
        raise BenchError(f"There is no network device {self.device} any more.")

    @property
    def loopback(self) -> Side:
        """The same network with itself; that of a test host has nothing else on it."""
        return Side(HERE.address, self.namespace, sender=self.namespace or "self")


HERE = Side("127.0.0.1")


def model(layers: int, width: int) -> Path:
    """Return a model of random weights in eight bits, made on first use and kept in the cache."""
    path = CACHE / "benchmarks" / "models" / f"random-{layers}x{width}-q8_0.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        say(f"making {path.name}, a model of random weights")
        program = ROOT / "playbooks/files/random_model.py"
        command = [sys.executable, program, path, "--layers", str(layers), "--width", str(width)]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=MODEL_LIMIT_S, check=False
        )
        if done.returncode:
            raise BenchError(f"The model could not be made: {done.stderr.strip()[-300:]}")
    return path


# --- links ----------------------------------------------------------------------------------------------------------


def side(hosts: Hosts, name: str, number: int) -> Side:
    """Return the network of a test host as this machine reaches into it."""
    namespace, index = hosts.ssh(name, "readlink /proc/self/ns/net; cat /sys/class/net/host0/iflink").split()
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            if os.readlink(process / "ns/net") == namespace:
                break
        except OSError:  # It has ended.
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
    """Let no more than the rate go to each of these hosts."""
    with ExitStack() as stack:
        for one in sides:
            add = subprocess.run(
                ["tc", "qdisc", "add", "dev", one.device, "root", *SHAPER], capture_output=True, text=True, check=False
            )
            if add.returncode:
                raise BenchError(f"This kernel shapes no link with {' '.join(SHAPER)}: {add.stderr.strip()}")
            remove = ["tc", "qdisc", "del", "dev", one.device, "root"]
            stack.callback(subprocess.run, remove, capture_output=True, check=False)
        yield


def transfer(master: Side, worker: Side) -> float:
    """Return how many megabits per second of zeros a TCP connection brings from the one to the other."""
    with subprocess.Popen(
        [*worker.prefix, sys.executable, "-c", RECEIVE, worker.address], stdout=subprocess.PIPE, text=True
    ) as receiver:
        try:
            assert receiver.stdout
            send = [sys.executable, "-c", SEND, worker.address, receiver.stdout.readline().strip(), str(TRANSFER_BYTES)]
            sent = subprocess.run(
                [*master.prefix, *send], capture_output=True, text=True, timeout=TRANSFER_LIMIT_S, check=False
            )
            if sent.returncode:
                raise BenchError(f"The transfer that measures the link failed: {sent.stderr.strip()[-300:]}")
            return float(receiver.communicate(timeout=TRANSFER_LIMIT_S)[0])
        finally:
            receiver.kill()


# --- loads ----------------------------------------------------------------------------------------------------------


def load(path: Path, endpoint: str, master: Side, worker: Side) -> dict[str, float] | None:
    """Load the model once; None if the run had to be repeated."""
    before = worker.received()
    found = run_module(
        "distributed_inference",
        {
            "model": str(path),
            "prompt": "the",
            "workers": [endpoint],
            "n_predict": 1,
            "ctx_size": 256,
            "threads": 1,
            "bin_dir": str(release().bin),
            "timeout": RUN_LIMIT_S,
        },
        prefix=master.prefix,
    )
    if found.get("failure"):
        raise BenchError(f"distributed_inference failed: {found['msg']}")
    if found["attempts"] != 1:
        return None
    perf = found["perf"]
    computing = (perf["prompt_eval"]["time_ms"] or 0) + (perf["eval"]["time_ms"] or 0)
    (device,) = [device for device in found["devices"] if device["endpoint"] == endpoint]
    seconds = (found["wall_time_ms"] - computing) / 1000
    return {
        "seconds": seconds,
        "computing_seconds": computing / 1000,
        "weights_mb": device["model_buffer_mib"] * 2**20 / 1e6,
        "sent_mb": (worker.received() - before) / 1e6,
    }


def seeded(path: Path, folder: Path) -> float:
    """Put the model's tensors into a cache; return how many seconds that took."""
    folder.mkdir(parents=True)
    options = {"model": str(path), "folder": str(folder), "program": str(release().rpc_cache), "min_free": "1G"}
    began = time.monotonic()
    run_module("rpc_cache_seed", options, changes=True)
    return time.monotonic() - began


def loads(path: Path, master: Side, worker: Side) -> dict[str, dict[str, float]]:
    """Load into a worker that has nothing, then from the cache that this has filled, and into one that was seeded."""
    for _attempt in range(ATTEMPTS):
        # On a disk, as a worker's cache is.
        with tempfile.TemporaryDirectory(dir=path.parent) as name:
            folder = Path(name)
            prefix = (*worker.prefix, "env", f"LLAMA_CACHE={folder / 'cache'}")
            options = {"threads": len(CORES), "prefix": prefix, "address": worker.address}
            with running_worker(release(), folder / "log", "-c", **options) as running:
                found = {"first": load(path, running.endpoint, master, worker)}
                if not any(kept.is_file() for kept in (folder / "cache").rglob("*")):
                    raise BenchError("The worker kept nothing in its cache.")
                found["cached"] = load(path, running.endpoint, master, worker)
            seed_seconds = seeded(path, folder / "seeded" / "rpc")
            prefix = (*worker.prefix, "env", f"LLAMA_CACHE={folder / 'seeded'}")
            with running_worker(release(), folder / "log", "-c", **{**options, "prefix": prefix}) as running:
                found["seeded"] = load(path, running.endpoint, master, worker)
            if found["seeded"]:
                found["seeded"]["seed_seconds"] = seed_seconds
        whole = {kind: one for kind, one in found.items() if one}
        if len(whole) == len(found):
            return whole
    raise BenchError(f"Runs lost their last lines, {ATTEMPTS} times in a row.")


def measured(path: Path, hosts: Hosts | None, repetitions: int) -> tuple[list[dict[str, Any]], list[dict[str, float]]]:
    """Return the loads of each round by link, and what transfers show of the links between hosts."""
    master, worker = (side(hosts, "master", 10), side(hosts, "worker1", 11)) if hosts else (HERE, HERE)
    links = [LOOPBACK, BRIDGE, SHAPED] if hosts else [LOOPBACK]
    rounds, transfers = [], []
    for number in range(repetitions):
        done: dict[str, Any] = {}
        rates: dict[str, float] = {}
        # Every round begins with another one.
        for link in [*links[number % len(links) :], *links[: number % len(links)]]:
            with shaped(master, worker) if link == SHAPED else ExitStack():
                if link == LOOPBACK:
                    done[link] = loads(path, worker.loopback, worker.loopback)
                    continue
                rates[link] = transfer(master, worker)
                if link == SHAPED and not LEAST_MBIT <= rates[link] <= MOST_MBIT:
                    raise BenchError(f"The link that is shaped to {RATE_MBIT} Mbit/s lets {rates[link]:.0f} through.")
                done[link] = loads(path, master, worker)
        rounds.append(done)
        transfers.append(rates)
        said = ", ".join(f"{link} {one['first']['seconds']:.1f} s" for link, one in done.items())
        say(f"round {number + 1} of {repetitions}: first load over {said}")
    return rounds, transfers


def summary(rounds: list[dict[str, Any]], transfers: list[dict[str, float]]) -> dict[str, Any]:
    """Return the figures of each link, and how they compare in the same round."""

    def values(link: str, kind: str, what: str) -> list[float]:
        return [done[link][kind][what] for done in rounds]

    links = [link for link in (LOOPBACK, BRIDGE, SHAPED) if link in rounds[0]]
    found: dict[str, Any] = {"links": {}, "ratios": {}}
    for link in links:
        found["links"][link] = {
            kind: {
                "seconds": precise(values(link, kind, "seconds")),
                "computing_seconds": precise(values(link, kind, "computing_seconds")),
                "weights_mb": precise(values(link, kind, "weights_mb")),
                "sent_mb": precise(values(link, kind, "sent_mb")),
                "sent_mb_per_s": precise(
                    [mb / s for mb, s in zip(values(link, kind, "sent_mb"), values(link, kind, "seconds"))]
                ),
            }
            for kind in KINDS
        }
        found["links"][link]["seed_seconds"] = precise(values(link, "seeded", "seed_seconds"))
        if link != LOOPBACK:
            found["links"][link]["transfer_mbit_per_s"] = precise([rates[link] for rates in transfers])
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
    return found


def report(found: dict[str, Any]) -> str:
    def range_of(figure: dict[str, Any], digits: int) -> str:
        return f"{figure['median']:.{digits}f} ({figure['min']:.{digits}f} to {figure['max']:.{digits}f})"

    rows = [
        [
            link,
            KINDS[kind],
            range_of(kinds[kind]["seconds"], 2),
            f"{kinds[kind]['weights_mb']['median']:.0f}",
            range_of(kinds[kind]["sent_mb"], 0),
            range_of(kinds[kind]["sent_mb_per_s"], 0),
        ]
        for link, kinds in found["links"].items()
        for kind in KINDS
    ]
    head = ["link", "load", "seconds, median (range)", "weights, MB", "over the wire, MB", "over the wire, MB/s"]
    parts = [
        table(head, rows),
        table(["ratio", "median (range)"], [[n, shown_ratio(r)] for n, r in found["ratios"].items()]),
    ]
    parts.append(
        table(
            ["link", "seeding, seconds"],
            [[link, range_of(kinds["seed_seconds"], 2)] for link, kinds in found["links"].items()],
        )
    )
    checks = [
        [link, range_of(kinds["transfer_mbit_per_s"], 0)]
        for link, kinds in found["links"].items()
        if "transfer_mbit_per_s" in kinds
    ]
    if checks:
        parts.append(table(["link", "a transfer of zeros, Mbit/s"], checks))
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help="a small model, loopback, once: whether it runs")
    args = parser.parse_args()
    if args.repetitions < 1:
        parser.error("--repetitions must be 1 or more.")
    end_on_signals()
    repetitions = 1 if args.smoke else args.repetitions
    between_hosts = not args.smoke and os.geteuid() == 0
    about = {"smoke": args.smoke, "repetitions": repetitions, "shaper": SHAPER, "before": machine()}
    try:
        path = model(SMOKE_LAYERS, SMOKE_WIDTH) if args.smoke else model(LAYERS, WIDTH)
        with ExitStack() as stack:
            number = int(os.environ.get("LAB_NUMBER") or 103)
            hosts = stack.enter_context(lab(number, ["master", "worker1"])) if between_hosts else None
            results = summary(*measured(path, hosts, repetitions))
    except (BenchError, RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    size = {"model": path.name, "model_bytes": path.stat().st_size}
    kept = keep("load", {**about, **size, **results})
    print(f"One worker, {path.name}, {size['model_bytes'] / 1e9:.2f} GB. The file is in this machine's memory.")
    if not between_hosts:
        print("What others send over loopback meanwhile counts as well.")
    print()
    print(report(results))
    print(f"\nAll values: {kept}")
    if not between_hosts and not args.smoke:
        print(
            "Not run: links between test hosts, which are containers; they need root: sudo make bench", file=sys.stderr
        )
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
