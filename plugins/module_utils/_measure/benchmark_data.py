# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: join the plan, the measurements and earlier runs into one benchmark report."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from .benchmark_history import (
    MIB,
    SCHEMA_VERSION,
    Figure,
    Model,
    Report,
    Run,
    Share,
    identity_of,
    mapping_at,
    number_at,
    optional_count,
    refuse,
    sequence_at,
    tests_at,
    time_at,
)
from .benchmark_words import summary_of, workers_of

# The largest deviations from a plan that llama.cpp itself has made. A log has MiB with two decimal places.
PLAN_LIMIT_PERCENT, PLAN_LIMIT_BYTES = 1.0, 30_000


def split_of(plan: Mapping[str, Any], run: Mapping[str, Any], hosts: Sequence[Mapping[str, Any]]) -> list[Share]:
    """Return the plan of each worker and of the master, joined with what their devices held."""
    held: dict[str | None, list[Mapping[str, Any]]] = {}
    for device in sequence_at(run.get("devices") or [], "run.devices"):
        endpoint = mapping_at(device, "run.devices").get("endpoint")
        held.setdefault(None if endpoint is None else str(endpoint).lower(), []).append(device)
    names = {
        endpoint.lower(): str(host.get("name")) if len(host["endpoints"]) == 1 else f"{host.get('name')}, {endpoint}"
        for host in hosts
        for endpoint in host["endpoints"]
    }
    shares = []
    for index, value in enumerate(sequence_at(plan.get("workers") or [], "plan.workers")):
        worker = mapping_at(value, f"plan.workers[{index}]")
        endpoint = str(worker.get("endpoint"))
        name = names.get(endpoint.lower(), endpoint)
        shares.append(_share(name, endpoint, worker, held.pop(endpoint.lower(), []), f"plan.workers[{index}]"))
    master = mapping_at(plan.get("master") or {}, "plan.master")
    on_master = held.pop(None, [])
    shares += [_share(names.get(str(key), str(key)), str(key), {}, devices, "run") for key, devices in held.items()]
    if master or on_master:
        name = next((f"{host.get('name')} (master)" for host in hosts if host.get("master")), "master")
        shares.append(_share(name, None, master, on_master, "plan.master"))
    return shares


def _share(
    name: str, endpoint: str | None, planned: Mapping[str, Any], devices: Sequence[Mapping[str, Any]], at: str
) -> Share:
    def figure(key: str, buffer: str) -> Figure:
        known = [device[buffer] for device in devices if device.get(buffer) is not None]
        held = _total([round(number_at(mib, f"run.devices.{buffer}") * MIB) for mib in known])
        if held is None and devices and planned.get(key) == 0:
            held = 0  # the log has no line for a buffer that does not exist
        return _figure(optional_count(planned.get(key), f"{at}.{key}"), held)

    weights, kv, compute = (
        figure("weights_bytes", "model_buffer_mib"),
        figure("kv_bytes", "kv_buffer_mib"),
        figure("compute_bytes", "compute_buffer_mib"),
    )
    return {
        "name": name,
        "endpoint": endpoint,
        "layers_planned": optional_count(planned.get("layers"), f"{at}.layers"),
        # The log counts the output as a layer.
        "layers_measured": _total([optional_count(device.get("layers"), "run.devices.layers") for device in devices]),
        "first_layer": optional_count(planned.get("first_layer"), f"{at}.first_layer"),
        "has_output": bool(planned.get("has_output")),
        "weights": weights,
        "kv": kv,
        "compute": compute,
        "total": _figure(
            optional_count(planned.get("total_bytes"), f"{at}.total_bytes"),
            _total([part["measured_bytes"] for part in (weights, kv, compute)]),
        ),
        "memory_available_bytes": optional_count(planned.get("memory_available_bytes"), f"{at}.memory_available_bytes"),
        # Below 0 if the plan does not fit.
        "headroom_bytes": planned.get("headroom_bytes"),
    }


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _figure(planned: int | None, measured: int | None) -> Figure:
    difference = None
    if planned is not None and measured is not None:
        if planned > 0:
            difference = round(100.0 * (measured - planned) / planned, 2)
        elif measured == 0:
            difference = 0.0
    return {"planned_bytes": planned, "measured_bytes": measured, "difference_percent": difference}


