# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the state of a sweep: which gains exceed chance, and how long the rest will take."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Sequence

from . import tuning_choices as choices
from .tuning_settings import GOALS, SERVING, TITLES, Config, Settings, TuningError

if TYPE_CHECKING:
    from collections.abc import Iterable

# A smaller gain does not count, however small the spread is.
LEAST_GAIN = 0.02
# The seconds of a run beside llama-bench (connection, verification, plan), and the seconds to restart the workers.
RUN_S, RESTART_S = 5.0, 15.0
# A run that takes this many times longer than expected hangs. Each run gets at least a minute.
PATIENCE, LEAST_PATIENCE_S = 5.0, 60.0


class Rate(NamedTuple):
    """Tokens per second, with their standard deviation."""

    mean: float
    stddev: float


@dataclass(frozen=True)
class Measured:
    """The speed of a configuration; a rate that was not measured is None."""

    config: Config
    prompt: Rate | None
    generation: Rate | None
    # The tokens of all clients together.
    serving: Rate | None = None

    def is_whole(self, goal: str) -> bool:
        """Return whether all rates are there that the first run of a sweep measures."""
        return self.serving is not None if goal == SERVING else None not in (self.prompt, self.generation)


@dataclass(frozen=True)
class Run:
    """One run of llama-bench or llama-server, which measures each of `ubatch_sizes` and of `batch_sizes`.

    With `weights`, the tensor split is planned from these speeds of the workers.
    """

    stage: str
    title: str
    config: Config
    workers: tuple[str, ...]
    prompt: bool = True
    generation: bool = True
    ubatch_sizes: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
    restarts: bool = False

    @property
    def tests(self) -> int:
        """The number of figures of each kind."""
        return max(1, len(self.ubatch_sizes)) * max(1, len(self.batch_sizes))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run."""

    measured: tuple[Measured, ...]
    failure: str | None
    wall_s: float
    elapsed_s: float


def gain(goal: str, candidate: Measured, other: Measured) -> float:
    """Return the factor by which a candidate is faster; a rate that was not measured counts as unchanged."""
    product = 1.0
    for exponent, now, before in comparable(goal, candidate, other):
        product *= (now.mean / before.mean) ** exponent
    return product


def margin(goal: str, candidate: Measured, other: Measured) -> float:
    """Return the gain that could be chance: the sum of both spreads, each relative to its mean."""
    return max(
        LEAST_GAIN,
        sum(
            exponent * (now.stddev / now.mean + before.stddev / before.mean)
            for exponent, now, before in comparable(goal, candidate, other)
        ),
    )


def beats(goal: str, candidate: Measured, other: Measured) -> bool:
    """Return whether a candidate is faster by more than chance."""
    return gain(goal, candidate, other) - 1 > margin(goal, candidate, other)


def comparable(goal: str, candidate: Measured, other: Measured) -> Iterable[tuple[float, Rate, Rate]]:
    if goal == SERVING:
        if candidate.serving and other.serving:
            yield 1.0, candidate.serving, other.serving
        return
    now, before = candidate.config, other.config
    # Batch sizes change only prompts, so a difference in generation would be chance.
    alike = now != before and replace(now, batch_size=0, ubatch_size=0) == replace(before, batch_size=0, ubatch_size=0)
    prompt, generation = GOALS[goal]
    if prompt and candidate.prompt and other.prompt:
        yield prompt, candidate.prompt, other.prompt
    if generation and candidate.generation and other.generation and not alike:
        yield generation, candidate.generation, other.generation


def speeds_from_shifts(layers: Sequence[int], before_s: float, shifted: Sequence[tuple[int, float]]) -> list[float]:
    """Return each worker's layers per second, from the time of a token with the current split and with others.

    The time of a token is the sum of the times that all workers take for their layers. In run i, worker i gives
    `shifted[i][0]` of its layers to the last worker. Raises TuningError if the figures allow no answer.
    """
    more = [(before_s - after_s) / moved for moved, after_s in shifted]
    last = (before_s - sum(count * extra for count, extra in zip(layers, more))) / sum(layers)
    costs = [last + extra for extra in more] + [last]
    if min(costs) <= 0:
        raise TuningError("the differences of the runs are within their spread")
    return [1 / cost for cost in costs]


@dataclass
class Sweep:
    """The state of a sweep; `best` is the winner so far, `left_out` has the reason for each stage that is not tried."""

    settings: Settings
    best: Measured
    stages: list[str]
    left_out: dict[str, str]
    start: Measured | None = None
    again: Measured | None = None
    confirmed: Measured | None = None
    runs: list[tuple[Run, Outcome]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    estimate_s: float | None = None
    refusal: str = ""
    threads: int | None = None

    @property
    def left_s(self) -> float:
        """The seconds that are left."""
        return self.settings.time_limit - self.runs[-1][1].elapsed_s


def new_sweep(settings: Settings) -> Sweep:
    """Return a new sweep with the stages that have something to try, by importance."""
    left_out = choices.nothing_to_try(settings)
    stages = [name for name in settings.stages if name not in left_out]
    return Sweep(settings, Measured(settings.start, None, None), stages, left_out)


def _counts(sweep: Sweep, name: str) -> tuple[int, int]:
    """Return the maximum number of runs of a stage, and the number of tests of each kind in all of them."""
    settings, best = sweep.settings, sweep.best.config
    if settings.goal == SERVING:
        return (choices.most_serving(settings, name),) * 2
    # The values to try depend on the winner so far, so count those of the start and of the best, and take the maximum.
    configs = (settings.start, best)
    if name in ("ubatch_size", "batch_size"):
        sizes = choices.ubatch_sizes(settings, settings.start.batch_size)
        return 1, len(sizes if name == "ubatch_size" else choices.batch_sizes(settings, best))
    if name == "split_mode":
        modes = len(choices.split_modes(settings))
        return modes, 2 * modes
    if name == "tensor_split":
        workers = max(2, len(settings.workers))
        runs = (workers if all(settings.fits_alone) else workers - 1) + 1
    elif name == "flash_attn":
        runs = max(len(choices.flash_attn(settings, config)) for config in configs)
    elif name == "cache_type":
        runs = max(len(choices.cache_types(settings, config)) for config in configs)
    elif name == "worker_threads":
        runs = (len(choices.thread_counts(settings)) if settings.usable_cores else 3) + 1
    else:
        # Stage `again`: the winners together, and the start once more.
        runs = 2
    return runs, runs


def sizes_of_mode(sweep: Sweep) -> tuple[int, ...]:
    """Return the physical batches to measure again if another split mode wins and there is time left."""
    settings = sweep.settings
    wanted = "ubatch_size" in sweep.stages and bool(choices.split_modes(settings))
    return choices.ubatch_sizes(settings, settings.start.batch_size) if wanted else ()


def most(sweep: Sweep, name: str) -> tuple[int, int]:
    """Return the numbers of runs and tests of a stage, including those that it adds if there is time left."""
    runs, tests = _counts(sweep, name)
    if sweep.settings.goal != SERVING and name == "split_mode" and sizes_of_mode(sweep):
        modes = len(choices.split_modes(sweep.settings))
        return runs + modes, tests + modes * len(sizes_of_mode(sweep))
    return runs, tests


def metrics(settings: Settings, name: str) -> tuple[bool, bool]:
    """Return whether a stage measures prompt and generation: each only if it counts for the goal and can change."""
    if name in ("ubatch_size", "batch_size"):
        return True, False
    prompt, generation = (exponent > 0 for exponent in GOALS[settings.goal])
    return (True, True) if name in ("start", "again") else (prompt, generation)


def test_s(sweep: Sweep, name: str) -> float:
    """Return the seconds of one test of a stage, including its warm-up."""
    settings, start = sweep.settings, sweep.start or sweep.best
    if start.serving is not None:
        return settings.repetitions * settings.clients * settings.n_gen / start.serving.mean
    if start.prompt is None or start.generation is None:
        return 0.0
    prompt, generation = metrics(settings, name)
    read = (settings.repetitions + 1) * settings.n_prompt
    generated = settings.repetitions * settings.n_gen + 1
    return prompt * read / start.prompt.mean + generation * generated / start.generation.mean


def load_s(sweep: Sweep) -> float:
    """Return the seconds of a run beside its tests."""
    return RUN_S + max(0.0, sweep.runs[0][1].wall_s - test_s(sweep, "again"))


def cost_s(sweep: Sweep, name: str) -> float:
    """Return the seconds that a stage will take, estimated from the first run."""
    runs, tests = _counts(sweep, name)
    restarts = runs * RESTART_S if name == "worker_threads" else 0
    return runs * load_s(sweep) + tests * test_s(sweep, name) + restarts


def keep_to_time(sweep: Sweep) -> None:
    """Refuse a sweep that takes too long, or leave out its least important stages."""
    limit = sweep.settings.time_limit
    spent = sweep.runs[0][1].elapsed_s + cost_s(sweep, "again")
    total = spent + sum(cost_s(sweep, name) for name in sweep.stages)
    sweep.estimate_s = total
    if total <= limit:
        return
    kept: list[str] = []
    for name in sweep.stages:
        if spent + cost_s(sweep, name) <= limit:
            spent += cost_s(sweep, name)
            kept.append(name)
    gone = [name for name in sweep.stages if name not in kept]
    if not sweep.settings.shorten or not kept:
        way = "raise it, take fewer tokens (tune_n_prompt, tune_n_gen) or repetitions"
        if kept:
            left_out = ", ".join(TITLES[name] for name in gone)
            way += f", or set tune_shorten to leave out what does not fit ({left_out})"
        sweep.refusal = (
            f"The sweep would take about {math.ceil(total)} s, judged by its first run, and tune_time_limit is "
            f"{limit} s: {way}; nothing was changed."
        )
        return
    for name in gone:
        sweep.left_out[name] = f"with it the sweep would have taken {math.ceil(total)} s, of {limit} s"
    sweep.stages = kept
    sweep.estimate_s = spent


def in_time(sweep: Sweep, name: str) -> bool:
    """Return whether there is time for another run and the stages after it; add a note if not."""
    if not sweep.runs or sweep.estimate_s is None:
        return True
    later = () if name == "worker_threads" else ("again", "worker_threads")
    after = sum(cost_s(sweep, other) for other in later if other == "again" or other in sweep.stages)
    if load_s(sweep) + test_s(sweep, name) + after <= sweep.left_s:
        return True
    sweep.notes.append(f"The {TITLES[name]} was not tried completely, because its runs took longer than the first one.")
    return False


def patience_s(sweep: Sweep, run: Run) -> int:
    """Return the seconds after which a run is ended."""
    if not sweep.runs or sweep.start is None:
        return sweep.settings.time_limit
    expected = load_s(sweep) + run.tests * test_s(sweep, "again")
    return max(1, math.ceil(min(sweep.left_s, max(LEAST_PATIENCE_S, PATIENCE * expected))))
