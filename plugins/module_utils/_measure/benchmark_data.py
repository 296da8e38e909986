# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: join the plan, the measurements and earlier runs into one benchmark report."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

from .benchmark_history import SCHEMA_VERSION, Run, summary_of, workers_of

MIB = 1024 * 1024
# The largest deviations from a plan that llama.cpp itself has made. A log has MiB with two decimal places.
PLAN_LIMIT_PERCENT, PLAN_LIMIT_BYTES = 1.0, 30_000
# The maximum number of runs in a report; the history has all of them.
SHOWN_RUNS = 60

# The planned and the measured share of one worker, or of the master.
Share = Dict[str, Any]
# A planned value beside the measured one. An unknown value is None, and so is the difference then.
Figure = Dict[str, Any]


def split_of(plan: Mapping[str, Any], run: Mapping[str, Any], hosts: Sequence[Mapping[str, Any]]) -> list[Share]:
    """Return the plan of each worker and of the master, joined with what their devices held."""
    held: dict[str | None, list[Mapping[str, Any]]] = {}
    for device in run.get("devices") or []:
        endpoint = device["endpoint"]
        held.setdefault(None if endpoint is None else str(endpoint).lower(), []).append(device)
    names = {
        endpoint.lower(): str(host["name"]) if len(host["endpoints"]) == 1 else f"{host['name']}, {endpoint}"
        for host in hosts
        for endpoint in host["endpoints"]
    }
    shares = []
    for worker in plan.get("workers") or []:
        endpoint = str(worker["endpoint"])
        devices = held.pop(endpoint.lower(), [])
        shares.append(_share(names.get(endpoint.lower(), endpoint), endpoint, worker, devices))
    master, on_master = plan.get("master") or {}, held.pop(None, [])
    shares += [_share(names.get(str(key), str(key)), str(key), {}, devices) for key, devices in held.items()]
    if master or on_master:
        name = next((f"{host['name']} (master)" for host in hosts if host.get("master")), "master")
        shares.append(_share(name, None, master, on_master))
    return shares


def _share(name: str, endpoint: str | None, planned: Mapping[str, Any], devices: Sequence[Mapping[str, Any]]) -> Share:
    def figure(key: str) -> Figure:
        buffer = "model" if key == "weights" else key
        known = [device[f"{buffer}_buffer_mib"] for device in devices]
        held = _total([None if mib is None else round(mib * MIB) for mib in known])
        if held is None and devices and planned.get(f"{key}_bytes") == 0:
            held = 0  # the log has no line for a buffer that does not exist
        return _figure(planned.get(f"{key}_bytes"), held)

    parts = {key: figure(key) for key in ("weights", "kv", "compute")}
    return {
        "name": name,
        "endpoint": endpoint,
        "layers_planned": planned.get("layers"),
        # The log counts the output as a layer.
        "layers_measured": _total([device.get("layers") for device in devices]),
        "first_layer": planned.get("first_layer"),
        "has_output": bool(planned.get("has_output")),
        **parts,
        "total": _figure(planned.get("total_bytes"), _total([part["measured_bytes"] for part in parts.values()])),
        "memory_available_bytes": planned.get("memory_available_bytes"),
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
    compared = [
        (f"{name} of {share['name']}", share[key])
        for share in split
        for key, name in words.items()
        if exact and share["endpoint"] is not None and share[key]["difference_percent"] is not None
    ]
    if not compared:
        return ""
    off = [
        f"{what} {figure['difference_percent']:+.1f} %"
        for what, figure in compared
        if abs(figure["difference_percent"]) > PLAN_LIMIT_PERCENT
        and abs(figure["measured_bytes"] - figure["planned_bytes"]) > PLAN_LIMIT_BYTES
    ]
    if not off:
        return f"On every worker the plan was right within its limit of {PLAN_LIMIT_PERCENT:.0f} %."
    return f"The plan missed its limit of {PLAN_LIMIT_PERCENT:.0f} %: {', '.join(off)}."


def build_report(results: Mapping[str, Any], before: Sequence[Run]) -> dict[str, Any]:
    """Return the report of one benchmark; filter benchmark_report documents `results`, `before` are earlier runs."""
    bench, facts = results["bench"], results.get("model") or {}
    plan, inference = results.get("plan") or {}, results.get("run") or {}
    hosts = _hosts(results)
    split = split_of(plan, inference, hosts)
    this: Run = {
        "schema_version": SCHEMA_VERSION,
        "time": results["time"],
        "build": {key: bench["build"].get(key) for key in ("commit", "number", "patches")},
        "model": _identity(facts, bench.get("model") or {}),
        "workers": bench["workers"],
        "options": bench.get("options") or {},
        "tests": [_test(test) for test in bench["tests"]],
    }
    files = facts.get("files") or [{}]
    return {
        "schema_version": SCHEMA_VERSION,
        "title": str(results.get("title") or f"{this['model']['name'] or 'A model'} over {workers_of(this)}"),
        "summary": summary_of(this, before),
        "time": this["time"],
        "build": bench["build"],
        "hosts": hosts,
        "model": {
            **this["model"],
            "path": files[0].get("path"),
            "architecture": facts.get("architecture"),
            **(facts.get("shape") or {}),
        },
        "settings": results.get("settings") or {},
        "tests": this["tests"],
        "plan": {key: plan.get(key) for key in ("fits", "message", "tensor_split", "ctx_size")},
        "split": split,
        "split_note": split_note(split, exact=plan.get("exact") is True),
        "run": _inference(inference),
        "history": [*before, this][-SHOWN_RUNS:],
    }


def _test(test: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("name", "kind", "n_prompt", "n_gen", "n_depth", "batch_size", "ubatch_size")
    speed = test["tokens_per_second"]
    # One sample has no standard deviation.
    shown = {"mean": speed["mean"], "stddev": speed["stddev"] or 0.0, "samples": speed["samples"]}
    return {**{key: test[key] for key in keys}, "tokens_per_second": shown}


def _identity(facts: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that distinguish a model from others; those of llama_bench stand in for missing ones."""
    instead = {"name": "type", "file_type": "file_type", "parameters": "n_params", "size_bytes": "size_bytes"}
    return {key: facts[key] if facts.get(key) is not None else other.get(same) or None for key, same in instead.items()}


def _hosts(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the facts of each host, with the reports of its workers."""
    seen = {str(worker["endpoint"]).lower(): worker for worker in results.get("workers") or []}
    hosts = []
    for given in results.get("hosts") or []:
        endpoints = given.get("endpoints") or []
        workers = [seen.pop(endpoint.lower()) for endpoint in endpoints if endpoint.lower() in seen]
        hosts.append({**given, "endpoints": endpoints, "workers": workers})
    # Add the endpoints that no host of the inventory claims.
    return hosts + [
        {"name": worker["endpoint"], "endpoints": [worker["endpoint"]], "workers": [worker]} for worker in seen.values()
    ]


def _inference(run: Mapping[str, Any]) -> dict[str, Any]:
    perf = run.get("perf") or {}
    return {
        "wall_time_ms": run.get("wall_time_ms"),
        "load_ms": (perf.get("load") or {}).get("time_ms"),
        "prompt_tokens_per_second": (perf.get("prompt_eval") or {}).get("tokens_per_second"),
        "generation_tokens_per_second": (perf.get("eval") or {}).get("tokens_per_second"),
    }
