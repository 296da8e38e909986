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

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from loopback import (
    CORES,
    Case,
    Rates,
    compared,
    in_rounds,
    keep,
    model,
    obstacle,
    release,
    repeated,
    report,
    workers,
)
from measure import ROOT, asked, run_to_end, say

# Paths that loopback has not added.
sys.path.append(str(ROOT / "tests/performance"))
# isort: split
import load
from builds import Build, build
from throughput import ONE, SHAPE, SMOKE_SHAPE, TWO, UNIT, over_workers

if TYPE_CHECKING:
    from pathlib import Path

WHOLE, DIVIDED = "one worker", "split mode tensor"
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

    cases = {f"{WHOLE}, {UPSTREAM}": one(theirs), f"{WHOLE}, {OURS}": one(None)}
    if not obstacle(2):
        cases |= {
            f"{DIVIDED}, {UPSTREAM}": tensor(theirs, theirs.bin),
            f"{DIVIDED}, {MIXED}": tensor(None, theirs.bin),
            f"{DIVIDED}, {OURS}": tensor(None, None),
        }
    return in_rounds(cases, repetitions, "speed")


def loaded(path: Path, endpoints: list[str], bin_dir: Path) -> float:
    """Load the model once, and return the seconds that were not spent on its two tokens."""
    # Upstream's master may lose its last lines.
    return repeated(lambda: load.run(path, endpoints, bin_dir), load.ATTEMPTS).seconds


def cached_loads(path: Path, theirs: Build, repetitions: int) -> list[dict[str, Rates]]:
    """Load over one worker and over two, each bound to a core, which have all of the model in their caches."""
    with ExitStack() as stack:
        cases = {}
        for setup in (ONE, TWO):
            if setup.obstacle:
                continue
            found = stack.enter_context(workers(*((1, [core]) for core in CORES[: setup.count]), cached=True))
            endpoints = [worker.endpoint for worker in found]
            loaded(path, endpoints, release().bin)
            for whose, bin_dir in ((UPSTREAM, theirs.bin), (OURS, release().bin)):
                cases[f"{setup}, {whose}"] = lambda endpoints=endpoints, bin_dir=bin_dir: {
                    "seconds": loaded(path, endpoints, bin_dir)
                }
        return in_rounds(cases, repetitions, "load from the cache")


def reference(case: str) -> str:
    """Return the case of upstream's programs that another is compared to."""
    return f"{case.partition(', ')[0]}, {UPSTREAM}"


def main() -> int:
    args = asked(__doc__, "small models, once: whether it runs, not what it costs")
    shape = SMOKE_SHAPE if args.smoke else SHAPE
    small, wide, heavy = model(smoke=args.smoke), model(smoke=args.smoke, wide=True), load.model(smoke=args.smoke)
    theirs = upstream()
    speed = speeds(small, wide, theirs, shape, args.repetitions)
    loads = cached_loads(heavy, theirs, args.repetitions)
    models = [small.name, wide.name, heavy.name]
    kept = keep("upstream", args, {"shape": shape, "models": models, "speed": speed, "load": loads})
    print(f"{shape[0]} tokens read, {shape[1]} generated, on {len(CORES)} cores")
    for rounds, unit, two in ((speed, UNIT, DIVIDED), (loads, "seconds", str(TWO))):
        not_run = {two: obstacle(2)} if obstacle(2) else {}
        print(f"\n{report(compared(rounds, unit, reference), unit, UPSTREAM, not_run)}")
    print(f"\nLoads are of {heavy.name} from the workers' caches.\nAll values: {kept}")
    return 0


if __name__ == "__main__":
    run_to_end(main)
