# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: what a report says of runs, hosts, model and settings, in whichever form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Sequence

from .benchmark_history import series_of
from .benchmark_summary import finite, workers_of
from .benchmark_words import DASH, grouped, one_line, patch_words, short_commit, shown_bytes, shown_parameters

if TYPE_CHECKING:
    from .benchmark_types import Report, Run


PARTS = (("weights", "Weights"), ("kv", "KV cache"), ("compute", "Compute"))
HOST_HEADER = ("host", "role", "processor", "cores", "threads", "memory available", "llama.cpp", "RPC")


class Series:
    """The runs of one build, model and shape; the last is the one that this run belongs to."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.of = [series_of(run) for run in runs]
        own = self.of[-1]
        newest = list(dict.fromkeys(reversed(self.of)))
        self.rank = {key: index for index, key in enumerate([own, *(key for key in newest if key != own)])}
        self.runs = {key: next(run for run, of in zip(runs, self.of) if of == key) for key in self.rank}

    def names(self) -> dict[str, str]:
        """Return what tells each series from the others, and always its build and model."""
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


def facts_of(run: Run) -> dict[str, str]:
    """Return what makes a run another one, in words."""
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
    """Return what is said of the plan."""
    plan = report["plan"]
    return [str(note) for note in (report["split_note"], plan.get("message")) if note]


def host_rows(hosts: Sequence[Mapping[str, Any]]) -> list[list[tuple[str | None, str]]]:
    """Return the cells of each host: what it is, and what stands below in smaller letters."""
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
    """Return what is known of the model, each with its name."""
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
    """Return build, options and settings, each with its name."""
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
