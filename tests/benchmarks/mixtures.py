# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure mixtures of experts over workers, beside local inference and upstream's build of the same source.

The models have few layers, each with the shape of a well-known model, and random weights (support/mixture_models.py).
Prompts of two lengths are read, and tokens are generated after none and after many others. Setups are local inference,
one worker with a thread for each core, and two or four workers of one core each that divide the layers or, in split
mode tensor, each tensor. The master has no core of its own. Each round measures all setups of a model once and begins
with another one, and ratios compare figures of the same round. A setup that ends with an error is named with it.

    python -m benchmarks.mixtures --smoke                                    # does it run
    python -m benchmarks.mixtures --mixture qwen3moe --depth 0 --cache-type f16
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.loopback import CORES, Rates, in_rounds, keep, obstacle, ratio, release, workers
from benchmarks.measure import MODELS, BenchError, asked, parser_of, run_to_end, say, shown, spread, table
from benchmarks.throughput import measured
from benchmarks.upstream import OURS, UPSTREAM, upstream
from support.mixture_models import MIXTURES, write_mixture

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from support.harness import AnyRelease

PROMPTS, SMOKE_PROMPTS = [512, 4096], [16]
DEPTHS, SMOKE_DEPTHS = [0, 8192], [0]
GENERATED, SMOKE_GENERATED = 32, 2


class Setup(NamedTuple):
    """A number of workers (0: local inference), the threads of each, and how they divide the model."""

    workers: int
    threads: int = 1
    split_mode: str = "layer"

    def __str__(self) -> str:
        if not self.workers:
            return "local"
        if self.threads > 1:
            return f"one worker, {self.threads} threads"
        return f"{self.workers} workers of one core, {self.split_mode}"

    @property
    def of_each(self) -> list[tuple[int, list[int]]]:
        cores = [CORES] if self.threads > 1 else [[core] for core in CORES[: self.workers]]
        return [(self.threads, each) for each in cores]


SETUPS = [Setup(0), Setup(1, len(CORES))] + [Setup(count, 1, mode) for count in (2, 4) for mode in ("layer", "tensor")]


def rates(path: Path, setup: Setup, build: AnyRelease, args: argparse.Namespace) -> Rates:
    """Measure one setup with a build's programs; a setup that fails has no figures."""
    options = ["-ctk", args.cache_type, "-ctv", args.cache_type, "-fa", "1"]
    prompts, depths = (",".join(map(str, each)) for each in (args.prompt, args.depth))

    def both(*more: str) -> Rates:
        read = measured(path, "-p", prompts, "-n", "0", *options, *more, bin_folder=build.bin)
        written = ("-p", "0", "-n", str(args.generated), "-d", depths)
        generated = measured(path, *written, *options, *more, bin_folder=build.bin)
        return {f"prompt {test['n_prompt']}": test["avg_ts"] for test in read} | {
            f"generation at {test['n_depth']}": median(test["samples_ts"]) for test in generated
        }

    try:
        if not setup.workers:
            return both("-t", str(len(CORES)), "-ngl", "0")
        with workers(*setup.of_each, build=build) as found:
            names, shares = "/".join(f"RPC{number}" for number in range(len(found))), "/".join("1" for _worker in found)
            over = ("--rpc", ",".join(worker.endpoint for worker in found), "-dev", names, "-ts", shares)
            return both(*over, "-sm", setup.split_mode, "-ngl", "999", "-t", "1")
    except BenchError as error:
        say(f"{setup}: {error}")
        return {}


def figures(path: Path, builds: dict[str, AnyRelease], args: argparse.Namespace) -> list[dict[str, Rates]]:
    def case(setup: Setup, build: AnyRelease) -> Any:
        return lambda: rates(path, setup, build, args)

    cases = {
        f"{setup}, {whose}": case(setup, build)
        for setup in SETUPS
        if not obstacle(setup.workers * (setup.threads == 1))
        for whose, build in builds.items()
    }
    return in_rounds(cases, args.repetitions, path.stem)


def as_table(rounds: list[dict[str, Rates]]) -> str:
    """Return the tokens a second of each case, and their ratios to local inference and to upstream's build."""
    rows = []
    for name in rounds[0]:
        setup, _comma, whose = name.rpartition(", ")
        if not all(done[name] for done in rounds):
            rows.append([name, "failed", "", "", ""])
            continue
        for test in rounds[0][name]:
            row = [name, test, shown(spread([done[name][test] for done in rounds]), 2)]
            for reference in (f"local, {whose}", f"{setup}, {UPSTREAM}"):
                known = reference != name and all(done[reference] for done in rounds)
                row.append(shown(ratio(rounds, name, reference, test), 2) if known else "")
            rows.append(row)
    return table(["setup", "test", "tokens/s, median (range)", "of local", "of upstream's"], rows)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--mixture", action="append", choices=MIXTURES, help="may be repeated; all without it")
    parser.add_argument("--prompt", type=int, action="append", help="tokens that are read; may be repeated")
    parser.add_argument("--depth", type=int, action="append", help="tokens before those that are generated")
    parser.add_argument("--cache-type", default="q8_0", help="of keys and values (default: %(default)s)")
    args = asked(parser, "short prompts, once: whether it runs, not what it costs")
    args.prompt = args.prompt or (SMOKE_PROMPTS if args.smoke else PROMPTS)
    args.depth = args.depth or (SMOKE_DEPTHS if args.smoke else DEPTHS)
    args.generated = SMOKE_GENERATED if args.smoke else GENERATED
    builds: dict[str, AnyRelease] = {UPSTREAM: upstream(), OURS: release()}
    found: dict[str, Any] = {}
    for name in args.mixture or MIXTURES:
        path = MODELS / f"mixture-{name}.gguf"
        if not path.exists():
            MODELS.mkdir(parents=True, exist_ok=True)
            write_mixture(path, name)
        found[name] = figures(path, builds, args)
        print(f"\n{name}, {MIXTURES[name].layers} layers, {path.stat().st_size / 1e9:.1f} GB, {args.cache_type} cache")
        print(as_table(found[name]), flush=True)
    shape = {"prompts": args.prompt, "depths": args.depth, "generated": args.generated}
    print(f"All values: {keep('mixtures', args, {**shape, 'mixtures': found})}")
    return 0


if __name__ == "__main__":
    run_to_end(main)
