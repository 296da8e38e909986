# SPDX-License-Identifier: GPL-3.0-or-later
"""Read figures from the output of a llama.cpp program. Private to this collection.

The text is the log of one run, standard error alone or both streams mixed. In mixed streams, generated text stands
among log lines and may imitate them, so a line counts only where llama.cpp prints it: devices, offload and build
before generation starts, performance figures in the last block, the memory table after that block. A model that
knows this can still fool a reader of the mixed streams of a run that was killed. If a proof is needed, give standard
error alone.

Formats are those of the format strings in upstream's `src/llama-context.cpp`, `src/llama-model.cpp`,
`src/llama-kv-cache.cpp`, `common/sampling.cpp`, `common/fit.cpp`, `common/log.cpp`, `tools/cli/cli-context.cpp` and
`tools/server/server-context.cpp`.
Every repetition in a pattern has a bound, so that the time taken is linear in the length of the text.
"""

from __future__ import annotations

import re
from typing import Any, Dict, NamedTuple, Sequence

from .._plan.assignment import assign


class PerfLogError(ValueError):
    """The text holds no performance figures; the message is one sentence for the user."""


# The shapes of these are those that filter llama_perf documents. A value that the log does not hold is None.
Figures = Dict[str, Any]

_NO_PERF = (
    "The text holds no llama.cpp performance figures: give the whole log of a run that ended by itself, "
    "at verbosity 3 or more, without --no-perf, --log-disable and --log-jsonl, or that of a llama-server."
)

_ANSI = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")
# What programs that collect logs write before a line: journalctl (if it writes a line for each entry) and syslog the
# time, the host and the program with its PID; `kubectl logs --timestamps` the time; `docker compose logs` the service.
_COLLECTED = re.compile(
    r"(?:[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d(?:\.\d{1,9})?"
    r"|(?:[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{0,20}(?: [A-Z]\S{1,5})?"
    r"|\d{9,11}\.\d{3,9}|\[ {0,9}\d{1,10}\.\d{3,9}\]) \S{1,255} [^\s:]{1,255}\[\d{1,10}\]: "
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S{1,20} "
    r"|[\w.-]{1,100} {1,40}\| "
)
# `M.SS.mmm.uuu I cmn  `: time, level and module, each of which may be absent.
_PREFIX = r"(?:\d{1,6}\.\d\d\.\d{3}\.\d{3} )?(?:[IWED] )?(?:[a-z]{3,5} {1,20})?"
_NUMBER = r"[-+]?(?:\d{1,30}(?:\.\d{1,10})?|inf|nan(?:\([a-z]{1,10}\))?)"

# Generation starts after one of these lines, of llama-completion (once llama-cli) or of the chat client llama-cli.
_TEXT_STARTS = re.compile(_PREFIX + r"generate: n_ctx = \d|available commands:$")

_MARKER = re.compile(
    r"(llama_print_timings|llama_perf_sampler_print|llama_perf_context_print|common_perf_print): {1,20}"
    r"(sampling|sample|samplers|load|prompt eval|eval|total|unaccounted)? ?(time|graphs reused) = {1,20}"
)
_TIMES = re.compile(
    rf"(?P<time_ms>{_NUMBER}) ms(?: / {{1,20}}(?P<count>\d{{1,18}}) (?P<unit>tokens|runs) {{0,8}})?"
    rf"(?:\( {{0,20}}(?P<ms_per_token>{_NUMBER}) ms per token, {{1,20}}"
    rf"(?P<tokens_per_second>{_NUMBER}) tokens per second\))?"
)
_UNACCOUNTED = re.compile(
    rf"(?P<time_ms>{_NUMBER}) ms / {{1,20}}(?P<percent>{_NUMBER}) % {{1,20}}\(total - [a-z -]{{1,60}}\) / \(total\)"
)
_GRAPHS = re.compile(r"\d{1,18}")
# A number with a decimal comma, as printf writes it in some languages.
_COMMA = re.compile(r" time = {1,20}\d{1,30},\d\d ms|\[ Prompt: \d{1,30},\d t/s")
# Builds until 2026 write this once for each request, and the figures into the lines after it.
_SLOT = re.compile(_PREFIX + r"slot {1,12}print_timings?: id {1,4}(\d{1,9}) \| task (-?\d{1,9}) \| ?(.{0,300})$")
_SLOT_LABEL = re.compile(r" {0,20}(prompt eval|eval|total) time = {1,20}| {0,20}(graphs reused) = {1,20}")
_CLI_SPEEDS = re.compile(rf"\[ Prompt: (?P<prompt>{_NUMBER}) t/s \| Generation: (?P<generation>{_NUMBER}) t/s \]")

