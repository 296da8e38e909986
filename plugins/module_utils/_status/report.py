# SPDX-License-Identifier: GPL-3.0-or-later
"""Render the result of a distributed run as plain text. Private to this collection.

Text from a model, a host or a log is shown, never interpreted: no control character of it reaches a terminal.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Sequence


class ReportError(ValueError):
    """The result or the workers do not suit the report; the message is one sentence that names the key."""


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
    """Return the tables and the text of one run, with the failure first if there is one.

    `result` is the result of distributed_inference, `workers` the list `workers` of rpc_worker_info.
    """
    parts = []
    failure = _get(result, "failure", "the result")
    if failure is not None:
        parts.append(_failure(failure))
    parts.append(_workers(result, workers))
    text = safe_text(str(_get(result, "text", "the result") or ""))
    parts.append("Text\n" + (text.strip("\n") if text.strip() else "-"))
    parts.append(_performance(result))
    return "\n\n".join(parts)


def safe_text(text: str) -> str:
    """Return text with characters replaced that control a terminal; newlines and tabs stay, CRLF becomes a newline."""
    return _UNSAFE.sub("\ufffd", text.replace("\r\n", "\n"))


def _get(mapping: object, key: str, what: str) -> Any:  # noqa: ANN401 - results are JSON of any shape
    if not isinstance(mapping, Mapping):
        raise ReportError(f"The report needs {what} as a dictionary, and got {_kind(mapping)}.")
    if key not in mapping:
        raise ReportError(f"The report needs the key '{key}', which {what} does not have.")
    return mapping[key]


def _list(value: object, what: str) -> Sequence[Any]:
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ReportError(f"The report needs {what} as a list, and got {_kind(value)}.")
    return value


def _kind(value: object) -> str:
    # Use isinstance, because Ansible passes subclasses with other names.
    if value is None:
        return "nothing"
    kinds = ((str, "a text"), (bool, "a truth value"), ((int, float), "a number"), (Mapping, "a dictionary"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "a list")


def _number(value: object, key: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ReportError(f"The report needs a number or null under the key '{key}', and got {_kind(value)}.")
    if not -1e18 < value < 1e18:  # this refuses NaN too
        raise ReportError(f"The report needs a finite number under the key '{key}', and got one that no run can have.")
    return value


def _endpoint(mapping: object, what: str) -> str | None:
    value = _get(mapping, "endpoint", what)
    if value is not None and not isinstance(value, str):
        raise ReportError(f"The report needs a text or null under the key 'endpoint', and got {_kind(value)}.")
    return value


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


def _failure(failure: object) -> str:
    kind, message = (_cell(_get(failure, key, "the failure")) for key in ("kind", "message"))
    endpoint = _get(failure, "endpoint", "the failure")
    return f"Failed ({kind}{'' if endpoint is None else ', ' + _cell(endpoint)}): {message}"


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _workers(result: Mapping[str, Any], workers: Sequence[Mapping[str, Any]]) -> str:
    devices = _list(_get(result, "devices", "the result"), "the key 'devices'")
    by_endpoint: dict[str | None, list[Mapping[str, Any]]] = {}
    for device in devices:
        by_endpoint.setdefault(_endpoint(device, "a device"), []).append(device)
    on_master = by_endpoint.pop(None, [])
    # Weights on the master's CPU or in its host memory are not offloaded.
    offloaded = [d for d in devices if d["endpoint"] is not None or not _is_host(_get(d, "name", "a device"))]
    weights = _sum([_number(_get(d, "model_buffer_mib", "a device"), "model_buffer_mib") for d in offloaded])

    rows: list[list[object]] = []
    for worker in _list(workers, "the workers"):
        endpoint = _endpoint(worker, "a worker")
        state, protocol = (_get(worker, key, "a worker") for key in ("state", "protocol"))
        version = None if protocol is None else _get(protocol, "version", "the protocol of a worker")
        memory = _list(_get(worker, "devices", "a worker"), "the key 'devices' of a worker")
        free, total = (
            _sum([_number(_get(d, key, "a worker's device"), key) for d in memory])
            for key in ("memory_free_bytes", "memory_total_bytes")
        )
        held = by_endpoint.pop(endpoint, [])
        rows.append([endpoint, state, version, _mib(free), _mib(total), *_held(held, weights)])
    for endpoint, held in by_endpoint.items():
        rows.append([endpoint, None, None, None, None, *_held(held, weights)])
    for device in on_master:
        name = _get(device, "name", "a device")
        rows.append([f"master: {name}", None, None, None, None, *_held([device], None if _is_host(name) else weights)])
    title = "Workers (memory in MiB"
    offload = result.get("offload")
    if offload is not None:
        layers, layers_total = (_cell(_get(offload, key, "the offload")) for key in ("layers", "layers_total"))
        title += f"; {layers} of {layers_total} layers offloaded"
    # Only releases with the patch rpc-repack report this.
    repacked = _sum([_number(device.get("repacked_mib"), "repacked_mib") for device in devices])
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
    mib = [_sum([_number(_get(d, key, "a device"), key) for d in devices]) for key in _DEVICE_KEYS]
    share = f"{100.0 * mib[0] / weights:.0f}%" if weights and mib[0] is not None else None
    # Not every log says how many layers a device has, so the key may be missing too.
    layers = _sum([_number(device.get("layers"), "layers") for device in devices])
    return [*(None if value is None else float(value) for value in mib), share, layers]


def _performance(result: Mapping[str, Any]) -> str:
    perf = _get(result, "perf", "the result")
    rows: list[list[object]] = []
    for name, key, count_keys in _PERF_ROWS:
        section = None if perf is None else _get(perf, key, "the key 'perf'")
        section = {"time_ms": None} if section is None else section
        time_ms = _number(_get(section, "time_ms", f"'perf.{key}'"), f"perf.{key}.time_ms")
        counts = [_number(section.get(count), f"perf.{key}.{count}") for count in count_keys]
        speed = _number(section.get("tokens_per_second"), f"perf.{key}.tokens_per_second")
        tokens = _sum(counts)
        rows.append([name, _float(time_ms), None if tokens is None else int(tokens), _float(speed)])
    wall = _number(_get(result, "wall_time_ms", "the result"), "wall_time_ms")
    rows.append(["wall time", _float(wall), None, None])
    return "Performance\n" + render_table(("", "ms", "tokens", "tokens/s"), rows, left=1)


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)
