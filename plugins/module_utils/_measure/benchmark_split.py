# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: what each worker was to hold, by the plan, beside what it did hold."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from .benchmark_checks import mapping_at, optional_count, optional_mib, sequence_at
from .benchmark_types import Figure, Share

# What the plan promises, in percent: see module split_plan.
PLAN_LIMITS = {"weights": 2.0, "kv": 2.0, "compute": 25.0}


def split_of(plan: Mapping[str, Any], run: Mapping[str, Any], hosts: Sequence[Mapping[str, Any]]) -> list[Share]:
    """Join the plan of each worker with what its devices held."""
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
        held = _total([optional_mib(device.get(buffer), f"run.devices.{buffer}") for device in devices])
        if held is None and devices and planned.get(key) == 0:
            held = 0  # the log has no line for what is not there
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
        # Below 0 if it does not fit.
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


def split_note(split: Sequence[Share]) -> str:
    """Say whether the plan kept its promise on the workers."""
    words = {"weights": "weights", "kv": "KV cache", "compute": "compute buffers"}
    off, compared = [], 0
    for share in split:
        for key, limit in PLAN_LIMITS.items():
            figure: Figure = share[key]  # type: ignore[literal-required]
            difference = figure["difference_percent"]
            if share["endpoint"] is None or difference is None:
                continue
            compared += 1
            if abs(difference) > limit:
                off.append(f"{words[key]} of {share['name']} {difference:+.1f} %")
    if not compared:
        return ""
    limits = "2 % for weights and KV cache, 25 % for compute buffers"
    if not off:
        return f"On every worker the plan was right within its limits ({limits})."
    return f"The plan was beyond its limits ({limits}): {', '.join(off)}."
