# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Render a benchmark report as HTML and as Markdown. Private to this collection.

The page is one file that loads nothing and runs nothing, and says so to the browser. Whatever comes from outside, such
as names of hosts and of models, is text in it, never markup.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Sequence

from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.benchmark_data import (
    KINDS,
    finite,
    series_of,
    shown_number,
    shown_speed,
    workers_of,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._status.report import safe_text

if TYPE_CHECKING:
    from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.benchmark_data import (
        Figure,
        Report,
        Run,
        Share,
        Test,
    )

_LONGEST = 300
DASH = "\u2013"
_PARTS = (("weights", "Weights"), ("kv", "KV cache"), ("compute", "Compute"))
# Of these each has a colour and a form of its own; the one that this run belongs to has the first.
_FORMS = (
    '<circle r="4.5"/>',
    '<path d="M-4.2-4.2h8.4v8.4h-8.4z"/>',
    '<path d="M0-5.6L5.4 4.2H-5.4z"/>',
    '<path d="M0-6L6 0 0 6-6 0z"/>',
    '<path d="M0 5.6L5.4-4.2H-5.4z"/>',
)
_OTHERS = '<path d="M-4-4L4 4M-4 4L4-4"/>'
_PALE = '<svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" class="w planned"/></svg>'
_PLOT_TOP, _PLOT_HEIGHT = 26, 190

_STYLE = """
:root{color-scheme:light dark;--paper:#fdfcfa;--panel:#f5f3ee;--ink:#1f1d1a;--soft:#5f5a52;--line:#dcd7cc;
--grid:#e8e4db;--s0:#0b6478;--s1:#a34a14;--s2:#5b4a9e;--s3:#4d6b1f;--s4:#9c2f5f;--s5:#6b665e;--w:#2b6f98;
--k:#b8661a;--c:#70802c}
@media (prefers-color-scheme:dark){
:root{--paper:#15171a;--panel:#1d2024;--ink:#e9e6e0;--soft:#a8a49b;--line:#383c42;--grid:#292d32;--s0:#63c5dc;
--s1:#eb9b66;--s2:#b5a5f0;--s3:#a9c975;--s4:#f08fb7;--s5:#9d988f;--w:#6bb0da;--k:#e3a25c;--c:#b3c467}}
*{box-sizing:border-box}html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0 auto;max-width:62rem;padding:clamp(1.25rem,4vw,3.5rem) clamp(1rem,4vw,2.5rem) 3rem;
background:var(--paper);color:var(--ink);
font:1rem/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
font-variant-numeric:tabular-nums;overflow-wrap:anywhere}h1,h2,h3,p,dl,dd,figure,ul{margin:0;padding:0}
h1{font-size:clamp(1.6rem,1.2rem + 2vw,2.35rem);line-height:1.18;font-weight:650;letter-spacing:-.015em;
text-wrap:balance}h2{font-size:1.2rem;line-height:1.3;font-weight:650;letter-spacing:-.005em;margin-bottom:.35rem}
h3{font-size:1rem;font-weight:600}section{margin-top:3rem;padding-top:1.25rem;border-top:1px solid var(--line)}
.kicker{font-size:.8125rem;color:var(--soft);letter-spacing:.04em;margin-bottom:.5rem}
.lead{font-size:1.125rem;line-height:1.5;margin-top:.85rem;max-width:46rem;text-wrap:pretty}
.note{color:var(--soft);max-width:46rem;font-size:.9375rem}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:1.1rem 2rem;margin-top:2rem}
.figures dt{font-size:.8125rem;color:var(--soft)}
.figures dd{font-size:1.7rem;line-height:1.2;font-weight:600;letter-spacing:-.015em}
.figures small{font-size:.9375rem;font-weight:400;letter-spacing:0;color:var(--soft);white-space:nowrap}
.figures .first dd{color:var(--s0)}.scroll{overflow-x:auto;margin-top:1rem}.bars+.scroll{margin-top:2rem}
.scroll:focus-visible,summary:focus-visible{outline:2px solid var(--s0);outline-offset:3px}
table{border-collapse:collapse;width:100%;font-size:.9375rem;line-height:1.4}
caption{text-align:left;color:var(--soft);font-size:.8125rem;padding-bottom:.4rem}
th,td{text-align:right;padding:.45rem 0 .45rem 1.25rem;border-bottom:1px solid var(--grid);vertical-align:baseline;
overflow-wrap:normal}th:first-child,td:first-child,.text{text-align:left}
th:first-child,td:first-child{padding-left:0}th{font-weight:500}
thead th{color:var(--soft);font-weight:400;font-size:.8125rem;border-bottom-color:var(--line);vertical-align:bottom}
tbody th[scope=row]{font-weight:400}
th small,td small{display:block;font-size:.87em;font-weight:400;color:var(--soft)}
tr.this th,tr.this td{font-weight:600}.name{min-width:8rem;overflow-wrap:anywhere}.nowrap{white-space:nowrap}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));gap:.8rem 1.5rem;margin-top:1rem}
.facts dt{font-size:.8125rem;color:var(--soft)}.facts .wide{grid-column:1/-1}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.3rem 1.4rem;font-size:.875rem;color:var(--soft);
margin-top:.9rem}.legend li{display:flex;gap:.5rem;align-items:baseline;min-width:0}
.legend svg{flex:none;align-self:center}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));gap:1.5rem 3rem;
margin-top:1rem}.plot{padding:0 1.5rem 0 2.9rem}.plots h3{margin-bottom:.4rem}svg{display:block;overflow:visible}
svg text{font-size:12px;fill:var(--soft)}svg .now{fill:var(--ink);font-weight:600;font-size:13px}
.grid{stroke:var(--grid)}.axis{stroke:var(--line)}.join{stroke:currentColor;stroke-width:1.5;opacity:.55}
.spread{stroke:currentColor;stroke-width:1.5;opacity:.75}.mark{fill:var(--paper);stroke:currentColor;stroke-width:2}
.this-run .mark{fill:currentColor}.ring{fill:none;stroke:currentColor;stroke-width:1.5;opacity:.45}
.s0{color:var(--s0)}.s1{color:var(--s1)}.s2{color:var(--s2)}.s3{color:var(--s3)}.s4{color:var(--s4)}
.s5{color:var(--s5)}.bars{margin-top:1.4rem}
.bars figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 1.5rem;margin-bottom:.35rem}
.bars figcaption span{color:var(--soft);font-size:.875rem}
.bar{display:grid;grid-template-columns:4.6rem 1fr;align-items:center;font-size:.8125rem;color:var(--soft);
line-height:1.3}.bar+.bar{margin-top:.2rem}.w{fill:var(--w)}.k{fill:var(--k)}.c{fill:var(--c)}.planned{opacity:.42}
.room{fill:var(--panel)}details{margin-top:1.5rem}
summary{cursor:pointer;color:var(--soft);font-size:.9375rem;width:fit-content}
footer{margin-top:3rem;padding-top:1rem;border-top:1px solid var(--line);color:var(--soft);font-size:.8125rem}
@media (max-width:34rem){
.figures{grid-template-columns:1fr 1fr;gap:1rem}.figures dd{font-size:1.4rem}section{margin-top:2.25rem}
th,td{padding-left:.8rem}}
@media print{
:root{color-scheme:light;--paper:#fff;--panel:#f3f1ec;--ink:#000;--soft:#444;--line:#bbb;--grid:#ddd;--s0:#0b6478;
--s1:#a34a14;--s2:#5b4a9e;--s3:#4d6b1f;--s4:#9c2f5f;--s5:#6b665e;--w:#2b6f98;--k:#b8661a;--c:#70802c}
@page{margin:16mm 15mm}
body{padding:0;max-width:none;font-size:10pt;print-color-adjust:exact;-webkit-print-color-adjust:exact}
section{margin-top:1.6rem}h2,h3,caption,thead,figcaption,.legend{break-after:avoid}
tr,figure,.plots>*,.facts>*,.figures>*{break-inside:avoid}.scroll{overflow:visible}.figures{grid-template-columns:repeat(5,auto)}table{font-size:8.5pt}
th,td{padding-left:.6rem}.name{min-width:0}
td.text{white-space:normal;overflow-wrap:anywhere}details::details-content{content-visibility:visible;block-size:auto}
summary{list-style:none}}
"""


def render_html(report: Report) -> str:
    """Return the page."""
    style = _STYLE.strip("\n").replace("\n", "")
    # The digest lets in this style and no other, not even one of an attribute.
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    parts = [
        _header(report),
        _throughput(report["tests"]),
        _history(report["history"]),
        _split(report),
        _cluster(report),
        _model(report["model"]),
        _settings(report),
    ]
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{_e(report['title'])} {DASH} benchmark</title>\n<style>{style}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n<footer>Made by llama_cpp.cluster. The figures are those of llama-bench and of llama.cpp's own log; "
        f"± is the standard deviation. Schema {report['schema_version']}.</footer>\n</body>\n</html>\n"
    )


