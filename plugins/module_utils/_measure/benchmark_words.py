# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: figures of a benchmark in words and digits, for every form of its report."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from .._status.report import safe_text
from .benchmark_summary import finite, shown_speed
from .benchmark_types import KINDS

if TYPE_CHECKING:
    from .benchmark_types import Figure, Run, Share, Test


_LONGEST = 300
DASH = "\u2013"


def one_line(value: object) -> str:
    """Return one line of text that steers neither a terminal nor the direction of writing."""
    text = safe_text(re.sub(r"\s+", " ", str(value))).strip()
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def shown_bytes(value: object) -> str | None:
    """Return bytes in the largest unit that leaves a number from 1 on."""
    number = finite(value)
    if number is None:
        return None
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)):
        if abs(number) >= size:
            return f"{number / size:.{0 if abs(number) >= 1000 * size else 1}f}\u00a0{unit}"
    return f"{number / 1024:.0f}\u00a0KiB" if number else "0"


def grouped(value: object) -> str | None:
    """Return a whole number in groups of three digits."""
    number = finite(value)
    return None if number is None else f"{number:,.0f}".replace(",", "\u202f")


def shown_parameters(value: object) -> str | None:
    """Return a number of parameters as models' names have it."""
    number = finite(value)
    if number is None:
        return None
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.3g}\u00a0{unit}"
    return grouped(number)


def shown_seconds(milliseconds: object) -> str | None:
    """Return milliseconds as seconds."""
    number = finite(milliseconds)
    if number is None:
        return None
    return f"{number / 1000:.{1 if number >= 10_000 else 2}f}\u00a0s"


def shown_difference(figure: Figure) -> str | None:
    """Return a difference in percent, with its sign."""
    difference = figure["difference_percent"]
    if difference is None:
        return None
    rounded = f"{difference:+.1f}\u00a0%".replace("-", "\u2212")
    return "0.0\u00a0%" if abs(difference) < 0.05 else rounded


def short_commit(value: object) -> str | None:
    """Return a commit as people write it."""
    return None if value is None else re.sub(r"^([0-9a-f]{9})[0-9a-f]{31}$", r"\1", str(value))


def moment(time: str) -> str:
    """Return a time for a sentence."""
    return f"{time[:10]}, {time[11:16]} UTC"


def minute(run: Run) -> str:
    """Return the time of a run for a table."""
    return run["time"][:16].replace("T", " ")


def test_words(test: Test) -> str:
    """Return what a test reads and generates."""
    depth = f", after {grouped(test['n_depth'])} of context" if test["n_depth"] else ""
    if test["kind"] == "mixed":
        return f"{grouped(test['n_prompt'])} + {grouped(test['n_gen'])} tokens{depth}"
    return f"{grouped(test['n_prompt'] or test['n_gen'])} tokens{depth}"


def layer_words(share: Share) -> str | None:
    """Return which layers a share has."""
    count, first = share["layers_planned"], share["first_layer"]
    if count is None:
        measured = share["layers_measured"]
        return f"{measured} layers" if measured else None
    words = (
        "no layer"
        if count == 0
        else f"layer {first}"
        if count == 1
        else f"layers {first}\u2013{(first or 0) + count - 1}"
    )
    return words + (" and the output" if share["has_output"] else "")


def patch_words(build: Mapping[str, Any]) -> str:
    """Return the patches of a build in words; none where that is not known."""
    names = build.get("patches")
    return (", ".join(one_line(name) for name in names) or "none") if isinstance(names, list) else ""


def ordered(tests: Sequence[Test]) -> list[Test]:
    """Return the tests, those that people wait for most first."""
    return sorted(tests, key=lambda test: list(KINDS).index(test["kind"]))


def kinds_of(runs: Sequence[Run]) -> list[str]:
    """Return the kinds of test that runs have."""
    return [kind for kind in KINDS if any(test["kind"] == kind for run in runs for test in run["tests"])]


def speeds_of(run: Run, kind: str) -> str | None:
    """Return the speeds of a kind in a run."""
    return " / ".join(shown_speed(test["tokens_per_second"]) for test in run["tests"] if test["kind"] == kind) or None