_BUFFER = re.compile(
    _PREFIX + r"(?P<function>\w{1,60}): {1,40}(?P<buffer>\S{1,300}) {1,4}"
    r"(?P<kind>(?:model|KV|RS|DSV4 \S{1,20} state|compute)? ?)buffer size = {1,20}(?P<mib>\d{1,18}\.\d\d) MiB$"
)
_CONTEXT_STARTS = re.compile(_PREFIX + r"(?:\w{1,60}: constructing llama_context$|\w{1,60}: reserving \.\.\.$)")
_OFFLOADED = re.compile(_PREFIX + r"\w{1,60}: offloaded (\d{1,9})/(\d{1,9}) layers to GPU$")
_USING = re.compile(_PREFIX + r"\w{1,60}: using device (\S{1,300}) \(([^()]{0,300})\)")
_ASSIGNED = re.compile(_PREFIX + r"\w{1,60}: layer {1,6}(\d{1,6}) assigned to device (\S{1,300}?)(?:, is_swa = \d)?$")
_KV_SIZE = re.compile(
    _PREFIX + r"\w{1,60}: size = {1,20}(\d{1,18}\.\d\d) MiB \( {0,20}\d{1,18} cells, {1,6}(\d{1,6}) layers,"
)
_TABLE = re.compile(_PREFIX + r"\w{1,60}_memory_breakdown_print: \|(?P<name>[^|]{1,400})\|(?P<cells>[^|]{1,300})\|$")
_TABLE_MIB = re.compile(r"\d{1,18} = {1,18}(\d{1,18}) \+ {1,18}(\d{1,18}) \+ {1,18}(\d{1,18})")
_TABLE_NAME = re.compile(r"- (\S{1,300})(?: \((.{0,300})\))?")

_BUILD = re.compile(
    _PREFIX + r"(?:\w{1,60}: ){0,2}(?:"
    r"version: (?P<version>\S{1,60}) \(build (?P<number1>\d{1,9}), commit (?P<commit1>\w{1,40})\)"
    r"|(?:version:|build:|build =|build) (?P<number2>\d{1,9}) \((?P<commit2>\w{1,40})\)"
    r"|build(?:_info| {1,10}): b(?P<number3>\d{1,9})-(?P<commit3>\w{1,40})"
    r")"
)

_RPC_BUFFER = re.compile(r"RPC\d*\[(.+)\]")
# The order in which each reporter prints its lines. A line that goes back in it begins another report.
_NEW_ORDER = ("sampling", "samplers", "load", "prompt eval", "eval", "total", "unaccounted", "graphs reused")
_OLD_ORDER = ("load", "sampling", "prompt eval", "eval", "total")

_MODEL, _KV, _COMPUTE = "model", "kv", "compute"


def parse_log(text: str, require_perf: bool = True, shares: Sequence[float] = ()) -> Figures:
    """Return the figures of one run; raise PerfLogError if there are none, unless require_perf is false.

    `shares` are those by which llama.cpp divided the layers among its devices, in their order, if they are known.
    """
    lines = _lines(text)
    head = lines[: next((i for i, line in enumerate(lines) if _TEXT_STARTS.match(line)), len(lines))]
    perf, perf_end = _parse_perf(lines)
    if perf is None and require_perf:
        raise PerfLogError(_NO_PERF)
    # Before that block there are only projections, and tables that the generated text invents.
    table = lines[perf_end:] if perf is not None else []
    offload = _parse_offload(head)
    return {
        "perf": perf,
        "devices": _parse_devices(head, offload, shares) or _parse_table(table),
        "offload": offload,
        "build": _parse_build(head),
    }