# Words


def _line(value: object) -> str:
    """Return one line of text that steers neither a terminal nor the direction of writing."""
    text = safe_text(re.sub(r"\s+", " ", str(value))).strip()
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _e(value: object) -> str:
    """Return text for HTML, in an element or in a quoted attribute; null is a dash."""
    return DASH if value is None or value == "" else html.escape(_line(value), quote=True)


def _bytes(value: object) -> str | None:
    number = finite(value)
    if number is None:
        return None
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)):
        if abs(number) >= size:
            return f"{number / size:.{0 if abs(number) >= 1000 * size else 1}f}\u00a0{unit}"
    return f"{number / 1024:.0f}\u00a0KiB" if number else "0"


def _grouped(value: object) -> str | None:
    number = finite(value)
    return None if number is None else f"{number:,.0f}".replace(",", "\u202f")


def _parameters(value: object) -> str | None:
    number = finite(value)
    if number is None:
        return None
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.3g}\u00a0{unit}"
    return _grouped(number)


def _seconds(milliseconds: object) -> str | None:
    number = finite(milliseconds)
    if number is None:
        return None
    return f"{number / 1000:.{1 if number >= 10_000 else 2}f}\u00a0s"


def _percent(figure: Figure) -> str | None:
    difference = figure["difference_percent"]
    if difference is None:
        return None
    rounded = f"{difference:+.1f}\u00a0%".replace("-", "\u2212")
    return "0.0\u00a0%" if abs(difference) < 0.05 else rounded


