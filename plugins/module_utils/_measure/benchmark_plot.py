# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the parts of a page: tables and plots (SVG). Outside input becomes text in them, never markup."""

from __future__ import annotations

import html
import math
import re
from typing import TYPE_CHECKING, Iterable, NamedTuple, Sequence

from .._status.report import safe_text
from .benchmark_history import KINDS
from .benchmark_words import DASH, Series, facts_of, moment, one_line, shown_speed

if TYPE_CHECKING:
    from .benchmark_history import Run, Test
    from .benchmark_words import Row


def escaped(value: object) -> str:
    """Return a value as text for an HTML element or a quoted attribute; None is a dash."""
    return DASH if value is None or value == "" else html.escape(one_line(value), quote=True)


def escaped_whole(text: str) -> str:
    """Return one of this collection's own sentences for HTML, without shortening it."""
    text = re.sub(r"(?<=\d) (?=%|[KMGT]iB\b|t/s\b|± )|(?<=±) ", "\u00a0", re.sub(r"\s+", " ", text))
    return html.escape(safe_text(text), quote=True)


def html_section(name: str, title: str, body: str) -> str:
    """Return a section of the page with a heading."""
    return f'<section aria-labelledby="{name}">\n<h2 id="{name}">{title}</h2>\n{body}\n</section>'


def html_table(
    caption: str, header: Sequence[str], rows: Sequence[Row], text: Sequence[int] = (), names: Sequence[int] = (0,)
) -> str:
    """Return a table in its own box, which scrolls if the table is too wide.

    `text` are the columns without numbers. The browser may break the cells of the columns `names` anywhere.
    """
    head = "".join(
        f'<th scope="col" class="text">{cell}</th>' if index in (0, *text) else f'<th scope="col">{cell}</th>'
        for index, cell in enumerate(header)
    )
    body = []
    for row in rows:
        cells = []
        for index, cell in enumerate(row):
            value, *below = cell if isinstance(cell, tuple) else (cell,)
            css = ("text " if index in text else "") + ("name" if index in names else "nowrap")
            content = escaped(value) + "".join(f"<small>{escaped(line)}</small>" for line in below if line)
            cells.append(
                f'<td class="{css}">{content}</td>' if index else f'<th scope="row" class="{css}">{content}</th>'
            )
        body.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{caption}">\n<table>\n'
        f"<caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>{''.join(body)}</tbody>\n</table>\n</div>"
    )


# The forms of the first series, each with its own colour. The series of this run has the first form.
FORMS = (
    '<circle r="4.5"/>',
    '<path d="M-4.2-4.2h8.4v8.4h-8.4z"/>',
    '<path d="M0-5.6L5.4 4.2H-5.4z"/>',
    '<path d="M0-6L6 0 0 6-6 0z"/>',
    '<path d="M0 5.6L5.4-4.2H-5.4z"/>',
)
_OTHERS = '<path d="M-4-4L4 4M-4 4L4-4"/>'
_PLOT_TOP, _PLOT_HEIGHT = 26, 190
_BOTTOM = _PLOT_TOP + _PLOT_HEIGHT


def form_of(rank: int) -> str:
    """Return the SVG form of the points of a series."""
    return FORMS[rank] if rank < len(FORMS) else _OTHERS


def colour_of(rank: int) -> str:
    """Return the CSS class for the colour of a series."""
    return f"s{min(rank, len(FORMS))}"


def _scale(points: Iterable[tuple[int, Test]]) -> list[float]:
    """Return round values for the axis, around all points and their spread."""
    edges = [
        test["tokens_per_second"]["mean"] + sign * test["tokens_per_second"]["stddev"]
        for _index, test in points
        for sign in (-1, 1)
    ]
    high, low = max(edges), max(0.0, min(edges))
    # The axis spans at least a fifth of its highest value, or it would exaggerate small differences.
    missing = 0.2 * high - (high - low)
    if missing > 0:
        high, low = high + missing / 2, low - missing / 2
    if low < 0.5 * high:
        low = 0.0
    rough = (high - low or 1.0) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


