# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: a benchmark's report as Markdown."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Sequence

from .._status.report import safe_text
from . import benchmark_words as words
from .benchmark_history import KINDS

if TYPE_CHECKING:
    from .benchmark_history import Report


def render_markdown(report: Report) -> str:
    """Return the report as Markdown for a terminal, an issue or a chat, without plots."""
    parts = [f"# {_m(report['title'])}", _m(report["summary"], whole=True), f"{_m(words.moment(report['time']))}"]
    rows = [
        [KINDS[test["kind"]], words.test_words(test), words.shown_speed(test["tokens_per_second"]),
         str(len(test["tokens_per_second"]["samples"]) or "")]
        for test in words.ordered(report["tests"])
    ]  # fmt: skip
    parts += ["## Throughput", _m_table(("test", "of", "tokens/s", "runs"), rows)]
    if report["split"]:
        lines = [
            [
                share["name"],
                word,
                words.shown_bytes(figure["planned_bytes"]),
                words.shown_bytes(figure["measured_bytes"]),
                words.shown_difference(figure),
            ]
            for share in report["split"]
            for key, word in (*words.PARTS, ("total", "Total"))
            for figure in [share[key]]  # type: ignore[literal-required]
        ]
        parts += ["## Plan against reality", *(_m(note, whole=True) for note in words.notes_of(report))]
        parts.append(_m_table(("host", "", "plan", "measured", "difference"), lines))
    if report["hosts"]:
        parts += ["## Cluster", _m_table(words.HOST_HEADER, words.host_rows(report["hosts"]))]
    parts += ["## Model", _m_table(("", ""), [fact for fact in words.model_facts(report["model"]) if fact[1]])]
    parts += ["## Build and settings", _m_table(("", ""), [fact for fact in words.settings_facts(report) if fact[1]])]
    header, runs = words.history_table(report["history"], words.Series(report["history"]))
    parts += ["## History", _m_table(header, runs[:20])]
    return "\n\n".join(parts) + "\n"


def _m(value: object, *, whole: bool = False) -> str:
    """Return a value as text in which Markdown finds no markup."""
    if value is None or value == "":
        return words.DASH
    text = safe_text(re.sub(r"\s+", " ", str(value))) if whole else words.one_line(value)
    text = re.sub(r"([\\`*_{}\[\]#!|~$])", r"\\\1", html.escape(text, quote=False))
    # Escape marks that would begin a list or underline a heading, and texts that Markdown would turn into links.
    text = re.sub(r"^(\d*)([-+.)=])(?=\s|=|$)", r"\1\\\2", text)
    return text.replace("://", ":\u200b//").replace("@", "&#64;")


def _m_table(header: Sequence[str], rows: Sequence[words.Row]) -> str:
    cells = ([_m(" ".join(filter(None, cell)) if isinstance(cell, tuple) else cell) for cell in row] for row in rows)
    lines = [header, ["--"] * len(header), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
