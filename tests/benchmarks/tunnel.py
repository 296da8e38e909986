# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure what a WireGuard tunnel between a master and a worker costs, and where its time goes.

A worker of one core is in a network namespace of its own, and the master is here; a cable (veth) joins them. The master
asks the same worker by the cable's address and by that of a tunnel through the cable. Worker and master have a core
each. Each end of the tunnel runs on the core of its side, or is kept off the worker's core: with four cores or more
each end then has a core of its own, with fewer both share the master's. The tunnel is the kernel's if the kernel has
WireGuard, else wireguard-go, and the table says which. Only wireguard-go can be kept off a core. Each round measures
all cases once and begins with another case. Ratios compare figures of the same round. Needs root, and the release that
`make test` builds.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.loopback import CORES, Rates, in_rounds, keep, model, obstacle, ratio, release
from benchmarks.measure import NotRunError, asked, output_of, run_to_end, shown, spread, table
from benchmarks.throughput import measured
from support.debian_programs import debian_program
from support.harness import end, running_worker
from support.runs import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

SPACE = "llama-tunnel"
CABLE, TUNNEL = ("lltcable0", "lltcable1"), ("lltwg0", "lltwg1")
PLAIN_ADDRESS, TUNNEL_ADDRESS = ("10.88.0.1", "10.88.0.2"), ("10.88.1.1", "10.88.1.2")
PORTS = (51891, 51892)
LIMIT_S = 30
# Bytes that WireGuard adds to a packet of IPv4 or IPv6.
OVERHEAD = 80
TOKENS, PROMPT = 136, 128
# How often packets and processor time are read during a run, and the part of its generation that counts.
LOOK_S, LOOKED_AT = 0.05, (0.1, 0.9)
# Least share of the generation without the tunnel, if no end of wireguard-go is on the worker's core.
LEAST_GENERATION, GENERATION = 0.9, "generation, tokens/s"
PLAIN, USUAL, LARGE, APART = "no tunnel", "tunnel", "tunnel, packets of 8920 bytes", "tunnel off the worker's core"
ECHO = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("0.0.0.0", int(sys.argv[1])))
print("ready", flush=True)
while True:
    sock.sendto(*sock.recvfrom(64))