def _commit(value: object) -> str | None:
    """Return a commit as people write it."""
    return None if value is None else re.sub(r"^([0-9a-f]{9})[0-9a-f]{31}$", r"\1", str(value))


def _moment(time: str) -> str:
    return f"{time[:10]}, {time[11:16]} UTC"


def _test_words(test: Test) -> str:
    depth = f", after {_grouped(test['n_depth'])} of context" if test["n_depth"] else ""
    if test["kind"] == "mixed":
        return f"{_grouped(test['n_prompt'])} + {_grouped(test['n_gen'])} tokens{depth}"
    return f"{_grouped(test['n_prompt'] or test['n_gen'])} tokens{depth}"


def _layers(share: Share) -> str | None:
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


# The page's parts


def _header(report: Report) -> str:
    figures: list[str] = []
    for kind, word in KINDS.items():
        test = next((test for test in report["tests"] if test["kind"] == kind), None)
        if test is None:
            continue
        mean, _separator, spread = shown_speed(test["tokens_per_second"]).partition(" ± ")
        unit = f"± {spread} t/s" if spread else "t/s"
        first = "" if figures else ' class="first"'
        figures.append(f"<div{first}><dt>{_e(word.capitalize())}</dt><dd>{mean} <small>{unit}</small></dd></div>")
    run = report["run"]
    for word, value in (
        ("Model", _bytes(report["model"].get("size_bytes"))),
        ("Load", _seconds(run.get("load_ms"))),
    ):
        if value is not None:
            number, _separator, unit = value.partition("\u00a0")
            figures.append(f"<div><dt>{word}</dt><dd>{_e(number)} <small>{_e(unit)}</small></dd></div>")
    build = _e(_commit(report["build"].get("commit")))
    return (
        f'<header>\n<p class="kicker">llama.cpp cluster benchmark · <time datetime="{_e(report["time"])}">'
        f"{_e(_moment(report['time']))}</time> · build {build}</p>\n"
        f"<h1>{_e(report['title'])}</h1>\n"
        f'<p class="lead">{_e_long(report["summary"])}</p>\n'
        f'<dl class="figures">{"".join(figures)}</dl>\n</header>\n<main>'
    )


def _e_long(text: str) -> str:
    """Return a sentence of our own, whole."""
    text = re.sub(r"(?<=\d) (?=%|[KMGT]iB\b|t/s\b|± )|(?<=±) ", "\u00a0", re.sub(r"\s+", " ", text))
    return html.escape(safe_text(text), quote=True)


