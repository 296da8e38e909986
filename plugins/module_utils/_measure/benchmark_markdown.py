# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: a benchmark's report as Markdown."""

from __future__ import annotations

import html
import math
import re
from typing import Any, Mapping, Sequence, Tuple

from .._status.report import safe_text
from .benchmark_data import Figure, Share
from .benchmark_history import KINDS, Run, Test, series_of, shown_number, shown_speed, workers_of

Facts = Sequence[Tuple[str, object]]


_LONGEST = 300
_DASH = "\u2013"
# Runs in the table of the history. report.json has more.
_LISTED_RUNS = 20
_HOST_HEADER = ("host", "role", "processor", "cores", "threads", "memory available", "llama.cpp", "RPC")
_SPLIT_HEADER = ("host", "layers", "weights", "KV cache", "compute", "total", "memory available")


def render_markdown(report: Mapping[str, Any]) -> str:
    notes = [note for note in (report["split_note"], report["plan"].get("message")) if note]
    time = report["time"]
    parts = [f"# {_text(report['title'])}", _text(report["summary"], whole=True), f"{time[:10]}, {time[11:16]} UTC"]
    header = ("test", "of", "tokens/s", "lowest to highest", "runs")
    parts += ["## Throughput", _table(header, _test_rows(report["tests"]))]
    if report["split"]:
        parts += ["## Plan against reality", *(_text(note, whole=True) for note in notes)]
        parts.append(_table(_SPLIT_HEADER, [_share_row(share) for share in report["split"]]))
    if report["hosts"]:
        parts += ["## Cluster", _table(_HOST_HEADER, [_host_row(host) for host in report["hosts"]])]
    parts += ["## Model", _facts_table(_model_facts(report["model"]))]
    parts += ["## Build and settings", _facts_table(_settings_facts(report))]
    parts += ["## History", _history_table(report["history"])]
    return "\n\n".join(parts) + "\n"


def _test_rows(tests: Sequence[Test]) -> list[list[object]]:
    rows: list[list[object]] = []
    for test in sorted(tests, key=lambda test: KINDS.index(test["kind"])):
        samples = test["tokens_per_second"]["samples"]
        edges = f"{shown_number(min(samples))} to {shown_number(max(samples))}" if samples else None
        depth = f", after {_grouped(test['n_depth'])} of context" if test["n_depth"] else ""
        tokens = " + ".join(str(_grouped(number)) for number in (test["n_prompt"], test["n_gen"]) if number)
        speed = shown_speed(test["tokens_per_second"])
        rows.append([test["kind"], f"{tokens} tokens{depth}", speed, edges, len(samples) or None])
    return rows


def _share_row(share: Share) -> list[object]:
    endpoint = share["endpoint"] or ""
    parts = [share["weights"], share["kv"], share["compute"], share["total"]]
    name = share["name"] if endpoint in share["name"] else f"{share['name']} {endpoint}"
    return [name, _layers(share), *map(_figure, parts), _bytes(share["memory_available_bytes"])]


def _layers(share: Share) -> str | None:
    count, first = share["layers_planned"], share["first_layer"]
    if count is None:
        return None if share["layers_measured"] is None else str(share["layers_measured"])
    words = "none" if count == 0 else f"{first}" if count == 1 else f"{first} to {(first or 0) + count - 1}"
    return words + (" and the output" if share["has_output"] else "")


def _figure(figure: Figure) -> str | None:
    measured, planned = _bytes(figure["measured_bytes"]), _bytes(figure["planned_bytes"])
    if measured is None and planned is None:
        return None
    difference = figure["difference_percent"]
    shown = "" if difference is None else f", {difference:+.1f} %"
    return f"{measured or 'not known'} (plan {planned or 'not known'}{shown})"


def _host_row(host: Mapping[str, Any]) -> list[object]:
    protocols = {(worker.get("protocol") or {}).get("version") for worker in host.get("workers") or []}
    roles = ["master"] * bool(host.get("master")) + ["worker"] * bool(host.get("endpoints"))
    available, total = (_bytes(host.get(f"memory_{which}_bytes")) for which in ("available", "total"))
    endpoints = ", ".join(map(str, host.get("endpoints") or []))
    version, commit = host.get("version"), _short_commit(host.get("commit"))
    return [
        host.get("name") if endpoints in ("", host.get("name")) else f"{host.get('name')} {endpoints}",
        " and ".join(roles),
        " ".join(str(word) for word in (host.get("architecture"), host.get("cpu")) if word),
        _grouped(host.get("cores")),
        ", ".join(map(str, host.get("threads") or [])),
        f"{available} of {total}" if available and total else available or total,
        " ".join(str(word) for word in (version, commit) if word and (word is version or word not in str(version))),
        ", ".join(sorted(str(version) for version in protocols if version)),
    ]


def _model_facts(model: Mapping[str, Any]) -> Facts:
    heads, kv_heads = _grouped(model.get("heads")), _grouped(model.get("kv_heads"))
    experts, used = _finite(model.get("experts")), _grouped(model.get("experts_used"))
    return [
        ("Name", model.get("name")),
        ("Architecture", model.get("architecture")),
        ("Quantisation", model.get("file_type")),
        ("Parameters", _parameters(model.get("parameters"))),
        ("Size", _bytes(model.get("size_bytes"))),
        ("Layers", _grouped(model.get("layers"))),
        ("Width", _grouped(model.get("embedding_length"))),
        ("Heads, of keys and values", f"{heads}, {kv_heads}" if heads and kv_heads else None),
        ("Experts, used", f"{_grouped(experts)}, {used or _DASH}" if experts else None),
        ("Vocabulary", _grouped(model.get("vocabulary"))),
        ("Context in training", _grouped(model.get("context_length"))),
        ("File", model.get("path")),
    ]