def parse_requests(text: str) -> list[Figures]:
    """Return the figures of each request in the log of a `llama-server`, in the order in which they ended."""
    reports: list[tuple[tuple[int, int], dict[str, Figures]]] = []
    latest: dict[tuple[int, int], dict[str, Figures]] = {}
    request: tuple[int, int] | None = None
    for line in _lines(text):
        slot = _SLOT.match(line) if "slot" in line else None
        if slot:
            request = int(slot[1]), int(slot[2])
        label = _SLOT_LABEL.match(slot[3] if slot else line) if request else None
        figures = _slot_figures(label) if label else None
        if request and label and figures:
            name = label[1] or label[2]
            # A server that was started again counts its requests anew, and the log may have both.
            if request not in latest or name in latest[request]:
                latest[request] = {}
                reports.append((request, latest[request]))
            latest[request][name] = figures
        elif not slot or slot[3]:
            request = None  # something else, so the report is over
    names = ("prompt_eval", "eval", "total", "graphs_reused")
    return [
        {"slot": number, "task": task, **{name: _perf(report)[name] for name in names}}
        for (number, task), report in reports
    ]


def _slot_figures(label: re.Match[str]) -> Figures | None:
    """Return the figures after a label in a line of llama-server; None if the rest of the line has another form."""
    rest = label.string[label.end() :]
    if label[2]:
        return {"count": int(rest)} if _GRAPHS.fullmatch(rest) else None
    times = _TIMES.fullmatch(rest)
    if times is None:
        return None
    names = ("time_ms", "ms_per_token", "tokens_per_second")
    figures: Figures = {name: _number(times[name]) for name in names}
    if times["count"]:
        figures["runs" if label[1] == "eval" else "tokens"] = int(times["count"])
    return figures


def _lines(text: str) -> list[str]:
    """Return the lines of a log without colours and what a collector of logs adds, and with points in its numbers."""
    plain = _ANSI.sub("", text)
    if _COMMA.search(plain):
        plain = re.sub(r"(?<=\d),(?=\d)", ".", plain)
    lines = plain.split("\n")
    return [line[found.end() if found else 0 :].rstrip() for line, found in zip(lines, map(_COLLECTED.match, lines))]


def _number(text: str | None) -> float | None:
    """Return the number in a text that printf made of a double, None for a division by zero (inf, nan, -nan)."""
    return None if text is None or "n" in text else float(text)


class _Line(NamedTuple):
    """One line of a performance report."""

    reporter: str
    label: str
    figures: Figures


def _parse_perf(lines: Sequence[str]) -> tuple[Figures | None, int]:
    """Return the figures of the last report, and the index of the line after it."""
    report: dict[str, Figures] = {}
    reporter, rank, end = "", -1, 0
    for index, line in enumerate(lines):
        found = _perf_line(line)
        for item in found:
            order = _OLD_ORDER if item.reporter == "old" else _NEW_ORDER
            item_rank = order.index(item.label)
            if item.reporter != reporter or item_rank <= rank:
                report = {}
            report[item.label] = item.figures
            reporter, rank, end = item.reporter, item_rank, index + 1
    return (_perf(report), end) if report else (None, 0)


def _perf_line(line: str) -> Sequence[_Line]:
    """Return the figures in one line. Generated text may precede them in the line, but nothing may follow them."""
    if line.endswith("t/s ]"):
        speeds = _CLI_SPEEDS.fullmatch(line)
        if speeds is None:
            return ()
        return (
            _Line("cli", "prompt eval", {"tokens_per_second": _number(speeds["prompt"])}),
            _Line("cli", "eval", {"tokens_per_second": _number(speeds["generation"])}),
        )
    markers = list(_MARKER.finditer(line))
    return _reported(markers[-1], line[markers[-1].end() :]) if markers else ()


def _reported(marker: re.Match[str], rest: str) -> Sequence[_Line]:
    function, label = marker[1], marker[2] or marker[3]
    reporter = {"llama_print_timings": "old", "common_perf_print": "common"}.get(function, "perf")
    label = "sampling" if label == "sample" else label
    if label not in (_OLD_ORDER if reporter == "old" else _NEW_ORDER):
        return ()
    if label == "graphs reused":
        return (_Line(reporter, label, {"count": int(rest)}),) if _GRAPHS.fullmatch(rest) else ()
    match = (_UNACCOUNTED if label == "unaccounted" else _TIMES).fullmatch(rest)
    if match is None:
        return ()
    figures: Figures = {}
    for name, value in match.groupdict().items():
        if name not in ("count", "unit"):
            figures[name] = _number(value)
    if match.groupdict().get("count"):
        figures[match["unit"]] = int(match["count"])
    return (_Line(reporter, label, figures),)