"""


def run(*command: str | Path) -> str:
    return output_of(command, f"{' '.join(map(str, command[:4]))} failed", LIMIT_S)


def inside(*command: str | Path) -> str:
    return run("ip", "netns", "exec", SPACE, *command)


@dataclass
class Ends:
    """Both ends of the tunnel: the processes of wireguard-go, or none if the kernel has the tunnel."""

    processes: list[subprocess.Popen[bytes]]

    @property
    def kind(self) -> str:
        return "wireguard-go" if self.processes else "the kernel's WireGuard"

    def seconds(self) -> float:
        """Return the processor time of both processes, in seconds."""
        ticks = 0
        for process in self.processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def run_on(self, cores: tuple[int, int]) -> None:
        """Move all threads of the end here and of the worker's end to these cores."""
        for process, core in zip(self.processes, cores, strict=False):
            for thread in Path(f"/proc/{process.pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})

    @staticmethod
    def packets() -> int:
        counts = Path(f"/sys/class/net/{TUNNEL[0]}/statistics")
        return sum(int((counts / name).read_text()) for name in ("tx_packets", "rx_packets"))


@contextmanager
def cable() -> Iterator[None]:
    """Make a namespace for the worker and a cable to it; remove both in the end."""
    try:
        run("ip", "netns", "add", SPACE)
        run("ip", "link", "add", CABLE[0], "type", "veth", "peer", "name", CABLE[1], "netns", SPACE)
        run("ip", "address", "add", f"{PLAIN_ADDRESS[0]}/24", "dev", CABLE[0])
        inside("ip", "address", "add", f"{PLAIN_ADDRESS[1]}/24", "dev", CABLE[1])
        run("ip", "link", "set", CABLE[0], "up")
        inside("ip", "link", "set", CABLE[1], "up")
        inside("ip", "link", "set", "lo", "up")
        yield
    finally:
        # This deletes the cable, too.
        subprocess.run(["ip", "netns", "delete", SPACE], stderr=subprocess.DEVNULL, check=False, timeout=LIMIT_S)


@contextmanager
def tunnel(folder: Path) -> Iterator[Ends]:
    """Make a tunnel through the cable, and yield its ends."""
    wg = debian_program("wireguard-tools", "usr/bin/wg")
    kernel = subprocess.run(["ip", "link", "add", TUNNEL[0], "type", "wireguard"], capture_output=True, check=False)
    ends = Ends([])
    try:
        secrets = [folder / f"key{end_of}" for end_of in (0, 1)]
        public = []
        for secret in secrets:
            secret.write_text(run(wg, "genkey"))
            public.append(subprocess.check_output([wg, "pubkey"], text=True, input=secret.read_text()).strip())
        for number, name in enumerate(TUNNEL):
            space = ("ip", "netns", "exec", SPACE) if number else ()
            if kernel.returncode:
                program = debian_program("wireguard-go", "usr/bin/wireguard-go")
                process = subprocess.Popen([*space, program, "-f", name], stderr=subprocess.DEVNULL)
                ends.processes.append(process)
                control = Path("/run/wireguard", f"{name}.sock")
                wait_for(control.exists, LIMIT_S)
            elif number:
                run(*space, "ip", "link", "add", name, "type", "wireguard")
            other = 1 - number
            run(
                *space, wg, "set", name, "listen-port", str(PORTS[number]), "private-key", secrets[number],
                "peer", public[other], "endpoint", f"{PLAIN_ADDRESS[other]}:{PORTS[other]}",
                "allowed-ips", f"{TUNNEL_ADDRESS[other]}/32",
            )  # fmt: skip
            run(*space, "ip", "address", "add", f"{TUNNEL_ADDRESS[number]}/24", "dev", name)
            run(*space, "ip", "link", "set", name, "up")
        yield ends
    finally:
        for process in ends.processes:
            end(process)
        if not kernel.returncode:
            run("ip", "link", "delete", TUNNEL[0])


def set_packets(bytes_of_cable: int) -> None:
    """Set the packet size of the cable, and the size that is left of it in the tunnel."""
    for names, size in ((CABLE, bytes_of_cable), (TUNNEL, bytes_of_cable - OVERHEAD)):
        run("ip", "link", "set", names[0], "mtu", str(size))
        inside("ip", "link", "set", names[1], "mtu", str(size))


def round_trip_ms(address: str) -> float:
    """Return the median time of many round trips of a small packet, in ms."""
    echo = subprocess.Popen(
        ["ip", "netns", "exec", SPACE, sys.executable, "-c", ECHO, "51893"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert echo.stdout
        echo.stdout.readline()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(LIMIT_S)
            times = []
            for _number in range(200):
                began = time.perf_counter()
                sock.sendto(b"ping", (address, 51893))
                sock.recv(64)
                times.append(time.perf_counter() - began)
    finally:
        end(echo)  # type: ignore[arg-type]
        if echo.stdout:
            echo.stdout.close()
    return sorted(times)[len(times) // 2] * 1000


def bench(path: Path, endpoint: str, *options: str) -> tuple[float, float]:
    """Return tokens per second, and the seconds of the whole run with its load."""
    began = time.monotonic()
    (test,) = measured(path, "--rpc", endpoint, "-dev", "RPC0", "-ngl", "999", "-t", "1", *options)
    return float(test["avg_ts"]), time.monotonic() - began


@contextmanager
def looks(ends: Ends) -> Iterator[list[tuple[float, int, float]]]:
    """Read the time, the tunnel's packets so far and its processor time so far, again and again; yield the list."""
    found: list[tuple[float, int, float]] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            found.append((time.monotonic(), ends.packets(), ends.seconds()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def for_a_token(found: list[tuple[float, int, float]], tokens_per_second: float) -> tuple[float, float]:
    """Return packets and processor seconds for a token, from looks at a run that ended with its generation.

    The load before it sends far more packets than all tokens, so only the time of the generation counts.
    """
    seconds = TOKENS / tokens_per_second
    first, last = (found[-1][0] - seconds * (1 - part) for part in LOOKED_AT)
    within = [look for look in found if first <= look[0] <= last]
    (began, packets, busy), (ended, more_packets, busier) = within[0], within[-1]
    tokens = (ended - began) * tokens_per_second
    return (more_packets - packets) / tokens, (busier - busy) / tokens


def case(
    models: tuple[Path, Path], ends: Ends, address: str, packet: int, cores: tuple[int, int], folder: Path, core: int
) -> Rates:
    """Measure a worker whose cache is empty at first: loads with the model of large tensors, speeds with the other."""
    path, large = models
    set_packets(packet)
    ends.run_on(cores)
    found: Rates = {"round trip, ms": round_trip_ms(address)}
    with tempfile.TemporaryDirectory(dir=folder) as place, ExitStack() as stack:
        prefix = ("ip", "netns", "exec", SPACE, "env", f"LLAMA_CACHE={place}/cache", "taskset", "-c", str(core))
        log = Path(place, "log")
        worker = stack.enter_context(running_worker(release(), log, "-c", prefix=prefix, address=address))
        endpoint = f"{address}:{worker.port}"
        found["first load, s"] = bench(large, endpoint, "-p", "0", "-n", "1")[1]
        found["cached load, s"] = bench(large, endpoint, "-p", "0", "-n", "1")[1]
        found["prompt, tokens/s"] = bench(path, endpoint, "-p", str(PROMPT), "-n", "0")[0]
        with looks(ends) as seen:
            found[GENERATION] = bench(path, endpoint, "-p", "0", "-n", str(TOKENS))[0]
    if address in TUNNEL_ADDRESS:
        packets, seconds = for_a_token(seen, found[GENERATION])
        found["packets for a token"] = packets
        if ends.processes:
            found["tunnel's processor time for a token, ms"] = seconds * 1000
    return found


def texts(rounds: list[dict[str, Rates]]) -> str:
    rows = [
        [
            name,
            test,
            shown(spread([done[name][test] for done in rounds], 3), 2),
            shown(ratio(rounds, name, PLAIN, test), 2) if test in rounds[0][PLAIN] else "",
        ]
        for name, tests in rounds[0].items()
        for test in tests
    ]
    return table(["case", "what", "median (range)", f"ratio to: {PLAIN}"], rows)


def main() -> int:
    """Measure, print the table, and write all values as JSON."""
    args = asked(__doc__, "a tiny model, which only shows that it runs", rounds=3)
    if os.geteuid() != 0:
        raise NotRunError("tunnel; network namespaces need root.")
    if why := obstacle(2):
        raise NotRunError(f"tunnel; {why}.")
    # The worker has the first core, and llama-bench the others.
    worker, master = CORES[0], CORES[1]
    beside, apart = (master, worker), (CORES[3], CORES[2]) if len(CORES) >= 4 else (master, master)
    with tempfile.TemporaryDirectory() as name, cable(), tunnel(Path(name)) as ends:
        models, folder = (model(smoke=args.smoke), model(smoke=args.smoke, wide=True)), Path(name)
        inner = TUNNEL_ADDRESS[1]
        ways = {PLAIN: (PLAIN_ADDRESS[1], 1500, beside), USUAL: (inner, 1500, beside), LARGE: (inner, 9000, beside)}
        if ends.processes:
            ways[APART] = (inner, 1500, apart)
        cases = {name: lambda way=way: case(models, ends, *way, folder, worker) for name, way in ways.items()}
        rounds = in_rounds(cases, args.repetitions, "tunnel")
        kind = ends.kind
    print(f"\nA worker of one core, and {kind}\n")
    print(texts(rounds))
    missed = False
    if ends.processes:
        own = "each end has a core of its own" if len(CORES) >= 4 else "both ends share the master's core"
        missed = ratio(rounds, APART, PLAIN, GENERATION)["median"] < LEAST_GENERATION
        print(
            f"\n{'Missed' if missed else 'Met'}: {APART} ({own}), generation is at least {LEAST_GENERATION} of that "
            "without it."
        )
    print(f"\nAll of it: {keep('tunnel', args, {'kind': kind, 'rounds': rounds})}")
    return int(missed and not args.smoke)


if __name__ == "__main__":
    run_to_end(main)