def _settings_facts(report: Mapping[str, Any]) -> Facts:
    build, this, run = report["build"], report["history"][-1], report["run"]
    words = " ".join(str(word) for word in (build.get("version"), _commit_or_number(build)) if word)
    tests = {
        "batch_size": sorted({test["batch_size"] or 0 for test in this["tests"]} - {0}),
        "ubatch_size": sorted({test["ubatch_size"] or 0 for test in this["tests"]} - {0}),
        "n_depth": sorted({test["n_depth"] for test in this["tests"]} - {0}),
    }
    facts: list[tuple[str, object]] = [("build", words), ("patches", _patches(build))]
    for name, value in {**tests, **this["options"], **report["settings"]}.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        shown = ", ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in values if one is not None)
        facts.append((name, shown))
    return [*facts, ("load of one run", _seconds(run["load_ms"])), ("one run, whole", _seconds(run["wall_time_ms"]))]


def _history_table(runs: Sequence[Run]) -> str:
    """Return a table of the last runs, the newest first."""
    kinds = [kind for kind in KINDS if any(test["kind"] == kind for run in runs for test in run["tests"])]
    # Of the facts that distinguish runs, name the first three, and each other that differs between these runs.
    facts = {series_of(run): _run_facts(run) for run in runs}
    told = {
        key
        for own in facts.values()
        for key in own
        if key in ("build", "model", "workers") or len({other.get(key) for other in facts.values()}) > 1
    }
    rows = []
    for run in list(reversed(runs))[:_LISTED_RUNS]:
        speeds = [[test["tokens_per_second"] for test in run["tests"] if test["kind"] == kind] for kind in kinds]
        name = " · ".join(fact for key, fact in facts[series_of(run)].items() if key in told and fact)
        shown = (" / ".join(map(shown_speed, of_kind)) for of_kind in speeds)
        rows.append([run["time"][:16].replace("T", " "), *shown, name])
    return _table(["time (UTC)", *kinds, "build, model and shape"], rows)


def _run_facts(run: Run) -> dict[str, str]:
    model, patches = run["model"], _patches(run["build"])
    words = {
        "build": f"build {_one_line(_commit_or_number(run['build']) or 'unknown')}",
        "patches": f"patches {patches}" if patches else "",
        "model": _one_line(model["name"] or "model"),
        "file_type": _one_line(model["file_type"] or ""),
        "size": _bytes(model["size_bytes"]) or "",
        "workers": workers_of(run),
        "endpoints": ", ".join(_one_line(worker) for worker in run["workers"]),
        "tests": ", ".join(_one_line(test["name"]) for test in run["tests"]),
        "batch": ", ".join(sorted({f"batch {test['batch_size']}/{test['ubatch_size']}" for test in run["tests"]})),
    }
    options = {key: value for key, value in run["options"].items() if key != "repetitions"}
    return {**words, **{f"option {key}": f"{_one_line(key)} {_one_line(value)}" for key, value in options.items()}}


def _finite(value: object) -> float | None:
    """Return a number that can be shown, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) <= 1e300 and math.isfinite(value) else None


def _bytes(value: object) -> str | None:
    number = _finite(value)
    if number is None:
        return None
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)):
        if abs(number) >= size:
            return f"{number / size:.{0 if abs(number) >= 1000 * size else 1}f} {unit}"
    return f"{number / 1024:.0f} KiB" if number else "0"


def _grouped(value: object) -> str | None:
    number = _finite(value)
    return None if number is None else f"{number:,.0f}"


def _parameters(value: object) -> str | None:
    """Return a number of parameters with a unit as in names of models."""
    number = _finite(value)
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if number is not None and number >= size:
            return f"{number / size:.3g} {unit}"
    return _grouped(number)


def _seconds(milliseconds: object) -> str | None:
    number = _finite(milliseconds)
    return None if number is None else f"{number / 1000:.{1 if number >= 10_000 else 2}f} s"


def _short_commit(value: object) -> str | None:
    return None if value is None else re.sub(r"^([0-9a-f]{9})[0-9a-f]{31}$", r"\1", str(value))


def _commit_or_number(build: Mapping[str, Any]) -> str | None:
    return _short_commit(build.get("commit")) or (f"b{build['number']}" if build.get("number") else None)


def _patches(build: Mapping[str, Any]) -> str:
    """Return the patches of a build in words; empty if they are not known."""
    names = build.get("patches")
    return (", ".join(_one_line(name) for name in names) or "none") if isinstance(names, list) else ""


def _one_line(value: object) -> str:
    """Return a value as one line of limited length that controls neither a terminal nor the text direction."""
    text = safe_text(re.sub(r"\s+", " ", str(value))).strip()
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _text(value: object, *, whole: bool = False) -> str:
    """Return a value as text in which Markdown finds no markup."""
    if value is None or value == "":
        return _DASH
    text = safe_text(re.sub(r"\s+", " ", str(value))) if whole else _one_line(value)
    text = re.sub(r"([\\`*_{}\[\]#!|~$])", r"\\\1", html.escape(text, quote=False))
    # Escape marks that would begin a list or underline a heading, and texts that Markdown would turn into links.
    text = re.sub(r"^(\d*)([-+.)=])(?=\s|=|$)", r"\1\\\2", text)
    return text.replace("://", ":\u200b//").replace("@", "&#64;")


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["--"] * len(header), *([_text(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _facts_table(facts: Facts) -> str:
    return _table(("", ""), [fact for fact in facts if fact[1] not in (None, "")])
