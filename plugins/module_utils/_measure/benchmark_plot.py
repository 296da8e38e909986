# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the speeds of a benchmark's runs as one small static picture (SVG). No text in it comes from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from .benchmark_history import KINDS, series_of
from .benchmark_words import shown_number

if TYPE_CHECKING:
    from .benchmark_history import Run, Speed

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP = 640, 120, 70, 600, 30
_OWN, _OTHER = "#0b6478", "#8a857b"


def render_plot(runs: Sequence[Run]) -> str:
    """Return a plot for each kind of test of the last run, whose series is joined and filled; a bar is the spread."""
    own = [series_of(run) == series_of(runs[-1]) for run in runs]
    plots = []
    for kind in KINDS:
        points = [
            (index, test["name"], test["tokens_per_second"])
            for index, run in enumerate(runs)
            for test in run["tests"]
            if test["kind"] == kind
        ]
        if any(index == len(runs) - 1 for index, _name, _speed in points):
            title = f"{kind.capitalize()}, tokens/s; runs from {runs[0]['time'][:10]} to {runs[-1]['time'][:10]}"
            plots.append(f'<text x="10" y="18">{title}</text>{_plot(points, own)}')
    size = (_HEIGHT + 60) * len(plots)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {size}" width="{_WIDTH}" height="{size}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>\n'
        + "\n".join(f'<g transform="translate(0 {at * (_HEIGHT + 60)})">{plot}</g>' for at, plot in enumerate(plots))
        + "\n</svg>\n"
    )


def _plot(points: Sequence[tuple[int, str, Speed]], own: Sequence[bool]) -> str:
    """Return the points over an axis that begins at 0, so that it exaggerates no difference."""
    highest = max(speed["mean"] + speed["stddev"] for _index, _name, speed in points) or 1.0

    def across(index: int) -> float:
        return _RIGHT if len(own) == 1 else round(_LEFT + 10 + (_RIGHT - _LEFT - 10) * index / (len(own) - 1), 1)

    def up(value: float) -> float:
        return round(_TOP + _HEIGHT * (1 - max(value, 0.0) / highest), 1)

    drawn = []
    for value in (0.0, highest / 2, highest):
        drawn.append(f'<path stroke="#ddd" d="M{_LEFT} {up(value)}H{_RIGHT}"/>')
        drawn.append(f'<text x="{_LEFT - 8}" y="{up(value) + 4}" text-anchor="end">{shown_number(value)}</text>')
    for name in sorted({name for _index, name, _speed in points}):
        line = [f"{across(at)},{up(speed['mean'])}" for at, of, speed in points if of == name and own[at]]
        drawn.append(f'<polyline fill="none" stroke="{_OWN}" points="{" ".join(line)}"/>')
    for index, _name, speed in points:
        x, colour = across(index), _OWN if own[index] else _OTHER
        low, high = (up(speed["mean"] + sign * speed["stddev"]) for sign in (-1, 1))
        drawn.append(f'<path stroke="{colour}" d="M{x} {low}V{high}"/>')
        fill = colour if own[index] else "#fff"
        drawn.append(f'<circle cx="{x}" cy="{up(speed["mean"])}" r="4" fill="{fill}" stroke="{colour}"/>')
    return "".join(drawn)
