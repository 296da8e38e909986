# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: join what was planned, measured and known before into one benchmark report. Asks nobody."""

from __future__ import annotations

from typing import Any, Mapping

from .benchmark_checks import mapping_at, refuse, sequence_at, time_at
from .benchmark_history import SCHEMA_VERSION, identity_of, run_at, test_at
from .benchmark_split import split_note, split_of
from .benchmark_summary import summary_of, title_of
from .benchmark_types import Model, Report, Run

# So many runs are in a report; the history has them all.
SHOWN_RUNS = 60


def build_report(results: Mapping[str, Any]) -> Report:
    """Return the report of one benchmark.

    `results` has what the modules returned: `bench` (llama_bench), and, each of which may be missing or null, `run`
    (distributed_inference), `plan` (split_plan), `model` (gguf_info), `workers` (the list of rpc_worker_info), `hosts`
    (a list of what is known of each host), `history` (of parse_history), `title`, `time` (UTC) and `settings`.
    """
    bench = mapping_at(results.get("bench"), "bench")
    failure = bench.get("failure")
    if failure:
        message = mapping_at(failure, "bench.failure").get("message")
        refuse(f"There is nothing to report, since the benchmark failed: {message}")
    facts = mapping_at(results.get("model") or {}, "model")
    plan = mapping_at(results.get("plan") or {}, "plan")
    inference = mapping_at(results.get("run") or {}, "run")
    hosts = _hosts(results)
    split = split_of(plan, inference, hosts)
    this: Run = {
        "schema_version": SCHEMA_VERSION,
        "time": time_at(results.get("time"), "time"),
        "build": {
            key: mapping_at(bench.get("build"), "bench.build").get(key) for key in ("commit", "number", "patches")
        },
        "model": identity_of(facts, mapping_at(bench.get("model") or {}, "bench.model")),
        "workers": [str(worker) for worker in sequence_at(bench.get("workers"), "bench.workers")],
        "options": dict(mapping_at(bench.get("options") or {}, "bench.options")),
        "tests": [
            test_at(test, f"bench.tests[{index}]")
            for index, test in enumerate(sequence_at(bench.get("tests"), "bench.tests"))
        ],
    }
    if not this["tests"]:
        refuse("There is nothing to report: bench.tests is empty.")
    before = [
        run_at(run, f"history[{index}]")
        for index, run in enumerate(sequence_at(results.get("history") or [], "history"))
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        "title": str(results.get("title") or "") or title_of(this),
        "summary": summary_of(this, before),
        "time": this["time"],
        "build": {**mapping_at(bench["build"], "bench.build")},
        "hosts": hosts,
        "model": _model_facts(facts, this["model"]),
        "settings": dict(mapping_at(results.get("settings") or {}, "settings")),
        "tests": this["tests"],
        "plan": {key: plan.get(key) for key in ("fits", "message", "tensor_split", "ctx_size")},
        "split": split,
        "split_note": split_note(split),
        "run": _inference(inference),
        "history": [*before, this][-SHOWN_RUNS:],
    }


def _model_facts(facts: Mapping[str, Any], identity: Model) -> dict[str, Any]:
    shape = mapping_at(facts.get("shape") or {}, "model.shape")
    files = sequence_at(facts.get("files") or [], "model.files")
    path = mapping_at(files[0], "model.files[0]").get("path") if files else None
    return {**identity, "path": path, "architecture": facts.get("architecture"), **shape}


def _hosts(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what is known of each host, with what its workers say of themselves."""
    seen = {
        str(mapping_at(worker, "workers").get("endpoint")).lower(): worker
        for worker in sequence_at(results.get("workers") or [], "workers")
    }
    hosts = []
    for index, value in enumerate(sequence_at(results.get("hosts") or [], "hosts")):
        host = dict(mapping_at(value, f"hosts[{index}]"))
        endpoints = [
            str(endpoint) for endpoint in sequence_at(host.get("endpoints") or [], f"hosts[{index}].endpoints")
        ]
        host["endpoints"] = endpoints
        host["workers"] = [seen.pop(endpoint.lower()) for endpoint in endpoints if endpoint.lower() in seen]
        hosts.append(host)
    # Endpoints that no host of the inventory claims.
    return hosts + [
        {"name": worker.get("endpoint"), "endpoints": [worker.get("endpoint")], "workers": [worker]}
        for worker in seen.values()
    ]


def _inference(run: Mapping[str, Any]) -> dict[str, Any]:
    perf = mapping_at(run.get("perf") or {}, "run.perf")
    return {
        "wall_time_ms": run.get("wall_time_ms"),
        "load_ms": mapping_at(perf.get("load") or {}, "run.perf.load").get("time_ms"),
        "prompt_tokens_per_second": mapping_at(perf.get("prompt_eval") or {}, "run.perf.prompt_eval").get(
            "tokens_per_second"
        ),
        "generation_tokens_per_second": mapping_at(perf.get("eval") or {}, "run.perf.eval").get("tokens_per_second"),
    }
