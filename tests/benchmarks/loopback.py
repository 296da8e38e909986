# SPDX-License-Identifier: GPL-3.0-or-later
"""Shared parts of benchmarks on this machine alone: workers on loopback bound to cores, a model of a useful size."""

from __future__ import annotations

import json
import math
import os
import struct
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, TypeVar

from benchmarks.measure import (
    CACHE,
    MODEL_LIMIT_S,
    MODELS,
    BenchError,
    machine,
    output_of,
    random_model,
    say,
    shown,
    spread,
    table,
)
from support.collection import read_topology
from support.harness import RELEASE, AnyRelease, Release, Worker, run_module, running_worker

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

# Layers and width. Such a layer has 47 million parameters; the weights of the default size are 0.43 GB as Q4_0.
SIZE = (16, 2048)
# A layer of this width has four times as many, so that less of the time passes between layers: 0.86 GB.
WIDE_SIZE = (8, 4096)
SMOKE_SIZE = (4, 512)
# As many as the most workers of one core each. So figures of a machine with more cores are of the same case.
MOST_CORES = 4
# Figures by their names, and a function that measures some.
Rates = Dict[str, float]
Case = Callable[[], Rates]
Found = TypeVar("Found")


def one_of_each(cores: Iterable[Collection[int]], allowed: Collection[int]) -> list[int]:
    """Return one usable CPU of each physical core, for at most MOST_CORES cores.

    Two threads of a worker on one core are not twice as fast, and roles count cores as well.
    """
    usable = sorted(min(set(core) & set(allowed)) for core in cores if set(core) & set(allowed))
    return (usable or sorted(allowed))[:MOST_CORES]


CORES = one_of_each(read_topology().cores, os.sched_getaffinity(0))


# While a program holds this file open with a latency of 0 in it, the kernel lets no CPU of the machine sleep.
AWAKE = Path("/dev/cpu_dma_latency")


def obstacle(cores: int, *, awake: bool = False) -> str:
    """Return the reason why workers on so many cores cannot be measured here, or an empty string."""
    if cores > len(CORES):
        return f"{cores} cores are needed, and {len(CORES)} may be used here"
    if awake and not os.access(AWAKE, os.W_OK):
        return f"this account may not write to {AWAKE}"
    return ""


@contextmanager
def cores_awake() -> Iterator[None]:
    """Let idle CPUs wait instead of sleep: they resume at once and at their speed, but take power."""
    with AWAKE.open("wb", buffering=0) as latency:
        latency.write(struct.pack("i", 0))
        yield


class OptimisedRelease(Release):
    """An optimised release as users have it; the demo keeps its own release beside it."""

    @property
    def prefix(self) -> Path:
        return CACHE / "llama_cpp" / self.version


def release(*more: str) -> Release:
    """Return the default release that scripts/bench.sh builds, with the usual programs and those of `more`."""
    default = RELEASE
    found = OptimisedRelease(default.version, default.protocol)
    missing = [
        name
        for name in ("rpc-server", "llama-completion", "llama-bench", "llama-quantize", *more)
        if not (found.bin / name).exists()
    ]
    if missing:
        raise BenchError(f"There is no {', '.join(missing)} in {found.bin}; scripts/bench.sh builds it.")
    return found


def model(*, smoke: bool, wide: bool = False) -> Path:
    """Return the path of a model of random weights in four bits, made on first use and kept in the cache."""
    layers, width = SMOKE_SIZE if smoke else WIDE_SIZE if wide else SIZE
    path = MODELS / f"random-{layers}x{width}-q4_0.gguf"
    if not path.exists():
        MODELS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=MODELS) as folder:
            eight, four = random_model(layers, width, Path(folder)), Path(folder, path.name)
            # Requantised from Q8_0, the type that the weights are made in: they are random either way.
            quantise = [release().bin / "llama-quantize", "--allow-requantize", eight, four, "Q4_0"]
            output_of(quantise, "The model could not be quantised", MODEL_LIMIT_S)
            four.replace(path)
    return path


