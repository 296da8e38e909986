# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: how quick configurations are, and whether one is quicker than another by more than chance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Sequence

from .tuning_settings import GOALS, Config, TuningError

if TYPE_CHECKING:
    from collections.abc import Iterable


# Less than that is no gain, however small the spread.
LEAST_GAIN = 0.02


class Rate(NamedTuple):
    """Tokens per second, with their standard deviation."""

    mean: float
    stddev: float


@dataclass(frozen=True)
class Measured:
    """How quick a configuration is; what was not measured is None."""

    config: Config
    prompt: Rate | None
    generation: Rate | None


@dataclass(frozen=True)
class Run:
    """One run of llama-bench; of `ubatch_sizes` and `batch_sizes` each number is measured.

    With `weights`, the tensor split is to be planned from these speeds.
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
        """How many figures there are of each kind."""
        return max(1, len(self.ubatch_sizes)) * max(1, len(self.batch_sizes))


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    measured: tuple[Measured, ...]
    failure: str | None
    wall_s: float
    elapsed_s: float


def gain(goal: str, candidate: Measured, other: Measured) -> float:
    """Return by what factor a candidate is quicker; what was not measured of it is as with the other."""
    product = 1.0
    for exponent, now, before in comparable(goal, candidate, other):
        product *= (now.mean / before.mean) ** exponent
    return product


def margin(goal: str, candidate: Measured, other: Measured) -> float:
    """Return the gain that could be chance: the spread of both, each as a part of its mean."""
    return max(
        LEAST_GAIN,
        sum(
            exponent * (now.stddev / now.mean + before.stddev / before.mean)
            for exponent, now, before in comparable(goal, candidate, other)
        ),
    )


def beats(goal: str, candidate: Measured, other: Measured) -> bool:
    """Whether a candidate is quicker by more than what could be chance."""
    return gain(goal, candidate, other) - 1 > margin(goal, candidate, other)


def comparable(goal: str, candidate: Measured, other: Measured) -> Iterable[tuple[float, Rate, Rate]]:
    now, before = candidate.config, other.config
    # Batches are of prompts: a difference of generation would be chance.
    alike = now != before and replace(now, batch_size=0, ubatch_size=0) == replace(before, batch_size=0, ubatch_size=0)
    prompt, generation = GOALS[goal]
    if prompt and candidate.prompt and other.prompt:
        yield prompt, candidate.prompt, other.prompt
    if generation and candidate.generation and other.generation and not alike:
        yield generation, candidate.generation, other.generation


def speeds_from_shifts(layers: Sequence[int], before_s: float, shifted: Sequence[tuple[int, float]]) -> list[float]:
    """Return each worker's layers per second, from the time of a token with the present split and with others.

    A token takes the sum of what each worker takes for its layers. In run i, worker i gives `shifted[i][0]` of its
    layers to the last one. Raises TuningError where the figures allow no answer.
    """
    more = [(before_s - after_s) / moved for moved, after_s in shifted]
    last = (before_s - sum(count * extra for count, extra in zip(layers, more))) / sum(layers)
    costs = [last + extra for extra in more] + [last]
    if min(costs) <= 0:
        raise TuningError("the differences of the runs are within their spread")
    return [1 / cost for cost in costs]
