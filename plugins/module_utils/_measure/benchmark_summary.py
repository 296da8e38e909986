# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the result of a benchmark in a sentence, and its figures in digits that mean something."""

from __future__ import annotations

import math
from typing import Sequence

from .benchmark_history import series_of
from .benchmark_types import KINDS, Run, Speed, Test


def speed_of(tests: Sequence[Test], kind: str) -> Speed | None:
    """Return the speed of the first test of a kind."""
    return next((test["tokens_per_second"] for test in tests if test["kind"] == kind), None)


def shown_speed(speed: Speed) -> str:
    """Return a speed with its spread, in digits that mean something."""
    mean, spread = speed["mean"], speed["stddev"]
    return shown_number(mean) + (f" ± {spread:.{_decimals(mean)}f}" if len(speed["samples"]) > 1 else "")


def shown_number(speed: float) -> str:
    """Return tokens per second in digits that mean something."""
    return f"{speed:.{_decimals(speed)}f}"


def _decimals(speed: float) -> int:
    return 2 if speed < 10 else 1 if speed < 1000 else 0


def workers_of(run: Run) -> str:
    """Return how many workers a run had, in words."""
    number = len(run["workers"])
    return "no worker" if number == 0 else "1 worker" if number == 1 else f"{number} workers"


def title_of(run: Run) -> str:
    """Return the title of a report that was given none."""
    return f"{run['model']['name'] or 'A model'} over {workers_of(run)}"


def summary_of(run: Run, before: Sequence[Run]) -> str:
    """Say the result for a person."""
    speeds = [(name, kind, speed_of(run["tests"], kind)) for kind, name in KINDS.items()]
    figures = [f"{shown_speed(speed)} t/s {name}" for name, _kind, speed in speeds if speed is not None]
    said = f"{workers_of(run)}, {' and '.join(figures) if len(figures) < 3 else ', '.join(figures)}"
    own = series_of(run)
    last = next((other for other in reversed(before) if series_of(other) == own), None)
    if last is None:
        return f"{said}; the first run of this build, model and shape."
    changes = [
        f"{name} {_change(speed, other)}"
        for name, kind, speed in speeds
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


def finite(value: object) -> float | None:
    """Return a number that can be shown, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) <= 1e300 and math.isfinite(value) else None