def task(name: str, arguments: dict[str, Any], **how: Any) -> dict[str, Any]:
    """Run a module of the collection as Ansible does on a host, and return its result."""
    result = run_module(name, arguments, **how)
    if result.get("failure"):
        raise BenchError(f"{name} failed: {result['msg']}")
    return result


def repeated(attempt: Callable[[], Found | None], most: int) -> Found:
    """Return the result of an attempt; repeat an attempt that lost its last lines, and with them its figures."""
    for _attempt in range(most):
        if (found := attempt()) is not None:
            return found
    raise BenchError(f"Runs lost their last lines, {most} times in a row.")


def in_rounds(cases: dict[str, Case], repetitions: int, what: str) -> list[dict[str, Rates]]:
    """Measure each case once in each round; every round begins with another case."""
    names = list(cases)
    rounds = []
    for number in range(repetitions):
        first = number % len(names)
        rounds.append({name: cases[name]() for name in [*names[first:], *names[:first]]})
        say(f"{what}: round {number + 1} of {repetitions}")
    return rounds


@contextmanager
def workers(
    *of_each: tuple[int, Sequence[int]],
    cached: bool = False,
    repack: bool = True,
    build: AnyRelease | None = None,
) -> Iterator[list[Worker]]:
    """Run one worker for each pair of threads and cores, of the default release if no other is given.

    If `cached`, each worker keeps received weights in a cache. Without `repack` it leaves weights as they come, as
    upstream's worker does.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = []
        for number, (threads, cores) in enumerate(of_each):
            cache = folder / f"cache{number}"
            bound = ("env", f"LLAMA_CACHE={cache}", f"GGML_RPC_REPACK={int(repack)}")
            bound += ("taskset", "-c", ",".join(map(str, cores)))
            options = ("-c",) if cached else ()
            worker = running_worker(
                build or release(), folder / f"{number}.log", *options, threads=threads, prefix=bound
            )
            found.append(stack.enter_context(worker))
        yield found


def ratios(ones: Sequence[float], others: Sequence[float]) -> dict[str, Any]:
    """Return the ratios of ones to others, each pair measured in the same round."""
    # In a short run, a share that looks count may be zero.
    return spread([one / other if other else math.inf for one, other in zip(ones, others)], 4)


def ratio(rounds: list[dict[str, Rates]], case: str, reference: str, test: str) -> dict[str, Any]:
    return ratios([done[case][test] for done in rounds], [done[reference][test] for done in rounds])


def compared(rounds: list[dict[str, Rates]], unit: str, reference: Callable[[str], str]) -> dict[str, Any]:
    """Return the figures of each case, and their ratios to its reference in the same round."""
    return {
        case: {
            test: {
                unit: spread([done[case][test] for done in rounds]),
                "ratio": ratio(rounds, case, reference(case), test),
            }
            for test in tests
        }
        for case, tests in rounds[0].items()
    }


def report(cases: dict[str, Any], unit: str, reference: str, not_run: Mapping[str, str]) -> str:
    """Return these figures as a table, with a line for each case that could not be measured."""
    rows = [
        [case, test, shown(figures[unit], 2), shown(figures["ratio"], 3)]
        for case, tests in cases.items()
        for test, figures in tests.items()
    ]
    rows += [[case, "", f"not run: {why}", ""] for case, why in not_run.items()]
    figures_are = f"{unit.replace('_per_second', '/s')}, median (range)"
    return table(["case", "test", figures_are, f"ratio to: {reference}"], rows)


def keep(name: str, args: argparse.Namespace, results: dict[str, Any]) -> Path:
    """Write all values as JSON, and return the path of the file."""
    path = CACHE / "benchmarks" / name / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"machine": machine(), "cores": CORES, "smoke": args.smoke, "repetitions": args.repetitions}
    path.write_text(json.dumps({**about, **results}, indent=2) + "\n")
    return path
