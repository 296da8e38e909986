# SPDX-License-Identifier: GPL-3.0-or-later
"""What the collection's patches are worth: its release against upstream's build of the same source, on this machine.

Upstream's workers and master against ours: one worker with a thread for each core; two workers of one core each that
divide each matrix (split mode tensor) of a model with heavy layers, where the part that is the workers' and the part
that is the master's are shown apart; and the time to load a model that is in the workers' caches, which is the
master's, over one worker and over two. Each round measures all of them once, in another order, and ratios are of
figures of the same round. Needs the release that `make test` builds, and builds upstream's, once, which takes a minute
or two.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from loopback import CORES, Case, Rates, in_rounds, keep, model, precise, ratios, release, shown_ratio, workers
from measure import ROOT, BenchError, end_on_signals, say, table

# Paths that loopback has not added.
sys.path.append(str(ROOT / "tests/performance"))
# isort: split
import load
from builds import Build, build
from harness import run_module
from throughput import over_workers

if TYPE_CHECKING:
    from pathlib import Path

SHAPE, SMOKE_SHAPE = (1024, 64), (32, 4)
ATTEMPTS = 5
UPSTREAM, OURS, MIXED = "upstream's", "ours", "our workers, upstream's master"


def upstream() -> Build:
    say("building upstream's programs of the same source, if they are not in the cache")
    return build("native", {}, ["ggml-rpc-server", "llama-bench", "llama-completion"], ())


def speeds(path: Path, wide: Path, theirs: Build, shape: tuple[int, int], repetitions: int) -> list[dict[str, Rates]]:
    def one(build: Build | None) -> Case:
        bin_dir = build.bin if build else None
        return lambda: over_workers(path, shape, [(len(CORES), CORES)], [512], worker_build=build, bin_dir=bin_dir)

    def tensor(worker_build: Build | None, bin_dir: Path | None) -> Case:
        of_each = [(1, [core]) for core in CORES[:2]]
        return lambda: over_workers(
            wide, shape, of_each, [], split_mode="tensor", worker_build=worker_build, bin_dir=bin_dir
        )

    cases = {f"one worker, {UPSTREAM}": one(theirs), f"one worker, {OURS}": one(None)}
    if len(CORES) > 1:
        cases |= {
            f"split mode tensor, {UPSTREAM}": tensor(theirs, theirs.bin),
            f"split mode tensor, {MIXED}": tensor(None, theirs.bin),
            f"split mode tensor, {OURS}": tensor(None, None),
        }
    return in_rounds(cases, repetitions, "speed")


def loaded(path: Path, endpoints: list[str], bin_dir: Path) -> float:
    """Load the model once, and return the seconds that were not spent on its two tokens."""
    options = {
        "model": str(path), "prompt": "the", "workers": endpoints, "n_predict": 1, "ctx_size": 256, "threads": 1,
        "bin_dir": str(bin_dir), "timeout": load.RUN_LIMIT_S,
    }  # fmt: skip
    for _attempt in range(ATTEMPTS):
        found = run_module("distributed_inference", options)
        if found.get("failure"):
            raise BenchError(f"distributed_inference failed: {found['msg']}")
        # Upstream's master may lose its last lines, and is run again then.
        if found["attempts"] == 1:
            perf = found["perf"]
            computing = (perf["prompt_eval"]["time_ms"] or 0) + (perf["eval"]["time_ms"] or 0)
            return float(found["wall_time_ms"] - computing) / 1000
    raise BenchError(f"Runs lost their last lines, {ATTEMPTS} times in a row.")


def cached_loads(path: Path, theirs: Build, repetitions: int) -> list[dict[str, Rates]]:
    """Load over one worker and over two, each bound to a core, which have all of the model in their caches."""
    with ExitStack() as stack:
        cases = {}
        for count in (1, 2)[: len(CORES)]:
            found = stack.enter_context(workers(*((1, [core]) for core in CORES[:count]), cached=True))
            endpoints = [worker.endpoint for worker in found]
            loaded(path, endpoints, release().bin)
            for whose, bin_dir in ((UPSTREAM, theirs.bin), (OURS, release().bin)):
                cases[f"{count} of one core, {whose}"] = lambda endpoints=endpoints, bin_dir=bin_dir: {
                    "seconds": loaded(path, endpoints, bin_dir)
                }
        return in_rounds(cases, repetitions, "load from the cache")


def shown_value(values: list[float]) -> str:
    figure = precise(values)
    digits = 2 if figure["median"] < 100 else 0
    return f"{figure['median']:.{digits}f} ({figure['min']:.{digits}f} to {figure['max']:.{digits}f})"


def compared(rounds: list[dict[str, Rates]], unit: str) -> list[list[str]]:
    """Return a row for each figure: its case, what it is, its values, and their ratio to upstream's."""
    rows = []
    for case, tests in rounds[0].items():
        where = case.partition(", ")[0]
        for test in tests:
            values = [done[case][test] for done in rounds]
            reference = [done[f"{where}, {UPSTREAM}"][test] for done in rounds]
            rows.append(
                [case, f"{test}, {unit}" if unit not in test else test, shown_value(values),
                 shown_ratio(ratios(values, reference))]
            )  # fmt: skip
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help="small models, once: whether it runs, not what it costs")
    args = parser.parse_args()
    if args.repetitions < 1:
        parser.error("--repetitions must be 1 or more.")
    end_on_signals()
    repetitions, shape = (1, SMOKE_SHAPE) if args.smoke else (args.repetitions, SHAPE)
    try:
        small, wide = model(smoke=args.smoke), model(smoke=args.smoke, wide=True)
        heavy = load.model(*((load.SMOKE_LAYERS, load.SMOKE_WIDTH) if args.smoke else (load.LAYERS, load.WIDTH)))
        theirs = upstream()
        speed = speeds(small, wide, theirs, shape, repetitions)
        loads = cached_loads(heavy, theirs, repetitions)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    found: dict[str, Any] = {
        "smoke": args.smoke, "shape": shape, "models": [small.name, wide.name, heavy.name],
        "speed": speed, "load": loads,
    }  # fmt: skip
    kept = keep("upstream", found)
    head = ["case", "what", "median (range)", f"ratio to {UPSTREAM}"]
    print(f"{shape[0]} tokens read, {shape[1]} generated, on {len(CORES)} cores\n")
    print(table(head, compared(speed, "tokens/s")))
    print(f"\n{heavy.name} from the workers' caches\n" + table(head, compared(loads, "seconds")))
    print(f"\nAll values: {kept}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
