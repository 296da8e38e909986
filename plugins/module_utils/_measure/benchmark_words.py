# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the speeds of a benchmark in words, alone and against earlier runs."""

from __future__ import annotations

import statistics
from typing import Sequence

from .benchmark_history import KINDS, Run, Speed, Test, series_of


def speed_of(tests: Sequence[Test], kind: str) -> Speed | None:
    return next((test["tokens_per_second"] for test in tests if test["kind"] == kind), None)


def shown_speed(speed: Speed) -> str:
    """Return a speed in tokens per second with its spread, rounded to significant digits."""
    mean, spread = speed["mean"], speed["stddev"]
    return shown_number(mean) + (f" ± {spread:.{_decimals(mean)}f}" if len(speed["samples"]) > 1 else "")


def shown_number(speed: float) -> str:
    """Return tokens per second, rounded to significant digits."""
    return f"{speed:.{_decimals(speed)}f}"


def _decimals(speed: float) -> int:
    return 2 if speed < 10 else 1 if speed < 1000 else 0


def workers_of(run: Run) -> str:
    """Return how many workers a run had, in words."""
    number = len(run["workers"])
    return "no worker" if number == 0 else "1 worker" if number == 1 else f"{number} workers"


def summary_of(run: Run, before: Sequence[Run]) -> str:
    """Return the result in one sentence, compared with the last run of the same series."""
    speeds = [(kind, speed_of(run["tests"], kind)) for kind in KINDS]
    figures = [f"{shown_speed(speed)} t/s {kind}" for kind, speed in speeds if speed is not None]
    said = f"{workers_of(run)}, {' and '.join(figures)}"
    own = series_of(run)
    last = next((other for other in reversed(before) if series_of(other) == own), None)
    if last is None:
        return f"{said}; the first run of this build, model and shape."
    changes = [
        f"{kind} {_change(speed, other)}"
        for kind, speed in speeds
        for other in [speed_of(last["tests"], kind)]
        if speed is not None and other is not None
    ]
    day = last["time"][:16].replace("T", " ")
    return f"{said}; against the last run of the same build, model and shape ({day} UTC): {', '.join(changes)}."


def _change(speed: Speed, before: Speed) -> str:
    difference = speed["mean"] - before["mean"]
    if abs(difference) <= speed["stddev"] + before["stddev"] or before["mean"] == 0:
        return "the same within the spread"
    percent = 100.0 * abs(difference) / before["mean"]
    shown = f"{percent:.1f}" if percent < 1 else f"{percent:.0f}"
    return f"{shown} % {'faster' if difference > 0 else 'slower'}"


def slower_than_before(runs: Sequence[Run], tolerance_percent: float) -> str:
    """Return a sentence on the tests of the last run that are slower than tolerated (0: any is); empty if none is.

    The reference is the median of the earlier runs. Compared with the last run alone, the second of two slow runs would
    not count as slower.
    """
    *before, run = runs
    own = series_of(run)
    alike = [other["tests"] for other in before if series_of(other) == own]
    if not alike or tolerance_percent == 0:
        return ""
    slower = []
    for test, *others in zip(run["tests"], *alike):
        speed = test["tokens_per_second"]
        usual = statistics.median(other["tokens_per_second"]["mean"] for other in others)
        if speed["mean"] < usual * (1 - tolerance_percent / 100):
            less = f"{100 * (1 - speed['mean'] / usual):.1f} % less"
            slower.append(f"{test['kind']} {shown_speed(speed)} t/s, {less} than {shown_number(usual)}")
    if not slower:
        return ""
    runs_before = "1 earlier run" if len(alike) == 1 else f"{len(alike)} earlier runs"
    return (
        f"Slower by more than {tolerance_percent:g} % than the median of {runs_before} of the same build, model and "
        f"shape: {'; '.join(slower)}."
    )
