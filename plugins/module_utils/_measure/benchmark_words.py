# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the result, runs, hosts, model and settings of a benchmark as text, for every form of the report."""

from __future__ import annotations

import math
import re
import statistics
from typing import Any, Mapping, Sequence

from .._status.report import safe_text
from .benchmark_history import KINDS, Figure, Report, Run, Share, Speed, Test, series_of

# Each cell of a table is a value, or a tuple of a value and the texts below it in smaller letters.
Row = Sequence[object]


def speed_of(tests: Sequence[Test], kind: str) -> Speed | None:
    """Return the speed of the first test of a kind."""
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
            slower.append(f"{KINDS[test['kind']]} {shown_speed(speed)} t/s, {less} than {shown_number(usual)}")
    if not slower:
        return ""
    runs_before = "1 earlier run" if len(alike) == 1 else f"{len(alike)} earlier runs"
    return (
        f"Slower by more than {tolerance_percent:g} % than the median of {runs_before} of the same build, model and "
        f"shape: {'; '.join(slower)}."
    )


def finite(value: object) -> float | None:
    """Return a number that can be shown, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) <= 1e300 and math.isfinite(value) else None


_LONGEST = 300
DASH = "\u2013"


def one_line(value: object) -> str:
    """Return a value as one line of limited length that controls neither a terminal nor the text direction."""
    text = safe_text(re.sub(r"\s+", " ", str(value))).strip()
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def shown_bytes(value: object) -> str | None:
    """Return bytes in the largest unit that gives a number of at least 1."""
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
    """Return a number of parameters with a unit as in names of models."""
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
    """Return the first nine digits of a commit."""
    return None if value is None else re.sub(r"^([0-9a-f]{9})[0-9a-f]{31}$", r"\1", str(value))


def moment(time: str) -> str:
    """Return a time in UTC for a sentence."""
    return f"{time[:10]}, {time[11:16]} UTC"


def test_words(test: Test) -> str:
    """Return the tokens that a test reads and generates, in words."""
    depth = f", after {grouped(test['n_depth'])} of context" if test["n_depth"] else ""
    if test["kind"] == "mixed":
        return f"{grouped(test['n_prompt'])} + {grouped(test['n_gen'])} tokens{depth}"
    return f"{grouped(test['n_prompt'] or test['n_gen'])} tokens{depth}"


def layer_words(share: Share) -> str | None:
    """Return the layers of a share, in words."""
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
    """Return the patches of a build in words; empty if they are not known."""
    names = build.get("patches")
    return (", ".join(one_line(name) for name in names) or "none") if isinstance(names, list) else ""


def ordered(tests: Sequence[Test]) -> list[Test]:
    """Return the tests, ordered by kind; the kind that people wait for most comes first."""
    return sorted(tests, key=lambda test: list(KINDS).index(test["kind"]))


PARTS = (("weights", "Weights"), ("kv", "KV cache"), ("compute", "Compute"))
HOST_HEADER = ("host", "role", "processor", "cores", "threads", "memory available", "llama.cpp", "RPC")


class Series:
    """Runs grouped by build, model and shape; the series of the last run has rank 0."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.of = [series_of(run) for run in runs]
        own = self.of[-1]
        newest = list(dict.fromkeys(reversed(self.of)))
        self.rank = {key: index for index, key in enumerate([own, *(key for key in newest if key != own)])}
        self.runs = {key: next(run for run, of in zip(runs, self.of) if of == key) for key in self.rank}

    def names(self) -> dict[str, str]:
        """Return a name for each series: build, model, workers and each fact that differs between the series."""
        facts = {key: facts_of(run) for key, run in self.runs.items()}
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


def history_table(runs: Sequence[Run], series: Series) -> tuple[list[str], list[Row]]:
    """Return the header and the rows of a table of the runs, the newest first."""
    kinds = [kind for kind in KINDS if any(test["kind"] == kind for run in runs for test in run["tests"])]
    names = series.names()
    rows: list[Row] = []
    for run, of in zip(reversed(runs), reversed(series.of)):
        speeds = [[test["tokens_per_second"] for test in run["tests"] if test["kind"] == kind] for kind in kinds]
        shown = (" / ".join(map(shown_speed, of_kind)) for of_kind in speeds)
        rows.append([run["time"][:16].replace("T", " "), *shown, names[of]])
    return ["time (UTC)", *(KINDS[kind] for kind in kinds), "build, model and shape"], rows


