# SPDX-License-Identifier: GPL-3.0-or-later
"""Render the result of a distributed run as plain text. Private to this collection.

Text from a model, a host or a log is shown, never interpreted: no control character of it reaches a terminal.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Sequence

# Control characters except newline and tab, marks that change the text direction, halves of surrogate pairs.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_MIB = 1024 * 1024
_DEVICE_KEYS = ("model_buffer_mib", "kv_buffer_mib", "compute_buffer_mib")
# The row, its key under perf, and the keys of its number of tokens (sampling has one of two, by the age of the build).
_PERF_ROWS = (
    ("load", "load", ()),
    ("prompt eval", "prompt_eval", ("tokens",)),
    ("eval", "eval", ("runs",)),
    ("sampling", "sampling", ("runs", "tokens")),
    ("total", "total", ("tokens",)),
)


def render_report(result: Mapping[str, Any], workers: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the tables and the text of one run, with the failure first if there is one."""
    parts = [] if result["failure"] is None else [_failure(result["failure"])]
    parts.append(_workers(result, workers))
    text = safe_text(result["text"] or "")
    parts.append("Text\n" + (text.strip("\n") if text.strip() else "-"))
    parts.append(_performance(result))
    return "\n\n".join(parts)


def safe_text(text: object) -> str:
    """Return text with characters replaced that control a terminal; newlines and tabs stay, CRLF becomes a newline."""
    return _UNSAFE.sub("\ufffd", str(text).replace("\r\n", "\n"))


def _cell(value: object) -> str:
    """Return a value as a cell of one line; None is a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}"
    return safe_text(re.sub(r"[\s\x00-\x1f]+", " ", str(value)))


def render_table(header: Sequence[str], rows: Sequence[Sequence[object]], left: int) -> str:
    """Return a table with the first `left` columns aligned left and the others aligned right."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = (
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        )
        for row in cells
    )
    return "\n".join("  " + line.rstrip() for line in lines)


def _failure(failure: Mapping[str, Any]) -> str:
    endpoint = "" if failure["endpoint"] is None else f", {_cell(failure['endpoint'])}"
    return f"Failed ({_cell(failure['kind'])}{endpoint}): {_cell(failure['message'])}"


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _workers(result: Mapping[str, Any], workers: Sequence[Mapping[str, Any]]) -> str:
    devices = result["devices"] or []
    by_endpoint: dict[str | None, list[Mapping[str, Any]]] = {}
    for device in devices:
        by_endpoint.setdefault(device["endpoint"], []).append(device)
    on_master = by_endpoint.pop(None, [])
    # Weights on the master's CPU or in its host memory are not offloaded.
    offloaded = [device for device in devices if device["endpoint"] is not None or not _is_host(device["name"])]
    weights = _sum([device["model_buffer_mib"] for device in offloaded])

    rows: list[list[object]] = []
    for worker in workers:
        free, total = (
            _sum([device[key] for device in worker["devices"]]) for key in ("memory_free_bytes", "memory_total_bytes")
        )
        version = (worker["protocol"] or {}).get("version")
        held = _held(by_endpoint.pop(worker["endpoint"], []), weights)
        rows.append([worker["endpoint"], worker["state"], version, _mib(free), _mib(total), *held])
    rows += [[endpoint, *[None] * 4, *_held(held, weights)] for endpoint, held in by_endpoint.items()]
    for device in on_master:
        share = None if _is_host(device["name"]) else weights
        rows.append([f"master: {device['name']}", *[None] * 4, *_held([device], share)])
    title = "Workers (memory in MiB"
    offload = result.get("offload")
    if offload is not None:
        title += f"; {_cell(offload['layers'])} of {_cell(offload['layers_total'])} layers offloaded"
    # Only releases with the patch rpc-repack report this.
    repacked = _sum([device.get("repacked_mib") for device in devices])
    if repacked is not None:
        title += f"; {_cell(_float(repacked))} of {_cell(_float(weights))} of weights repacked"
    header = ("endpoint", "state", "protocol", "free", "total", "model", "KV", "compute", "share", "layers")
    return f"{title})\n" + render_table(header, rows, left=3)


def _is_host(name: object) -> bool:
    return name in ("CPU", "Host") or str(name).endswith("_Host")


def _mib(value: float | None) -> int | None:
    return None if value is None else int(value) // _MIB


def _held(devices: Sequence[Mapping[str, Any]], weights: float | None) -> list[object]:
    """Return model, KV and compute MiB of some devices, their share of the offloaded weights, and their layers."""
    mib = [_sum([device[key] for device in devices]) for key in _DEVICE_KEYS]
    share = f"{100.0 * mib[0] / weights:.0f}%" if weights and mib[0] is not None else None
    # Not every log says how many layers a device has, so the key may be missing too.
    layers = _sum([device.get("layers") for device in devices])
    return [*map(_float, mib), share, layers]


def _performance(result: Mapping[str, Any]) -> str:
    perf = result["perf"] or {}
    rows: list[list[object]] = []
    for name, key, count_keys in _PERF_ROWS:
        section = perf.get(key) or {}
        tokens = _sum([section.get(count) for count in count_keys])
        rows.append([name, _float(section.get("time_ms")), tokens, _float(section.get("tokens_per_second"))])
    rows.append(["wall time", _float(result["wall_time_ms"]), None, None])
    return "Performance\n" + render_table(("", "ms", "tokens", "tokens/s"), rows, left=1)


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)
