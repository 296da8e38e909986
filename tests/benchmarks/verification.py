# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure how long module rpc_worker_info takes over 10, 100 and 500 endpoints, also if 50 of 500 never answer.

The benchmark runs the module as a task in a play, as users do, and its core alone: probe(), called in a program that
does nothing else. Endpoints are stand-ins, as a machine has no room for 500 workers; the silent ones accept
connections. Some cases have real workers. Needs the release that `make test` builds, and no root.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.loopback import in_rounds, keep, ratios, release, timed_task
from benchmarks.measure import BenchError, asked, run_to_end, shown, spread, table
from support.collection import parse_endpoints, probe, summarize
from support.harness import running_worker
from support.stand_in_workers import apart

if TYPE_CHECKING:
    from benchmarks.loopback import Case, Rates

STAND_INS = (
    "Endpoints are stand-ins on loopback, in a process of their own, that speak the handshake of protocol 7.0.0; "
    "where it says so, real workers. Silent ones accept connections and never answer."
)
# The default timeout of the module, and how much later the task may end.
TIMEOUT_S = 5.0
MOST_MORE_S = 2.0


class Size(NamedTuple):
    """The endpoints of one case: how many answer, how many are silent, and whether they are real workers."""

    answering: int
    silent: int = 0
    real: bool = False

    def __str__(self) -> str:
        what = f"{self.answering + self.silent} {'real workers' if self.real else 'endpoints'}"
        return f"{what}, {self.silent} of them silent" if self.silent else what


SIZES = [Size(10), Size(100), Size(500), Size(450, 50), Size(4, real=True), Size(10, real=True)]
SMOKE_SIZES = [Size(5), Size(20), Size(15, 5), Size(2, real=True)]
SMOKE_TIMEOUT_S = 2.0


def looked_at(size: Size, endpoints: list[str], timeout_s: float, folder: Path) -> Rates:
    """Look at these endpoints by the task and by probe(), and return the seconds of each."""
    task_s, of_task = timed_task("rpc_worker_info", {"endpoints": endpoints, "timeout": timeout_s}, folder)
    began = time.monotonic()
    of_probe = summarize(probe(parse_endpoints(endpoints), timeout_s))
    probe_s = time.monotonic() - began
    for found in (of_task["counts"], of_probe["counts"]):
        if (found["ready"], found["busy"]) != (size.answering, size.silent):
            raise BenchError(f"Of {size}, {found['ready']} were found ready and {found['busy']} busy.")
    return {"task": task_s, "probe": probe_s}


def measure(sizes: list[Size], timeout_s: float, repetitions: int) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stand_ins = [size for size in sizes if not size.real]
        most = max(size.answering for size in stand_ins), max(size.silent for size in stand_ins)
        answering, silent = stack.enter_context(apart(*most))
        real = [
            stack.enter_context(running_worker(release(), folder / f"{number}.log")).endpoint
            for number in range(max(size.answering for size in sizes if size.real))
        ]

        def case(size: Size) -> Case:
            good = (real if size.real else answering)[: size.answering]
            return lambda: looked_at(size, [*good, *silent[: size.silent]], timeout_s, folder)

        rounds = in_rounds({str(size): case(size) for size in sizes}, repetitions, "looks at endpoints")
    return summary(rounds, sizes, timeout_s)


def summary(rounds: list[dict[str, Rates]], sizes: list[Size], timeout_s: float) -> dict[str, Any]:
    def seconds(size: Size, way: str) -> list[float]:
        return [done[str(size)][way] for done in rounds]

    answering = [size for size in sizes if not (size.silent or size.real)]
    least, most = answering[0], answering[-1]
    more = most.answering - least.answering
    cases = {
        str(size): {
            "endpoints": size.answering + size.silent,
            "silent": size.silent,
            "real": size.real,
            "task_seconds": spread(seconds(size, "task"), 4),
            "probe_seconds": spread(seconds(size, "probe"), 4),
        }
        for size in sizes
    }
    growth = {
        way: {
            "ratio": ratios(seconds(most, way), seconds(least, way)),
            "one_more_endpoint_ms": spread(
                [1000 * (many - few) / more for many, few in zip(seconds(most, way), seconds(least, way))], 4
            ),
        }
        for way in ("task", "probe")
    }
    allowed_s = timeout_s + MOST_MORE_S
    missed = [
        f"With a timeout of {timeout_s:g} s the task over {size} took {cases[str(size)]['task_seconds']['max']:.1f} s, "
        f"over {allowed_s:g} s."
        for size in sizes
        if size.silent and cases[str(size)]["task_seconds"]["max"] > allowed_s
    ]
    return {
        "stand_ins": STAND_INS,
        "timeout_s": timeout_s,
        "cases": cases,
        "growth": {"from": str(least), "to": str(most), **growth},
        "missed": missed,
    }


def as_text(found: dict[str, Any]) -> str:
    growth = found["growth"]
    rows = [
        [name, shown(case["task_seconds"], 3), shown(case["probe_seconds"], 3)] for name, case in found["cases"].items()
    ]
    more = [
        [name, *(shown(growth[way][key], 3) for way in ("task", "probe"))]
        for name, key in (
            (f"{growth['to']} / {growth['from']}", "ratio"),
            ("one more endpoint, ms", "one_more_endpoint_ms"),
        )
    ]
    met = f"Met: with silent endpoints the task ends at most {MOST_MORE_S:g} s after the time-out."
    return "\n\n".join(
        [
            found["stand_ins"],
            f"Seconds, median (range), time-out {found['timeout_s']:g} s\n"
            + table(["looked at", "task in a play", "probe() alone"], rows),
            "Growth\n" + table(["", "task in a play", "probe() alone"], more),
            "\n".join(found["missed"]) or met,
        ]
    )


def main() -> int:
    args = asked(__doc__, "few endpoints, once: whether it runs, not what it costs")
    sizes, timeout_s = (SMOKE_SIZES, SMOKE_TIMEOUT_S) if args.smoke else (SIZES, TIMEOUT_S)
    results = measure(sizes, timeout_s, args.repetitions)
    kept = keep("verification", args, results)
    print(f"{as_text(results)}\n\nAll values: {kept}")
    return 1 if results["missed"] and not args.smoke else 0


if __name__ == "__main__":
    run_to_end(main)