def _section(name: str, title: str, body: str) -> str:
    return f'<section aria-labelledby="{name}">\n<h2 id="{name}">{title}</h2>\n{body}\n</section>'


def _table(caption: str, header: Sequence[str], rows: str, text: Sequence[int] = ()) -> str:
    """Return a table in a box of its own, which scrolls by itself where it is too wide."""
    head = "".join(
        f'<th scope="col" class="text">{cell}</th>' if index in (0, *text) else f'<th scope="col">{cell}</th>'
        for index, cell in enumerate(header)
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{caption}">\n<table>\n'
        f"<caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody>\n</table>\n</div>"
    )


def _ordered(tests: Sequence[Test]) -> list[Test]:
    """Return the tests, those that people wait for most first."""
    return sorted(tests, key=lambda test: list(KINDS).index(test["kind"]))


def _throughput(tests: Sequence[Test]) -> str:
    rows = []
    for test in _ordered(tests):
        speed = test["tokens_per_second"]
        samples = speed["samples"]
        edges = f"{shown_number(min(samples))} \u2013 {shown_number(max(samples))}" if samples else None
        rows.append(
            f'<tr><th scope="row">{_e(KINDS[test["kind"]].capitalize())}<small>{_e(_test_words(test))}</small></th>'
            f'<td class="nowrap">{_e(shown_speed(speed))}</td><td class="nowrap">{_e(edges)}</td>'
            f"<td>{len(samples) or DASH}</td></tr>"
        )
    header = ("test", "tokens/s", f"lowest {DASH} highest", "runs")
    table = _table("Tokens per second, as llama-bench measured them", header, "".join(rows))
    return _section("throughput", "Throughput", table)


# History