def _perf(report: dict[str, Figures]) -> Figures:
    def of(label: str, *names: str) -> Figures:
        return {name: report.get(label, {}).get(name) for name in names}

    rates = ("ms_per_token", "tokens_per_second")
    samplers = of("samplers", "time_ms", "tokens")
    return {
        "load": of("load", "time_ms"),
        "sampling": {
            **of("sampling", "time_ms", "runs", *rates),
            "samplers_time_ms": samplers["time_ms"],
            "tokens": samplers["tokens"],
        },
        "prompt_eval": of("prompt eval", "time_ms", "tokens", *rates),
        "eval": of("eval", "time_ms", "runs", *rates),
        "total": of("total", "time_ms", "tokens"),
        "unaccounted": of("unaccounted", "time_ms", "percent"),
        "graphs_reused": report.get("graphs reused", {}).get("count"),
    }


def _parse_build(head: Sequence[str]) -> Figures | None:
    build: Figures = {"number": None, "commit": None, "version": None}
    found = False
    for line in head:
        match = _BUILD.match(line) if "build" in line or "version" in line else None
        if match is None:
            continue
        found = True
        number = match["number1"] or match["number2"] or match["number3"]
        commit = match["commit1"] or match["commit2"] or match["commit3"]
        build["number"] = int(number) if build["number"] is None else build["number"]
        build["commit"] = build["commit"] or (None if commit == "unknown" else commit)
        build["version"] = build["version"] or match["version"]
    return build if found else None


def _parse_offload(head: Sequence[str]) -> Figures | None:
    offload: Figures | None = None
    for line in head:
        match = _OFFLOADED.match(line) if "offloaded" in line else None
        if match:
            offload = {"layers": int(match[1]), "layers_total": int(match[2])}
    return offload


def _device_name(buffer: str) -> str:
    """Return the device of a buffer: CPU for CPU_Mapped and CPU_REPACK; host memory of a GPU keeps its own name."""
    if buffer.startswith(("RPC", "Meta(")) or buffer.endswith("_Host"):
        return buffer
    return buffer.split("_", 1)[0] or buffer


def _rpc_endpoint(name: str) -> str | None:
    match = _RPC_BUFFER.fullmatch(name)
    return match[1] if match else None


def _device(name: str, endpoint: str | None) -> Figures:
    return {
        "name": name,
        "endpoint": endpoint,
        "layers": None,
        "model_buffer_mib": None,
        "kv_buffer_mib": None,
        "compute_buffer_mib": None,
    }


def _parse_devices(head: Sequence[str], offload: Figures | None, shares: Sequence[float]) -> list[Figures]:
    """Return the devices of the buffer lines, in the order in which the log names them first."""
    buffers: dict[str, dict[str, float]] = {}
    for line in head:
        if "buffer size" in line:
            _add_buffer(buffers, line)
        elif _CONTEXT_STARTS.match(line):
            # The scheduler starts again (first to fit the parameters to the memory, then for the run), so its
            # earlier reservations are gone. Weights and KV cache of the fit have size zero.
            for sizes in buffers.values():
                sizes.pop(_COMPUTE, None)
    devices: list[Figures] = []
    for name, sizes in buffers.items():
        device = _device(name, _rpc_endpoint(name))
        device["model_buffer_mib"] = sizes.get(_MODEL)
        device["kv_buffer_mib"] = sizes.get(_KV)
        device["compute_buffer_mib"] = sizes.get(_COMPUTE)
        devices.append(device)
    _set_layers(devices, head, offload, shares)
    return devices


def _add_buffer(buffers: dict[str, dict[str, float]], line: str) -> None:
    match = _BUFFER.match(line)
    if match is None:
        return
    kind, mib = match["kind"].strip(), float(match["mib"])
    if not kind and not match["function"].endswith("load_tensors"):
        return
    sizes = buffers.setdefault(_device_name(match["buffer"]), {})
    if kind == "compute":
        # Once per device and reservation: a second line is a second reservation, not a second buffer.
        sizes[_COMPUTE] = mib
    else:
        # Upstream prints two decimals; binary fractions must not add more.
        key = _MODEL if kind in ("", "model") else _KV
        sizes[key] = round(sizes.get(key, 0.0) + mib, 2)


