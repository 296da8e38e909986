# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the cost of llama.cpp on N equal workers: the number of builds, and the time that one more worker adds.

First, role llama_cpp compiles the worker of the real, pinned source on bare hosts, each time with another host first.
Then its artifact goes to hosts that have no release. Then there is nothing to do. Needs root.
"""

from __future__ import annotations

import json
import os
from typing import Any

from benchmarks.measure import (
    CACHE,
    HERE,
    BenchError,
    Hosts,
    asked_of_hosts,
    lab,
    machine,
    machine_line,
    parser_of,
    reported,
    run_to_end,
    say,
    shown,
    spread,
    table,
)

# Equal workers: a host with another C library is of another class.
WORKERS = ("worker1", "worker3", "worker4", "worker5")
BUILD_LIMIT_S = 3600
DELIVERY_LIMIT_S = 300
MOST_PER_HOST_S = 5
FORKS = 5  # Ansible's default; no fewer than there are hosts
SHARED = (
    "The hosts are containers on this one machine: they share its cores, memory and disk with each other and with "
    "Ansible, and their network is a bridge; what they do at once takes turns. Nothing is emulated, and no compiler's "
    "cache is used."
)
FOLDER = CACHE / "benchmarks" / "rollout"


def rollout(hosts: Hosts, names: list[str], log: str, limit_s: int) -> Any:
    variables = {
        "rollout_hosts": ":".join(names),
        "__llama_cpp_cache": str(FOLDER / "cache"),
        # The options with which users compile: the lab's own options optimise less.
        "llama_cpp_cmake_options": {},
    }
    log_path = FOLDER / f"{log}.log"
    return hosts.play(HERE / "rollout.yml", variables, forks=FORKS, limit_s=limit_s, log=log_path)


def empty_cache() -> None:
    """Remove all artifacts from the cache, and link the sources that all runs share."""
    (FOLDER / "cache").mkdir(parents=True, exist_ok=True)
    for artifact in (FOLDER / "cache").glob("artifacts/*"):
        artifact.unlink()
    sources = FOLDER / "cache/sources"
    if not sources.is_symlink():
        (CACHE / "sources").mkdir(parents=True, exist_ok=True)
        sources.symlink_to(CACHE / "sources")


def build(hosts: Hosts, names: list[str]) -> dict[str, Any]:
    """Compile on bare hosts; return the builds, and the compilers, artifacts and programs afterwards."""
    empty_cache()
    say(f"{len(names)} bare hosts get a release that nobody has: {', '.join(names)}")
    load = os.getloadavg()[0]
    run = rollout(hosts, names, f"build-{len(names)}", BUILD_LIMIT_S)
    look = "command -v c++ g++ cc gcc >/dev/null && echo compiler; sha256sum /opt/llama_cpp/current/bin/rpc-server"
    seen = {name: hosts.ssh(name, look) for name in names}
    records = {path.stem: json.loads(path.read_text()) for path in (FOLDER / "cache/artifacts").glob("*.json")}
    found = {
        "hosts": names,
        "seconds": round(run.seconds, 1),
        "builds": run.compiled,
        "hosts_with_a_compiler": [name for name in names if "compiler" in seen[name]],
        "artifacts": [
            {"id": name, "sha256": it["sha256"], "size_bytes": it["size_bytes"]} for name, it in records.items()
        ],
        "compiler": sorted({it["manifest"]["compiler"] for it in records.values()}),
        "programs": sorted({text.splitlines()[-1].split()[0] for text in seen.values()}),
        "load": round(load, 1),
    }
    with_compiler = ", ".join(found["hosts_with_a_compiler"])
    say(f"  {len(run.compiled)} builds in {run.seconds:.0f} s; a compiler is on {with_compiler}")
    return found


def deliver(hosts: Hosts, names: list[str], repetition: int) -> dict[str, float]:
    """Bring the cached artifact to hosts without a release, then run with nothing to do; return the seconds of both."""
    for name in names:
        hosts.ssh(name, "sudo rm -rf /opt/llama_cpp")
    load = os.getloadavg()[0]
    took = {}
    for kind in ("delivery", "nothing"):
        run = rollout(hosts, names, f"{kind}-{len(names)}-{repetition}", DELIVERY_LIMIT_S)
        if run.compiled:
            raise BenchError(f"{', '.join(line['on'] for line in run.compiled)} compiled what was in the cache.")
        if (run.changed > 0) != (kind == "delivery"):
            raise BenchError(f"{run.changed} tasks changed something in a run for {kind} on {', '.join(names)}.")
        took[kind] = run.seconds
    say(
        f"  {len(names)} hosts, repetition {repetition}: delivery {took['delivery']:.1f} s, "
        f"nothing to do {took['nothing']:.1f} s (load before: {load:.1f})"
    )
    return {**took, "load": load}


def costs(taken: dict[int, list[dict[str, float]]]) -> dict[str, Any]:
    """Return the seconds for each number of hosts, and the seconds that one more host adds, over all repetitions."""
    found: dict[str, Any] = {}
    for size, runs in taken.items():
        found[str(size)] = {
            "delivery_s": spread([run["delivery"] for run in runs]),
            "nothing_to_do_s": spread([run["nothing"] for run in runs]),
            # Hosts work at the same time, so this is no more than a share.
            "push_and_switch_s_per_host": spread([(run["delivery"] - run["nothing"]) / size for run in runs]),
            "load": spread([run["load"] for run in runs]),
        }
    sizes = sorted(taken)
    for fewer, more in [*zip(sizes, sizes[1:]), *([(sizes[0], sizes[-1])] if len(sizes) > 2 else [])]:
        for kind in ("delivery", "nothing"):
            pairs = zip(taken[fewer], taken[more])
            each = [(after[kind] - before[kind]) / (more - fewer) for before, after in pairs]
            found.setdefault("one_more_host_s", {}).setdefault(f"{fewer} to {more}", {})[kind] = spread(each)
    return found


def faults(builds: list[dict[str, Any]], cost: dict[str, Any]) -> list[str]:
    """Return one sentence for each missed target."""
    missed = []
    for built in builds:
        who = f"{len(built['hosts'])} hosts"
        if len(built["builds"]) != 1 or len(built["hosts_with_a_compiler"]) != 1 or len(built["artifacts"]) != 1:
            missed.append(f"{who} of one class cost {len(built['builds'])} builds.")
        if len(built["programs"]) != 1:
            missed.append(f"{who} have programs that differ.")
    if len({artifact["sha256"] for built in builds for artifact in built["artifacts"]}) != 1:
        missed.append("Different hosts made different bytes of the same source.")
    for step, added in cost.get("one_more_host_s", {}).items():
        if added["delivery"]["median"] > MOST_PER_HOST_S:
            missed.append(
                f"From {step} hosts, one more adds {added['delivery']['median']} s, over {MOST_PER_HOST_S} s."
            )
    return missed


def as_text(report: dict[str, Any]) -> str:
    cost = report["delivery"]
    built = [
        [
            len(one["hosts"]),
            one["hosts"][0],
            len(one["builds"]),
            ", ".join(line["on"] for line in one["builds"]),
            ", ".join(one["hosts_with_a_compiler"]),
            sum(line["seconds"] for line in one["builds"]),
            one["seconds"],
            ", ".join(f"{artifact['sha256'][:16]}… {artifact['size_bytes']}" for artifact in one["artifacts"]),
        ]
        for one in report["builds"]
    ]
    delivered = [
        [size, *(shown(cost[size][key]) for key in ("delivery_s", "nothing_to_do_s", "push_and_switch_s_per_host"))]
        for size in map(str, report["sizes"])
    ]
    more = [
        [step, shown(added["delivery"]), shown(added["nothing"])]
        for step, added in cost.get("one_more_host_s", {}).items()
    ]
    builds_head = "hosts, comes first, builds, compiled on, has a compiler, compiling s, run s, artifact: sha256 bytes"
    parts = [
        f"{machine_line(report['machine'])}\n{report['shared']}",
        "Bare hosts, no artifact\n" + table(builds_head.split(", "), built),
        f"Seconds of a whole run, {FORKS} forks, new connections; median (min to max) of {report['repetitions']}\n"
        + table(["hosts", "artifact in the cache", "nothing to do", "their difference, per host"], delivered),
    ]
    if more:
        parts.append("What one more host adds, seconds\n" + table(["hosts", "delivery", "nothing to do"], more))
    met = (
        f"Met: one build for a class, the same bytes from each builder, at most {MOST_PER_HOST_S} s for one more host."
    )
    return "\n\n".join([*parts, "\n".join(report["missed"]) or met])


def main() -> int:
    args = asked_of_hosts(parser_of(__doc__), FOLDER / "rollout.json", "hosts", [1, 2, 4], len(WORKERS))
    about = {"machine": machine(), "shared": SHARED, "sizes": args.sizes, "repetitions": args.repetitions}
    FOLDER.mkdir(parents=True, exist_ok=True)
    builds = []
    taken: dict[int, list[dict[str, float]]] = {size: [] for size in args.sizes}
    for turn, size in enumerate(args.sizes):
        # Each time another host comes first: the first host builds.
        names = [*WORKERS[turn % len(WORKERS) :], *WORKERS[: turn % len(WORKERS)]][:size]
        with lab(102, names) as hosts:
            builds.append(build(hosts, names))
            if size != args.sizes[-1]:
                continue
            say(f"its artifact goes to hosts without a release, {args.repetitions} times")
            for repetition in range(1, args.repetitions + 1):
                for count, runs in taken.items():
                    runs.append(deliver(hosts, names[:count], repetition))
    delivery = costs(taken)
    report = {**about, "builds": builds, "delivery": delivery, "missed": faults(builds, delivery)}
    return reported(report, as_text(report), args.output)


if __name__ == "__main__":
    run_to_end(main)