class _Series:
    """The runs of one build, model and shape; the last is the one that this run belongs to."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.of = [series_of(run) for run in runs]
        own = self.of[-1]
        newest = list(dict.fromkeys(reversed(self.of)))
        self.rank = {key: index for index, key in enumerate([own, *(key for key in newest if key != own)])}
        self.runs = {key: next(run for run, of in zip(runs, self.of) if of == key) for key in self.rank}

    def form(self, rank: int) -> str:
        """Return the form of a point."""
        return _FORMS[rank] if rank < len(_FORMS) else _OTHERS

    def css(self, rank: int) -> str:
        """Return the class of its colour."""
        return f"s{min(rank, len(_FORMS))}"

    def names(self) -> dict[str, str]:
        """Return what tells each series from the others, and always its build and model."""
        facts = {key: _facts(run) for key, run in self.runs.items()}
        told = {
            key
            for own in facts.values()
            for key in own
            if key in ("build", "model", "workers") or len({str(other.get(key)) for other in facts.values()}) > 1
        }
        return {
            series: " · ".join(value for key, value in own.items() if key in told and value)
            for series, own in facts.items()
        }


def _patches(build: Mapping[str, Any]) -> str:
    """Return the patches of a build in words; none where that is not known."""
    names = build.get("patches")
    return (", ".join(_line(name) for name in names) or "none") if isinstance(names, list) else ""


def _facts(run: Run) -> dict[str, str]:
    """Return what makes a run another one, in words."""
    model, patches = run["model"], _patches(run["build"])
    words = {
        "build": f"build {_line(_commit(run['build'].get('commit')) or 'unknown')}",
        "patches": f"patches {patches}" if patches else "",
        "model": _line(model["name"] or "model"),
        "file_type": _line(model["file_type"] or ""),
        "size": _bytes(model["size_bytes"]) or "",
        "workers": workers_of(run),
        "endpoints": ", ".join(_line(worker) for worker in run["workers"]),
        "tests": ", ".join(_line(test["name"]) for test in run["tests"]),
        "batch": ", ".join(sorted({f"batch {test['batch_size']}/{test['ubatch_size']}" for test in run["tests"]})),
    }
    options = {
        f"option {key}": f"{_line(key)} {_line(value)}" for key, value in run["options"].items() if key != "repetitions"
    }
    return {**words, **options}


def _history(runs: Sequence[Run]) -> str:
    series = _Series(runs)
    plots = []
    for kind, word in KINDS.items():
        points = [(index, test) for index, run in enumerate(runs) for test in run["tests"] if test["kind"] == kind]
        if any(index == len(runs) - 1 for index, _test in points):
            plots.append(f"<figure><h3>{_e(word.capitalize())}</h3>{_plot(kind, runs, points, series)}</figure>")
    names = series.names()
    items = []
    for key, rank in series.rank.items():
        if rank > len(_FORMS):
            break
        last = rank == len(_FORMS) < len(series.rank) - 1
        name = f"{len(series.rank) - rank} others, see the table" if last else names[key]
        mark = f'<g class="mark-of {series.css(rank)}"><g class="mark">{series.form(rank)}</g></g>'
        note = " (this run)" if rank == 0 else ""
        items.append(
            f'<li class="{"this-run" if rank == 0 else "other"}"><svg width="14" height="11" viewBox="-7 -7 14 14" '
            f'aria-hidden="true">{mark}</svg><span>{_e(name)}{note}</span></li>'
        )
    note = "The first run; the next ones will stand beside it. A bar is the standard deviation."
    if len(runs) > 1:
        note = (
            f"The last {len(runs)} runs, in their order. A bar is the standard deviation. Runs of one build, model and "
            "shape are joined; others are not to be compared."
        )
    body = (
        f'<p class="note">{note}</p>\n<ul class="legend">{"".join(items)}</ul>\n'
        f'<div class="plots">{"".join(plots)}</div>\n' + _runs_table(runs, names, series)
    )
    return _section("history", "History", body)


def _scale(points: Iterable[tuple[int, Test]]) -> list[float]:
    """Return round values for the axis, around all points and their spread."""
    edges = [
        test["tokens_per_second"]["mean"] + sign * test["tokens_per_second"]["stddev"]
        for _index, test in points
        for sign in (-1, 1)
    ]
    high, low = max(edges), max(0.0, min(edges))
    # Less than a fifth of the axis would make much of nothing.
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


def _plot(kind: str, runs: Sequence[Run], points: Sequence[tuple[int, Test]], series: _Series) -> str:
    ticks = _scale(points)
    low, high = ticks[0], ticks[-1]
    bottom = _PLOT_TOP + _PLOT_HEIGHT
    decimals = max(0, -math.floor(math.log10(ticks[1] - ticks[0]) + 1e-9))
    if round(ticks[1] - ticks[0], decimals) != round(ticks[1] - ticks[0], decimals + 1):
        decimals += 1

    def across(index: int) -> str:
        return "50%" if len(runs) == 1 else f"{1 + 98 * index / (len(runs) - 1):.2f}%"

    def up(value: float) -> float:
        return round(bottom - _PLOT_HEIGHT * (min(max(value, low), high) - low) / (high - low), 1)

    begin = "" if low == 0 else f", from {_number_label(low, decimals)}"
    drawn = [f'<text x="-40" y="{_PLOT_TOP - 14}">tokens/s{begin}</text>']
    for tick in ticks:
        css = "axis" if tick == low else "grid"
        drawn.append(f'<line class="{css}" x1="0" x2="100%" y1="{up(tick)}" y2="{up(tick)}"/>')
        drawn.append(f'<text x="-8" y="{up(tick) + 4}" text-anchor="end">{_number_label(tick, decimals)}</text>')
    drawn += [
        f'<text x="{across(index)}" y="{bottom + 20}" text-anchor="middle">{_e(label)}</text>'
        for index, label in _dates(runs)
    ]
    before: dict[str, tuple[int, float]] = {}
    joins, marks = [], []
    for index, test in points:
        speed, key = test["tokens_per_second"], f"{series.of[index]} {test['name']}"
        rank = series.rank[series.of[index]]
        if key in before:
            start, value = before[key]
            joins.append(
                f'<line class="join {series.css(rank)}" x1="{across(start)}" y1="{up(value)}" x2="{across(index)}" '
                f'y2="{up(speed["mean"])}"/>'
            )
        before[key] = (index, speed["mean"])
        marks.append(_point(across(index), up, test, runs[index], series, rank, last=index == len(runs) - 1))
    words = f"{KINDS[kind].capitalize()}, tokens per second of each run"
    sentence = (
        f"From {_number_label(low, decimals)} to {_number_label(high, decimals)} tokens per second; this run "
        + ", ".join(shown_speed(test["tokens_per_second"]) for index, test in points if index == len(runs) - 1)
    )
    return (
        f'<div class="plot"><svg role="img" aria-labelledby="plot-{kind} plot-{kind}-says" width="100%" '
        f'height="{bottom + 34}">'
        f'<title id="plot-{kind}">{_e(words)}</title><desc id="plot-{kind}-says">{_e(sentence)}</desc>'
        f"{''.join(drawn)}{''.join(joins)}{''.join(marks)}</svg></div>"
    )


def _number_label(value: float, decimals: int) -> str:
    return f"{value:,.{decimals}f}".replace(",", "\u202f")


def _dates(runs: Sequence[Run]) -> list[tuple[int, str]]:
    """Return the labels below the axis: few, so that they have room on a phone; the time where all are of one day."""
    times = [run["time"] for run in runs]
    one_day = len({time[:10] for time in times}) == 1
    count = min(len(runs), 4)
    chosen = sorted({round(part * (len(runs) - 1) / max(count - 1, 1)) for part in range(count)})
    return [(index, times[index][11:16] if one_day else _day(times[index])) for index in chosen]


def _day(time: str) -> str:
    months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
    return f"{int(time[8:10])} {months[int(time[5:7]) - 1]}"


def _point(
    x: str, up: Callable[[float], float], test: Test, run: Run, series: _Series, rank: int, *, last: bool
) -> str:
    speed = test["tokens_per_second"]
    y, top, bottom = (up(speed["mean"] + sign * speed["stddev"]) for sign in (0, 1, -1))
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
    # Above the spread, where no line comes from the left.
    label = f'<text class="now" x="10" y="{min(top - y, -9) - 6:.1f}" text-anchor="end">{mean}</text>' if last else ""
    tip = f"{_moment(run['time'])}: {shown_speed(speed)} tokens/s, {_facts(run)['build']}, {_facts(run)['model']}"
    css = f"{series.css(rank)}{' this-run' if rank == 0 else ''}"
    return (
        f'<svg x="{x}" y="{y}" overflow="visible"><g class="{css}"><title>{_e(tip)}</title>{spread}{caps}{ring}'
        f'<g class="mark">{series.form(rank)}</g></g>{label}</svg>'
    )


def _kinds(runs: Sequence[Run]) -> list[str]:
    return [kind for kind in KINDS if any(test["kind"] == kind for run in runs for test in run["tests"])]


def _minute(run: Run) -> str:
    return run["time"][:16].replace("T", " ")


def _speeds(run: Run, kind: str) -> str | None:
    return " / ".join(shown_speed(test["tokens_per_second"]) for test in run["tests"] if test["kind"] == kind) or None


def _runs_table(runs: Sequence[Run], names: Mapping[str, str], series: _Series) -> str:
    kinds = _kinds(runs)
    rows = []
    for index in reversed(range(len(runs))):
        run = runs[index]
        cells = "".join(f'<td class="nowrap">{_e(_speeds(run, kind))}</td>' for kind in kinds)
        this = ' class="this"' if index == len(runs) - 1 else ""
        rows.append(
            f'<tr{this}><th scope="row" class="nowrap">{_e(_minute(run))}</th>{cells}'
            f'<td class="text name">{_e(names[series.of[index]])}</td></tr>'
        )
    header = ("time (UTC)", *(KINDS[kind] for kind in kinds), "build, model and shape")
    table = _table("The runs, the newest first, in tokens per second", header, "".join(rows), text=(len(header) - 1,))
    return f"<details><summary>The same as a table</summary>{table}</details>"


# Plan and reality


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
        for part, word in _PARTS
    )
    said = "".join(f'<p class="note">{_e_long(note)}</p>\n' for note in _notes(report))
    bars = "".join(_bars(share, most) for share in shares)
    rows = "".join(
        f'<tr><th scope="row" class="name">{_e(share["name"])}</th>{"".join(map(_figure_cell, _figures(share)))}</tr>'
        for share in shares
    )
    table = _table("What each held, and what was planned", ("host", "weights", "KV cache", "compute", "total"), rows)
    body = f'{said}<ul class="legend">{key}<li>{_PALE}plan</li></ul>\n{bars}\n{table}'
    return _section("split", "Plan against reality", body)


def _notes(report: Report) -> list[str]:
    plan = report["plan"]
    return [str(note) for note in (report["split_note"], plan.get("message")) if note]


def _figures(share: Share) -> list[Figure]:
    return [share["weights"], share["kv"], share["compute"], share["total"]]


def _bars(share: Share, most: int) -> str:
    rows = []
    for side, word in (("planned_bytes", "plan"), ("measured_bytes", "measured")):
        parts, at = [], 0.0
        total: int | None = share["total"][side]  # type: ignore[literal-required]
        for key, _word in _PARTS:
            width = 100.0 * (share[key][side] or 0) / (most or 1)  # type: ignore[literal-required]
            if width > 0:
                css = f"{key[0]} planned" if side == "planned_bytes" else key[0]
                parts.append(f'<rect class="{css}" x="{at:.3f}%" width="{width:.3f}%" height="11"/>')
            at += width
        says = f"{share['name']}, {word}: {_bytes(total) or 'not known'}"
        rows.append(
            f'<div class="bar"><span>{word}</span><svg role="img" width="100%" height="11"><title>{_e(says)}</title>'
            f'<rect class="room" width="100%" height="11"/>{"".join(parts)}</svg></div>'
        )
    endpoint = share["endpoint"] or ""
    place = [None if endpoint in share["name"] else endpoint, _layers(share)]
    if share["memory_available_bytes"] is not None:
        used = share["total"]["measured_bytes"] or share["total"]["planned_bytes"]
        place.append(f"{_bytes(used)} of {_bytes(share['memory_available_bytes'])} available")
    return (
        f'<figure class="bars"><figcaption><h3>{_e(share["name"])}</h3><span>'
        f"{_e(' · '.join(word for word in place if word))}</span></figcaption>{''.join(rows)}</figure>"
    )


def _figure_cell(figure: Figure) -> str:
    if figure["planned_bytes"] is None and figure["measured_bytes"] is None:
        return f"<td>{DASH}</td>"
    plan = f"plan {_bytes(figure['planned_bytes']) or DASH}"
    difference = _percent(figure)
    return (
        f'<td class="nowrap">{_e(_bytes(figure["measured_bytes"]))}<small>{_e(plan)}</small>'
        f"<small>{_e(difference)}</small></td>"
    )


# Cluster, model, settings


_HOST_HEADER = ("host", "role", "processor", "cores", "threads", "memory available", "llama.cpp", "RPC")


def _host_rows(hosts: Sequence[Mapping[str, Any]]) -> list[list[tuple[str | None, str]]]:
    """Return the cells of each host: what it is, and what stands below in smaller letters."""
    rows = []
    for host in hosts:
        protocols = {(worker.get("protocol") or {}).get("version") for worker in host.get("workers") or []}
        roles = ["master"] * bool(host.get("master")) + ["worker"] * bool(host.get("endpoints"))
        available, total = (_bytes(host.get(f"memory_{which}_bytes")) for which in ("available", "total"))
        endpoints = ", ".join(map(str, host.get("endpoints") or []))
        version, commit = host.get("version"), _commit(host.get("commit"))
        cells: list[tuple[object, object]] = [
            (host.get("name"), "" if endpoints == host.get("name") else endpoints),
            (" and ".join(roles), ""),
            (host.get("architecture"), host.get("cpu")),
            (_grouped(host.get("cores")), ""),
            (", ".join(map(str, host.get("threads") or [])), ""),
            (available or total, f"of {total}" if available and total else ""),
            (version or commit, "" if not version or str(commit) in str(version) else commit),
            (", ".join(sorted(str(version) for version in protocols if version)), ""),
        ]
        rows.append([(_line(value) if value not in (None, "") else None, _line(below or "")) for value, below in cells])
    return rows


def _cluster(report: Report) -> str:
    if not report["hosts"]:
        return ""
    rows = _host_rows(report["hosts"])
    shown = [index for index in range(len(_HOST_HEADER)) if any(row[index][0] is not None for row in rows)]
    text = [place for place, index in enumerate(shown) if index in (0, 1, 2, 6, 7)]
    lines = []
    for row in rows:
        cells = []
        for place, index in enumerate(shown):
            value, below = row[index]
            content = _e(value) + (f"<small>{_e(below)}</small>" if below else "")
            if index == 0:
                cells.append(f'<th scope="row" class="name">{content}</th>')
            else:
                css = ("text " if place in text else "") + ("name" if index == 2 else "nowrap")
                cells.append(f'<td class="{css}">{content}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    header = [_HOST_HEADER[index] for index in shown]
    table = _table("The hosts as they were before the run", header, "".join(lines), text)
    return _section("cluster", "Cluster", table)


def _facts_list(facts: Sequence[tuple[str, str | None]]) -> str:
    items = []
    for word, value in facts:
        if value not in (None, ""):
            css = ' class="wide"' if word == "File" else ""
            items.append(f"<div{css}><dt>{_e(word)}</dt><dd>{_e(value)}</dd></div>")
    return f'<dl class="facts">{"".join(items)}</dl>'


def _model_facts(model: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    heads, kv_heads = _grouped(model.get("heads")), _grouped(model.get("kv_heads"))
    experts = finite(model.get("experts"))
    return [
        ("Name", model.get("name")),
        ("Architecture", model.get("architecture")),
        ("Quantisation", model.get("file_type")),
        ("Parameters", _parameters(model.get("parameters"))),
        ("Size", _bytes(model.get("size_bytes"))),
        ("Layers", _grouped(model.get("layers"))),
        ("Width", _grouped(model.get("embedding_length"))),
        ("Heads, of keys and values", f"{heads}, {kv_heads}" if heads and kv_heads else None),
        ("Experts, used", f"{_grouped(experts)}, {_grouped(model.get('experts_used')) or DASH}" if experts else None),
        ("Vocabulary", _grouped(model.get("vocabulary"))),
        ("Context in training", _grouped(model.get("context_length"))),
        ("File", model.get("path")),
    ]


def _model(model: Mapping[str, Any]) -> str:
    return _section("model", "Model", _facts_list(_model_facts(model)))


def _settings_facts(report: Report) -> list[tuple[str, str | None]]:
    build, this = report["build"], report["history"][-1]
    words = " ".join(str(word) for word in (build.get("version"), _commit(build.get("commit"))) if word)
    batches = [("batch_size", "batch_size"), ("ubatch_size", "ubatch_size"), ("n_depth", "n_depth")]
    tests = {
        name: sorted({test[key] for test in this["tests"]} - {None, 0})  # type: ignore[literal-required]
        for name, key in batches
    }
    facts = [("build", words), ("patches", _patches(build))]
    for name, value in {**tests, **this["options"], **report["settings"]}.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        facts.append((name, ", ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in values)))
    return [(name, value) for name, value in facts if value not in ("", "None")]


def _settings(report: Report) -> str:
    run = report["run"]
    words = [
        ("Load of one run", _seconds(run.get("load_ms"))),
        ("One run, as a whole", _seconds(run.get("wall_time_ms"))),
    ]
    facts = _facts_list([*_settings_facts(report), *words])
    return _section("settings", "Build and settings", facts) + "\n</main>"


# Markdown


def render_markdown(report: Report) -> str:
    """Return the same for a terminal, an issue or a chat; without plots."""
    parts = [f"# {_m(report['title'])}", _m(report["summary"], whole=True), f"{_m(_moment(report['time']))}"]
    rows = [
        [KINDS[test["kind"]], _test_words(test), shown_speed(test["tokens_per_second"]),
         str(len(test["tokens_per_second"]["samples"]) or "")]
        for test in _ordered(report["tests"])
    ]  # fmt: skip
    parts += ["## Throughput", _m_table(("test", "of", "tokens/s", "runs"), rows)]
    if report["split"]:
        lines = [
            [share["name"], word, _bytes(figure["planned_bytes"]), _bytes(figure["measured_bytes"]), _percent(figure)]
            for share in report["split"]
            for key, word in (*_PARTS, ("total", "Total"))
            for figure in [share[key]]  # type: ignore[literal-required]
        ]
        parts += ["## Plan against reality", *(_m(note, whole=True) for note in _notes(report))]
        parts.append(_m_table(("host", "", "plan", "measured", "difference"), lines))
    if report["hosts"]:
        hosts = [
            [" ".join(part for part in cell if part) or None for cell in row] for row in _host_rows(report["hosts"])
        ]
        parts += ["## Cluster", _m_table(_HOST_HEADER, hosts)]
    parts += ["## Model", _m_table(("", ""), [fact for fact in _model_facts(report["model"]) if fact[1]])]
    parts += ["## Build and settings", _m_table(("", ""), [fact for fact in _settings_facts(report) if fact[1]])]
    runs = report["history"]
    series = _Series(runs)
    names = series.names()
    kinds = _kinds(runs)
    history = [
        [_minute(run), *(_speeds(run, kind) for kind in kinds), names[of]]
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
    text = safe_text(re.sub(r"\s+", " ", str(value))) if whole else _line(value)
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
