# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: a benchmark's report as one HTML file, which loads and runs nothing and has the browser enforce this."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Sequence

from . import benchmark_words as words
from .benchmark_history import KINDS
from .benchmark_plot import FORMS, colour_of, escaped, escaped_whole, form_of, html_section, html_table, plot_of

if TYPE_CHECKING:
    from .benchmark_history import Figure, Report, Run, Share, Test


_PALE = '<svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" class="w planned"/></svg>'


def render_html(report: Report) -> str:
    """Return the report as an HTML page."""
    # Leave out the first line, the licence.
    style = "".join(Path(__file__).with_name("benchmark_page.css").read_text(encoding="utf-8").splitlines()[1:])
    # The digest allows only this style, and no style attributes.
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    parts = [
        _header(report),
        _throughput(report["tests"]),
        _history(report["history"]),
        _split(report),
        _cluster(report),
        html_section("model", "Model", _facts_list(words.model_facts(report["model"]))),
        _settings(report),
    ]
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escaped(report['title'])} {words.DASH} benchmark</title>\n<style>{style}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n<footer>Made by llama_cpp.cluster. The figures are those of llama-bench and of llama.cpp's own log; "
        f"± is the standard deviation. Schema {report['schema_version']}.</footer>\n</body>\n</html>\n"
    )


def _header(report: Report) -> str:
    figures: list[str] = []
    for kind, word in KINDS.items():
        test = next((test for test in report["tests"] if test["kind"] == kind), None)
        if test is None:
            continue
        mean, _separator, spread = words.shown_speed(test["tokens_per_second"]).partition(" ± ")
        unit = f"± {spread} t/s" if spread else "t/s"
        first = "" if figures else ' class="first"'
        figures.append(f"<div{first}><dt>{escaped(word.capitalize())}</dt><dd>{mean} <small>{unit}</small></dd></div>")
    run = report["run"]
    for word, value in (
        ("Model", words.shown_bytes(report["model"].get("size_bytes"))),
        ("Load", words.shown_seconds(run.get("load_ms"))),
    ):
        if value is not None:
            number, _separator, unit = value.partition("\u00a0")
            figures.append(f"<div><dt>{word}</dt><dd>{escaped(number)} <small>{escaped(unit)}</small></dd></div>")
    build = escaped(words.short_commit(report["build"].get("commit")))
    return (
        f'<header>\n<p class="kicker">llama.cpp cluster benchmark · <time datetime="{escaped(report["time"])}">'
        f"{escaped(words.moment(report['time']))}</time> · build {build}</p>\n"
        f"<h1>{escaped(report['title'])}</h1>\n"
        f'<p class="lead">{escaped_whole(report["summary"])}</p>\n'
        f'<dl class="figures">{"".join(figures)}</dl>\n</header>\n<main>'
    )


def _throughput(tests: Sequence[Test]) -> str:
    rows: list[words.Row] = []
    for test in words.ordered(tests):
        speed = test["tokens_per_second"]
        samples = speed["samples"]
        edges = f"{words.shown_number(min(samples))} \u2013 {words.shown_number(max(samples))}" if samples else None
        kind = (KINDS[test["kind"]].capitalize(), words.test_words(test))
        rows.append([kind, words.shown_speed(speed), edges, len(samples) or None])
    header = ("test", "tokens/s", f"lowest {words.DASH} highest", "runs")
    table = html_table("Tokens per second, as llama-bench measured them", header, rows)
    return html_section("throughput", "Throughput", table)


def _history(runs: Sequence[Run]) -> str:
    series = words.Series(runs)
    plots = []
    for kind, word in KINDS.items():
        points = [(index, test) for index, run in enumerate(runs) for test in run["tests"] if test["kind"] == kind]
        if any(index == len(runs) - 1 for index, _test in points):
            plots.append(f"<figure><h3>{escaped(word.capitalize())}</h3>{plot_of(kind, runs, points, series)}</figure>")
    names = series.names()
    items = []
    for key, rank in series.rank.items():
        if rank > len(FORMS):
            break
        last = rank == len(FORMS) < len(series.rank) - 1
        name = f"{len(series.rank) - rank} others, see the table" if last else names[key]
        mark = f'<g class="mark-of {colour_of(rank)}"><g class="mark">{form_of(rank)}</g></g>'
        note = " (this run)" if rank == 0 else ""
        items.append(
            f'<li class="{"this-run" if rank == 0 else "other"}"><svg width="14" height="11" viewBox="-7 -7 14 14" '
            f'aria-hidden="true">{mark}</svg><span>{escaped(name)}{note}</span></li>'
        )
    note = "This is the first run. The next ones will appear beside it. A bar is the standard deviation."
    if len(runs) > 1:
        note = (
            f"The last {len(runs)} runs, in their order. A bar is the standard deviation. Runs of one build, model and "
            "shape are joined; others cannot be compared."
        )
    header, rows = words.history_table(runs, series)
    last_column = (len(header) - 1,)
    table = html_table("The runs, the newest first, in tokens per second", header, rows, last_column, last_column)
    body = (
        f'<p class="note">{note}</p>\n<ul class="legend">{"".join(items)}</ul>\n'
        f'<div class="plots">{"".join(plots)}</div>\n'
        f"<details><summary>The same as a table</summary>{table}</details>"
    )
    return html_section("history", "History", body)