class _Axes(NamedTuple):
    """The positions of runs and figures in the plot."""

    runs: int
    ticks: Sequence[float]

    def across(self, index: int) -> str:
        return "50%" if self.runs == 1 else f"{1 + 98 * index / (self.runs - 1):.2f}%"

    def up(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return round(_BOTTOM - _PLOT_HEIGHT * (min(max(value, low), high) - low) / (high - low), 1)

    def label(self, value: float) -> str:
        """Return a value of the axis, with enough decimals to differ from the next one."""
        step = self.ticks[1] - self.ticks[0]
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        if round(step, decimals) != round(step, decimals + 1):
            decimals += 1
        return f"{value:,.{decimals}f}".replace(",", "\u202f")


def plot_of(kind: str, runs: Sequence[Run], points: Sequence[tuple[int, Test]], series: Series) -> str:
    """Return the plot of one kind of test; each point has the index of its run."""
    axes = _Axes(len(runs), _scale(points))
    low, high = axes.label(axes.ticks[0]), axes.label(axes.ticks[-1])
    words = f"{KINDS[kind].capitalize()}, tokens per second of each run"
    sentence = f"From {low} to {high} tokens per second; this run " + ", ".join(
        shown_speed(test["tokens_per_second"]) for index, test in points if index == len(runs) - 1
    )
    marks = "".join(
        _point(axes, index, test, runs[index], series.rank[series.of[index]], last=index == len(runs) - 1)
        for index, test in points
    )
    return (
        f'<div class="plot"><svg role="img" aria-labelledby="plot-{kind} plot-{kind}-says" width="100%" '
        f'height="{_BOTTOM + 34}">'
        f'<title id="plot-{kind}">{escaped(words)}</title><desc id="plot-{kind}-says">{escaped(sentence)}</desc>'
        f"{_grid(axes, runs)}{_joins(axes, points, series)}{marks}</svg></div>"
    )


def _grid(axes: _Axes, runs: Sequence[Run]) -> str:
    low = axes.ticks[0]
    begin = "" if low == 0 else f", from {axes.label(low)}"
    drawn = [f'<text x="-40" y="{_PLOT_TOP - 14}">tokens/s{begin}</text>']
    for tick in axes.ticks:
        css, y = "axis" if tick == low else "grid", axes.up(tick)
        drawn.append(f'<line class="{css}" x1="0" x2="100%" y1="{y}" y2="{y}"/>')
        drawn.append(f'<text x="-8" y="{y + 4}" text-anchor="end">{axes.label(tick)}</text>')
    drawn += [
        f'<text x="{axes.across(index)}" y="{_BOTTOM + 20}" text-anchor="middle">{escaped(label)}</text>'
        for index, label in _dates(runs)
    ]
    return "".join(drawn)


def _joins(axes: _Axes, points: Sequence[tuple[int, Test]], series: Series) -> str:
    """Return the lines between points that can be compared."""
    before: dict[tuple[str, str], tuple[int, float]] = {}
    joins = []
    for index, test in points:
        of, mean = series.of[index], test["tokens_per_second"]["mean"]
        if (of, test["name"]) in before:
            start, value = before[of, test["name"]]
            joins.append(
                f'<line class="join {colour_of(series.rank[of])}" x1="{axes.across(start)}" y1="{axes.up(value)}" '
                f'x2="{axes.across(index)}" y2="{axes.up(mean)}"/>'
            )
        before[of, test["name"]] = (index, mean)
    return "".join(joins)


def _dates(runs: Sequence[Run]) -> list[tuple[int, str]]:
    """Return at most four labels below the axis, to fit on a phone: days, or times if all runs are of one day."""
    times = [run["time"] for run in runs]
    one_day = len({time[:10] for time in times}) == 1
    count = min(len(runs), 4)
    chosen = sorted({round(part * (len(runs) - 1) / max(count - 1, 1)) for part in range(count)})
    return [(index, times[index][11:16] if one_day else _day(times[index])) for index in chosen]


def _day(time: str) -> str:
    months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
    return f"{int(time[8:10])} {months[int(time[5:7]) - 1]}"


def _point(axes: _Axes, index: int, test: Test, run: Run, rank: int, *, last: bool) -> str:
    speed = test["tokens_per_second"]
    y, top, bottom = (axes.up(speed["mean"] + sign * speed["stddev"]) for sign in (0, 1, -1))
    spread = (
        f'<line class="spread" x1="0" x2="0" y1="{top - y:.1f}" y2="{bottom - y:.1f}"/>' if bottom - top > 1 else ""
    )
    caps = "".join(
        f'<line class="spread" x1="-3" x2="3" y1="{edge - y:.1f}" y2="{edge - y:.1f}"/>'
        for edge in (top, bottom)
        if spread
    )
    ring = '<circle class="ring" r="8.5"/>' if last else ""
    mean = shown_speed(speed).partition(" ")[0]
    # Put the label above the spread, where no line comes from the left.
    label = f'<text class="now" x="10" y="{min(top - y, -9) - 6:.1f}" text-anchor="end">{mean}</text>' if last else ""
    tip = f"{moment(run['time'])}: {shown_speed(speed)} tokens/s, {facts_of(run)['build']}, {facts_of(run)['model']}"
    css = f"{colour_of(rank)}{' this-run' if rank == 0 else ''}"
    return (
        f'<svg x="{axes.across(index)}" y="{y}" overflow="visible"><g class="{css}">'
        f"<title>{escaped(tip)}</title>{spread}{caps}{ring}"
        f'<g class="mark">{form_of(rank)}</g></g>{label}</svg>'
    )