def split_note(split: Sequence[Share], *, exact: bool) -> str:
    """Return a sentence on whether llama.cpp's own plan was right on the workers; empty if nothing was compared."""
    words = {"weights": "weights", "kv": "KV cache", "compute": "compute buffers"}
    off, compared = [], 0
    for share in split if exact else ():
        for key, name in words.items():
            figure: Figure = share[key]  # type: ignore[literal-required]
            planned, measured = figure["planned_bytes"], figure["measured_bytes"]
            difference = figure["difference_percent"]
            if share["endpoint"] is None or planned is None or measured is None or difference is None:
                continue
            compared += 1
            if abs(difference) > PLAN_LIMIT_PERCENT and abs(measured - planned) > PLAN_LIMIT_BYTES:
                off.append(f"{name} of {share['name']} {difference:+.1f} %")
    if not compared:
        return ""
    if not off:
        return f"On every worker the plan was right within its limit of {PLAN_LIMIT_PERCENT:.0f} %."
    return f"The plan missed its limit of {PLAN_LIMIT_PERCENT:.0f} %: {', '.join(off)}."


# The maximum number of runs in a report; the history has all of them.
SHOWN_RUNS = 60


def build_report(results: Mapping[str, Any], before: Sequence[Run]) -> Report:
    """Return the report of one benchmark; `before` are the runs of its history.

    `results` holds `bench` (the result of llama_bench). The other keys may be missing or null: `run`
    (distributed_inference), `plan` (split_plan_info), `model` (gguf_info), `workers` (list of rpc_worker_info), `hosts`
    (a list with the facts of each host), `title`, `time` (UTC) and `settings`.
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
        "tests": tests_at(bench.get("tests"), "bench.tests"),
    }
    if not this["tests"]:
        refuse("There is nothing to report: bench.tests is empty.")
    return {
        "schema_version": SCHEMA_VERSION,
        "title": str(results.get("title") or f"{this['model']['name'] or 'A model'} over {workers_of(this)}"),
        "summary": summary_of(this, before),
        "time": this["time"],
        "build": {**mapping_at(bench["build"], "bench.build")},
        "hosts": hosts,
        "model": _model_facts(facts, this["model"]),
        "settings": dict(mapping_at(results.get("settings") or {}, "settings")),
        "tests": this["tests"],
        "plan": {key: plan.get(key) for key in ("fits", "message", "tensor_split", "ctx_size")},
        "split": split,
        "split_note": split_note(split, exact=plan.get("exact") is True),
        "run": _inference(inference),
        "history": [*before, this][-SHOWN_RUNS:],
    }


def _model_facts(facts: Mapping[str, Any], identity: Model) -> dict[str, Any]:
    shape = mapping_at(facts.get("shape") or {}, "model.shape")
    files = sequence_at(facts.get("files") or [], "model.files")
    path = mapping_at(files[0], "model.files[0]").get("path") if files else None
    return {**identity, "path": path, "architecture": facts.get("architecture"), **shape}


def _hosts(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the facts of each host, with the reports of its workers."""
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
    # Add the endpoints that no host of the inventory claims.
    return hosts + [
        {"name": worker.get("endpoint"), "endpoints": [worker.get("endpoint")], "workers": [worker]}
        for worker in seen.values()
    ]


def _inference(run: Mapping[str, Any]) -> dict[str, Any]:
    perf = mapping_at(run.get("perf") or {}, "run.perf")
    load, prompt, generation = (
        mapping_at(perf.get(part) or {}, f"run.perf.{part}") for part in ("load", "prompt_eval", "eval")
    )
    return {
        "wall_time_ms": run.get("wall_time_ms"),
        "load_ms": load.get("time_ms"),
        "prompt_tokens_per_second": prompt.get("tokens_per_second"),
        "generation_tokens_per_second": generation.get("tokens_per_second"),
    }