def _split(report: Report) -> str:
    shares = report["split"]
    if not shares:
        return ""
    most = max(
        [
            figure or 0
            for share in shares
            for figure in (share["total"]["planned_bytes"], share["total"]["measured_bytes"])
        ]
    )
    key = "".join(
        f'<li><svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" class="{part[0]}"/></svg>'
        f"{word}</li>"
        for part, word in words.PARTS
    )
    said = "".join(f'<p class="note">{escaped_whole(note)}</p>\n' for note in words.notes_of(report))
    bars = "".join(_bars(share, most) for share in shares)
    rows: list[words.Row] = [
        [share["name"], *map(_figure_cell, (share["weights"], share["kv"], share["compute"], share["total"]))]
        for share in shares
    ]
    table = html_table(
        "What each held, and what was planned", ("host", "weights", "KV cache", "compute", "total"), rows
    )
    body = f'{said}<ul class="legend">{key}<li>{_PALE}plan</li></ul>\n{bars}\n{table}'
    return html_section("split", "Plan against reality", body)


def _bars(share: Share, most: int) -> str:
    rows = []
    for side, word in (("planned_bytes", "plan"), ("measured_bytes", "measured")):
        parts, at = [], 0.0
        total: int | None = share["total"][side]  # type: ignore[literal-required]
        for key, _word in words.PARTS:
            width = 100.0 * (share[key][side] or 0) / (most or 1)  # type: ignore[literal-required]
            if width > 0:
                css = f"{key[0]} planned" if side == "planned_bytes" else key[0]
                parts.append(f'<rect class="{css}" x="{at:.3f}%" width="{width:.3f}%" height="11"/>')
            at += width
        says = f"{share['name']}, {word}: {words.shown_bytes(total) or 'not known'}"
        rows.append(
            f'<div class="bar"><span>{word}</span>'
            f'<svg role="img" width="100%" height="11"><title>{escaped(says)}</title>'
            f'<rect class="room" width="100%" height="11"/>{"".join(parts)}</svg></div>'
        )
    endpoint = share["endpoint"] or ""
    place = [None if endpoint in share["name"] else endpoint, words.layer_words(share)]
    if share["memory_available_bytes"] is not None:
        used = share["total"]["measured_bytes"] or share["total"]["planned_bytes"]
        place.append(f"{words.shown_bytes(used)} of {words.shown_bytes(share['memory_available_bytes'])} available")
    return (
        f'<figure class="bars"><figcaption><h3>{escaped(share["name"])}</h3><span>'
        f"{escaped(' · '.join(word for word in place if word))}</span></figcaption>{''.join(rows)}</figure>"
    )


def _figure_cell(figure: Figure) -> tuple[str | None, ...]:
    measured, planned = words.shown_bytes(figure["measured_bytes"]), words.shown_bytes(figure["planned_bytes"])
    if measured is None and planned is None:
        return (None,)
    return (measured, f"plan {planned or words.DASH}", words.shown_difference(figure) or words.DASH)


def _cluster(report: Report) -> str:
    if not report["hosts"]:
        return ""
    rows = words.host_rows(report["hosts"])
    shown = [index for index in range(len(words.HOST_HEADER)) if any(row[index][0] is not None for row in rows)]
    text, names = ([shown.index(index) for index in of if index in shown] for of in ((1, 2, 6, 7), (0, 2)))
    header = [words.HOST_HEADER[index] for index in shown]
    kept = [[row[index] for index in shown] for row in rows]
    table = html_table("The hosts as they were before the run", header, kept, text, names)
    return html_section("cluster", "Cluster", table)


def _facts_list(facts: Sequence[tuple[str, str | None]]) -> str:
    items = []
    for word, value in facts:
        if value not in (None, ""):
            css = ' class="wide"' if word == "File" else ""
            items.append(f"<div{css}><dt>{escaped(word)}</dt><dd>{escaped(value)}</dd></div>")
    return f'<dl class="facts">{"".join(items)}</dl>'


def _settings(report: Report) -> str:
    run = report["run"]
    seconds = [
        ("Load of one run", words.shown_seconds(run.get("load_ms"))),
        ("One run, as a whole", words.shown_seconds(run.get("wall_time_ms"))),
    ]
    facts = _facts_list([*words.settings_facts(report), *seconds])
    return html_section("settings", "Build and settings", facts) + "\n</main>"