def _set_layers(devices: list[Figures], head: Sequence[str], offload: Figures | None, shares: Sequence[float]) -> None:
    """Count the layers of each device: from debug output, from its part of the KV cache, or from its share."""
    names: dict[str, str] = {}  # upstream's device names, in the order of its devices, to names of their buffers
    per_endpoint: dict[str, int] = {}
    assigned: dict[str, str] = {}
    kv_sizes: list[tuple[float, int]] = []
    for line in head:
        using = _USING.match(line) if "using device" in line else None
        if using and using[1] not in names:
            index = per_endpoint.get(using[2], 0)
            per_endpoint[using[2]] = index + 1
            # RPC0, RPC1, ... count the devices of all workers; RPC<k>[endpoint] of buffers counts those of one worker.
            names[using[1]] = f"RPC{index}[{using[2]}]" if re.fullmatch(r"RPC\d{1,9}", using[1]) else using[1]
        layer = _ASSIGNED.match(line) if "assigned to device" in line else None
        if layer:
            assigned[layer[1]] = names.get(layer[2], layer[2])
        size = _KV_SIZE.match(line) if "cells" in line else None
        if size:
            kv_sizes.append((float(size[1]), int(size[2])))
    if assigned:
        counts: dict[str, int] = {}
        for name in assigned.values():
            counts[name] = counts.get(name, 0) + 1
        for device in devices:
            device["layers"] = counts.get(device["name"], 0)
    elif offload:
        if len(kv_sizes) == 1:
            _set_layers_by_kv(devices, list(names.values()), offload, *kv_sizes[0])
        if all(device["layers"] is None for device in devices):
            _set_layers_by_shares(devices, list(names.values()), offload, shares)


def _set_layers_by_kv(
    devices: list[Figures], order: Sequence[str], offload: Figures, kv_mib: float, kv_layers: int
) -> None:
    """Set the layers of each device where the KV cache determines them.

    It does for one cache that has the same size on each layer and lies with its layer. If so, the devices' shares are
    whole layers and add up. The output layer has no cache: if it is offloaded, the last device holds it.
    """
    by_name = {device["name"]: device for device in devices if device["name"] in order}
    rest = [device for device in devices if device["name"] not in order]
    with_weights = [name for name in order if name in by_name and by_name[name]["model_buffer_mib"]]
    if not kv_mib or not with_weights:
        return
    counts = {}
    for name, device in by_name.items():
        layers = (device["kv_buffer_mib"] or 0.0) * kv_layers / kv_mib
        counts[name] = round(layers)
        if abs(layers - counts[name]) > 0.02:
            return
    output = offload["layers"] - sum(counts.values())
    if output not in (0, 1) or kv_layers + 1 != offload["layers_total"]:
        return
    counts[with_weights[-1]] += output
    for name, count in counts.items():
        by_name[name]["layers"] = count
    for device in rest:
        device["layers"] = offload["layers_total"] - offload["layers"] if device["name"] == "CPU" else None


def _set_layers_by_shares(
    devices: list[Figures], order: Sequence[str], offload: Figures, shares: Sequence[float]
) -> None:
    """Set the layers of each device as llama.cpp divides them, which is the same for every architecture.

    Only the number of offloaded layers counts, whether the output is among them or, in old builds, is not.
    """
    if not shares or len(order) != len(shares):
        return
    owners = assign(offload["layers"] - 1, offload["layers"], shares)
    counts = {name: owners.count(index) for index, name in enumerate(order)}
    by_name = {device["name"]: device for device in devices}
    if any(count and name not in by_name for name, count in counts.items()):
        return
    counts["CPU"] = offload["layers_total"] - offload["layers"]
    for name, count in counts.items():
        if name in by_name:
            by_name[name]["layers"] = count


def _parse_table(lines: Sequence[str]) -> list[Figures]:
    """Return the devices of the last memory table; its figures are whole MiB, rounded down."""
    devices: list[Figures] = []
    for line in lines:
        row = _TABLE.match(line) if "_memory_breakdown_print" in line else None
        if row is None:
            continue
        if "memory breakdown" in row["name"]:
            devices = []
            continue
        name, mib = _TABLE_NAME.fullmatch(row["name"].strip()), _TABLE_MIB.search(row["cells"])
        if name is None or mib is None:
            continue
        # Up to b6687 the device is called RPC[endpoint], later RPC<n>, described by its endpoint.
        described = name[2] if re.fullmatch(r"RPC\d{1,9}", name[1]) else None
        device = _device(name[1], described or _rpc_endpoint(name[1]))
        device["model_buffer_mib"] = float(mib[1])
        device["kv_buffer_mib"] = float(mib[2])
        device["compute_buffer_mib"] = float(mib[3])
        devices.append(device)
    return devices
