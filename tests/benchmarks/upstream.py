# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the effect of the collection's patches: its release against upstream's build of the same source.

Upstream's workers and master are compared to ours in these cases: local inference without workers, where both have the
same kernels; one worker with a thread for each core; two workers of one core each; two workers that divide each matrix
(split mode tensor) of a model with heavy layers, where the workers' part and the master's part are shown apart. The
benchmark also shows how far either worker is from local inference. Then it measures the time to load a model that is in
the workers' caches, which is the master's time, over one worker and over two; for upstream's master also with each of
its options for loading. Each round measures all cases once and begins with another case. Ratios compare figures of the
same round. With --bin NAME=FOLDER, the programs of another release are measured as well. Needs the release that `make
test` builds, and builds upstream's once, which takes a minute or two.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from benchmarks import load
from benchmarks.loopback import (
    CORES,
    Case,
    Rates,
    compared,
    in_rounds,
    keep,
    model,
    obstacle,
    ratio,
    release,
    repeated,
    report,
    workers,
)
from benchmarks.measure import asked, parser_of, run_to_end, say, shown, table
from benchmarks.serving import Programs, programs_of
from benchmarks.throughput import ONE, PASSES, SHAPE, SMOKE_SHAPE, TWO, UBATCHES, UNIT, local, over_workers
from support.builds import Build, build

if TYPE_CHECKING:
    from pathlib import Path

    from support.harness import AnyRelease

LOCAL, WHOLE, LAYERS, DIVIDED = "without RPC", "one worker", "two workers of one core", "split mode tensor"
UPSTREAM, OURS, MIXED = "upstream's", "ours", "our workers, upstream's master"

# Stock options of a load, beside the default of a mapped file. (Modes with mlock keep the master's own weights in
# memory, --lazy-mode is about data that is not sent, and --check-tensors only adds to the load.)
STOCK_OPTIONS = ("--load-mode none", "--load-mode dio", "--no-warmup")


def upstream() -> Build:
    say("building upstream's programs of the same source, if they are not in the cache")
    return build("native", {}, ["ggml-rpc-server", "llama-bench", "llama-completion"], ())


def speeds(
    path: Path, wide: Path, theirs: Build, others: dict[str, Programs], shape: tuple[int, int], repetitions: int
) -> list[dict[str, Rates]]:
    def alone(build: AnyRelease | None) -> Case:
        return lambda: local(path, shape, UBATCHES[-1:], bin_folder=build.bin if build else None)

    def layers(build: AnyRelease | None, of_each: list[tuple[int, list[int]]], ubatch: int) -> Case:
        bin_folder = build.bin if build else None
        return lambda: over_workers(path, shape, of_each, [ubatch], worker_build=build, bin_folder=bin_folder)

    def tensor(worker_build: AnyRelease | None, bin_folder: Path | None) -> Case:
        of_each = [(1, [core]) for core in CORES[:2]]
        return lambda: over_workers(
            wide, shape, of_each, [], split_mode="tensor", worker_build=worker_build, bin_folder=bin_folder
        )

    builds: dict[str, AnyRelease | None] = {UPSTREAM: theirs, OURS: None, **others}
    whole = [(len(CORES), CORES)]
    cases = {f"{LOCAL}, {whose}": alone(build) for whose, build in builds.items()}
    cases |= {f"{WHOLE}, {whose}": layers(build, whole, UBATCHES[-1]) for whose, build in builds.items()}
    if not obstacle(2):
        # This physical batch lets two workers compute at the same time.
        two = [(1, [core]) for core in CORES[:2]]
        cases |= {f"{LAYERS}, {whose}": layers(build, two, UBATCHES[1]) for whose, build in builds.items()}
        cases |= {f"{DIVIDED}, {whose}": tensor(build, build.bin if build else None) for whose, build in builds.items()}
        cases[f"{DIVIDED}, {MIXED}"] = tensor(None, theirs.bin)
    return in_rounds(cases, repetitions, "speed")


def loaded(path: Path, endpoints: list[str], bin_folder: Path, options: str = "") -> float:
    """Load the model once, and return the seconds without those for its two tokens."""
    # Upstream's master may lose its last lines.
    return repeated(lambda: load.run(path, endpoints, bin_folder, (), options.split()), load.ATTEMPTS).seconds