def facts_of(run: Run) -> dict[str, str]:
    """Return the facts that distinguish a run from others, in words."""
    model, patches = run["model"], patch_words(run["build"])
    words = {
        "build": f"build {one_line(short_commit(run['build'].get('commit')) or 'unknown')}",
        "patches": f"patches {patches}" if patches else "",
        "model": one_line(model["name"] or "model"),
        "file_type": one_line(model["file_type"] or ""),
        "size": shown_bytes(model["size_bytes"]) or "",
        "workers": workers_of(run),
        "endpoints": ", ".join(one_line(worker) for worker in run["workers"]),
        "tests": ", ".join(one_line(test["name"]) for test in run["tests"]),
        "batch": ", ".join(sorted({f"batch {test['batch_size']}/{test['ubatch_size']}" for test in run["tests"]})),
    }
    options = {
        f"option {key}": f"{one_line(key)} {one_line(value)}"
        for key, value in run["options"].items()
        if key != "repetitions"
    }
    return {**words, **options}


def notes_of(report: Report) -> list[str]:
    """Return the sentences about the plan."""
    plan = report["plan"]
    return [str(note) for note in (report["split_note"], plan.get("message")) if note]


def host_rows(hosts: Sequence[Mapping[str, Any]]) -> list[list[tuple[str | None, str]]]:
    """Return the cells of each host: a value, and the text below it in smaller letters."""
    rows = []
    for host in hosts:
        protocols = {(worker.get("protocol") or {}).get("version") for worker in host.get("workers") or []}
        roles = ["master"] * bool(host.get("master")) + ["worker"] * bool(host.get("endpoints"))
        available, total = (shown_bytes(host.get(f"memory_{which}_bytes")) for which in ("available", "total"))
        endpoints = ", ".join(map(str, host.get("endpoints") or []))
        version, commit = host.get("version"), short_commit(host.get("commit"))
        cells: list[tuple[object, object]] = [
            (host.get("name"), "" if endpoints == host.get("name") else endpoints),
            (" and ".join(roles), ""),
            (host.get("architecture"), host.get("cpu")),
            (grouped(host.get("cores")), ""),
            (", ".join(map(str, host.get("threads") or [])), ""),
            (available or total, f"of {total}" if available and total else ""),
            (version or commit, "" if not version or str(commit) in str(version) else commit),
            (", ".join(sorted(str(version) for version in protocols if version)), ""),
        ]
        rows.append(
            [(one_line(value) if value not in (None, "") else None, one_line(below or "")) for value, below in cells]
        )
    return rows


def model_facts(model: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Return the facts of the model, each with its name."""
    heads, kv_heads = grouped(model.get("heads")), grouped(model.get("kv_heads"))
    experts = finite(model.get("experts"))
    return [
        ("Name", model.get("name")),
        ("Architecture", model.get("architecture")),
        ("Quantisation", model.get("file_type")),
        ("Parameters", shown_parameters(model.get("parameters"))),
        ("Size", shown_bytes(model.get("size_bytes"))),
        ("Layers", grouped(model.get("layers"))),
        ("Width", grouped(model.get("embedding_length"))),
        ("Heads, of keys and values", f"{heads}, {kv_heads}" if heads and kv_heads else None),
        ("Experts, used", f"{grouped(experts)}, {grouped(model.get('experts_used')) or DASH}" if experts else None),
        ("Vocabulary", grouped(model.get("vocabulary"))),
        ("Context in training", grouped(model.get("context_length"))),
        ("File", model.get("path")),
    ]


def settings_facts(report: Report) -> list[tuple[str, str | None]]:
    """Return the build, the options and the settings, each with its name."""
    build, this = report["build"], report["history"][-1]
    words = " ".join(str(word) for word in (build.get("version"), short_commit(build.get("commit"))) if word)
    batches = [("batch_size", "batch_size"), ("ubatch_size", "ubatch_size"), ("n_depth", "n_depth")]
    tests = {
        name: sorted({test[key] for test in this["tests"]} - {None, 0})  # type: ignore[literal-required]
        for name, key in batches
    }
    facts = [("build", words), ("patches", patch_words(build))]
    for name, value in {**tests, **this["options"], **report["settings"]}.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        facts.append((name, ", ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in values)))
    return [(name, value) for name, value in facts if value not in ("", "None")]
