# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: a benchmark's report as Markdown."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Sequence

from .._status.report import safe_text
from .benchmark_types import KINDS
from .benchmark_words import (
    DASH,
    HOST_HEADER,
    PARTS,
    Series,
    host_rows,
    kinds_of,
    minute,
    model_facts,
    moment,
    notes_of,
    one_line,
    ordered,
    settings_facts,
    shown_bytes,
    shown_difference,
    shown_speed,
    speeds_of,
    test_words,
)

if TYPE_CHECKING:
    from .benchmark_types import Report


def render_markdown(report: Report) -> str:
    """Return the same for a terminal, an issue or a chat; without plots."""
    parts = [f"# {_m(report['title'])}", _m(report["summary"], whole=True), f"{_m(moment(report['time']))}"]
    rows = [
        [KINDS[test["kind"]], test_words(test), shown_speed(test["tokens_per_second"]),
         str(len(test["tokens_per_second"]["samples"]) or "")]
        for test in ordered(report["tests"])
    ]  # fmt: skip
    parts += ["## Throughput", _m_table(("test", "of", "tokens/s", "runs"), rows)]
    if report["split"]:
        lines = [
            [
                share["name"],
                word,
                shown_bytes(figure["planned_bytes"]),
                shown_bytes(figure["measured_bytes"]),
                shown_difference(figure),
            ]
            for share in report["split"]
            for key, word in (*PARTS, ("total", "Total"))
            for figure in [share[key]]  # type: ignore[literal-required]
        ]
        parts += ["## Plan against reality", *(_m(note, whole=True) for note in notes_of(report))]
        parts.append(_m_table(("host", "", "plan", "measured", "difference"), lines))
    if report["hosts"]:
        hosts = [
            [" ".join(part for part in cell if part) or None for cell in row] for row in host_rows(report["hosts"])
        ]
        parts += ["## Cluster", _m_table(HOST_HEADER, hosts)]
    parts += ["## Model", _m_table(("", ""), [fact for fact in model_facts(report["model"]) if fact[1]])]
    parts += ["## Build and settings", _m_table(("", ""), [fact for fact in settings_facts(report) if fact[1]])]
    runs = report["history"]
    series = Series(runs)
    names = series.names()
    kinds = kinds_of(runs)
    history = [
        [minute(run), *(speeds_of(run, kind) for kind in kinds), names[of]]
        for run, of in list(zip(runs, series.of))[::-1][:20]
    ]
    parts += [
        "## History",
        _m_table(("time (UTC)", *(KINDS[kind] for kind in kinds), "build, model and shape"), history),
    ]
    return "\n\n".join(parts) + "\n"


def _m(value: object, *, whole: bool = False) -> str:
    """Return text that Markdown takes for text."""
    if value is None or value == "":
        return DASH
    text = safe_text(re.sub(r"\s+", " ", str(value))) if whole else one_line(value)
    text = re.sub(r"([\\`*_{}\[\]#!|~$])", r"\\\1", html.escape(text, quote=False))
    # What would begin a list, and what becomes a link by itself.
    text = re.sub(r"^(\d*)([-+.)=])(?=\s|=|$)", r"\1\\\2", text)
    return text.replace("://", ":\u200b//").replace("@", "&#64;")


def _m_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["--"] * len(header)]
    return "\n".join(
        ["| " + " | ".join(line) + " |" for line in lines]
        + ["| " + " | ".join(_m(cell) for cell in row) + " |" for row in rows]
    )