def load_of(path: Path, endpoints: list[str], bin_folder: Path, options: str = "") -> Case:
    return lambda: {"seconds": loaded(path, endpoints, bin_folder, options)}


def cached_loads(path: Path, theirs: Build, others: dict[str, Programs], repetitions: int) -> list[dict[str, Rates]]:
    """Measure loads over one worker and over two, each bound to a core, with all of the model in their caches.

    The workers are of the default release; programs of `others` have workers of their own.
    """
    with ExitStack() as stack:
        cases = {}
        for setup in (ONE, TWO):
            if setup.obstacle:
                continue
            found = stack.enter_context(workers(*((1, [core]) for core in CORES[: setup.count]), cached=True))
            endpoints = [worker.endpoint for worker in found]
            loaded(path, endpoints, release().bin)
            masters = {UPSTREAM: (theirs.bin, ""), OURS: (release().bin, "")}
            masters |= {f"{UPSTREAM}, {options}": (theirs.bin, options) for options in STOCK_OPTIONS}
            for master, (bin_folder, options) in masters.items():
                cases[f"{setup}, {master}"] = load_of(path, endpoints, bin_folder, options)
            for name, programs in others.items():
                of_each = [(1, [core]) for core in CORES[: setup.count]]
                found = stack.enter_context(workers(*of_each, cached=True, build=programs))
                endpoints = [worker.endpoint for worker in found]
                loaded(path, endpoints, programs.bin)
                cases[f"{setup}, {name}"] = load_of(path, endpoints, programs.bin)
        return in_rounds(cases, repetitions, "load from the cache")


def reference(case: str) -> str:
    """Return the reference of a case: the same case with upstream's programs."""
    return f"{case.partition(', ')[0]}, {UPSTREAM}"


def short_of_local(rounds: list[dict[str, Rates]]) -> dict[str, dict[str, Any]]:
    """Return the ratios of one worker of either kind to the same cores without RPC."""
    here = f"{LOCAL}, {OURS}"
    return {
        f"{WHOLE}, {whose} / {here}: {test}": ratio(rounds, f"{WHOLE}, {whose}", here, test)
        for whose in [name.partition(", ")[2] for name in rounds[0] if name.startswith(f"{WHOLE}, ")]
        for test in rounds[0][here]
    }


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--bin", action="append", default=[], type=programs_of, help="NAME=FOLDER; may be repeated")
    args = asked(parser, "small models, once: whether it runs, not what it costs")
    others = {programs.name: programs for programs in args.bin}
    if len(others) < len(args.bin) or others.keys() & {"", UPSTREAM, OURS, MIXED}:
        parser.error("each --bin is NAME=FOLDER, with a name of its own.")
    shape = SMOKE_SHAPE if args.smoke else SHAPE
    small, wide, heavy = model(smoke=args.smoke), model(smoke=args.smoke, wide=True), load.model(smoke=args.smoke)
    theirs = upstream()
    speed = speeds(small, wide, theirs, others, shape, args.repetitions)
    loads = cached_loads(heavy, theirs, others, args.repetitions)
    models = [small.name, wide.name, heavy.name]
    short = short_of_local(speed)
    results = {"shape": shape, "models": models, "speed": speed, "of_local": short, "load": loads}
    kept = keep("upstream", args, results)
    print(f"{shape[0]} tokens read, {shape[1]} generated {PASSES} times, on {len(CORES)} cores")
    for rounds, unit, of_two in ((speed, UNIT, (LAYERS, DIVIDED)), (loads, "seconds", (str(TWO),))):
        not_run = dict.fromkeys(of_two, obstacle(2)) if obstacle(2) else {}
        print(f"\n{report(compared(rounds, unit, reference), unit, UPSTREAM, not_run)}")
    rows = [[name, shown(figures, 3)] for name, figures in short.items()]
    print("\n" + table(["tokens/s of", "ratio, median (range)"], rows))
    print(f"\nLoads are of {heavy.name} from the workers' caches.\nAll values: {kept}")
    return 0


if __name__ == "__main__":
    run_to_end(main)
