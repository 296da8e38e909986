# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Private: join what was planned, measured and known before into one benchmark report. Asks nobody."""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any, Mapping, NoReturn, Sequence, TypedDict

# Of report.json and of each line of the history. A change that readers of them would notice makes it another number.
SCHEMA_VERSION = 1
# So many runs are in a report; the history has them all.
SHOWN_RUNS = 60
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
# What the plan promises, in percent: see module split_plan.
PLAN_LIMITS = {"weights": 2.0, "kv": 2.0, "compute": 25.0}
# What llama_bench calls its tests, the one that people wait for most first, and what they are to a person.
KINDS = {"generation": "generation", "prompt": "prompt", "mixed": "prompt and generation together"}
MIB = 1024 * 1024
# No text of a report is longer: a message of a page is none.
_LONGEST_LINE = 1_000_000


class BenchmarkError(ValueError):
    """What was handed over makes no report, or the history is broken; the message is one sentence naming the place."""


class Speed(TypedDict):
    """Tokens per second over several samples; the spread is the standard deviation."""

    mean: float
    stddev: float
    samples: list[float]


class Test(TypedDict):
    """One test of llama-bench."""

    name: str
    kind: str
    n_prompt: int
    n_gen: int
    n_depth: int
    batch_size: int | None
    ubatch_size: int | None
    tokens_per_second: Speed


class Figure(TypedDict):
    """One prediction beside what llama.cpp said; a side that is not known is null, and so is the difference then."""

    planned_bytes: int | None
    measured_bytes: int | None
    difference_percent: float | None


class Share(TypedDict):
    """What one worker, or the master, was to hold and did hold."""

    name: str
    endpoint: str | None
    layers_planned: int | None
    layers_measured: int | None
    first_layer: int | None
    has_output: bool
    weights: Figure
    kv: Figure
    compute: Figure
    total: Figure
    memory_available_bytes: int | None
    headroom_bytes: int | None


class Model(TypedDict):
    """What makes a model another one."""

    name: str | None
    file_type: str | None
    parameters: int | None
    size_bytes: int | None


class Run(TypedDict):
    """One line of the history."""

    schema_version: int
    time: str
    build: dict[str, Any]
    model: Model
    workers: list[str]
    options: dict[str, Any]
    tests: list[Test]


class Report(TypedDict):
    """All of a report, as report.json has it."""

    schema_version: int
    title: str
    summary: str
    time: str
    build: dict[str, Any]
    hosts: list[dict[str, Any]]
    model: dict[str, Any]
    settings: dict[str, Any]
    tests: list[Test]
    plan: dict[str, Any]
    split: list[Share]
    split_note: str
    run: dict[str, Any]
    history: list[Run]


def build_report(results: Mapping[str, Any]) -> Report:
    """Return the report of one benchmark.

    `results` has what the modules returned: `bench` (llama_bench), and, each of which may be missing or null, `run`
    (distributed_inference), `plan` (split_plan), `model` (gguf_info), `workers` (the list of rpc_worker_info), `hosts`
    (a list of what is known of each host), `history` (of parse_history), `title`, `time` (UTC) and `settings`.
    """
    bench = _mapping(results.get("bench"), "bench")
    failure = bench.get("failure")
    if failure:
        message = _mapping(failure, "bench.failure").get("message")
        _refuse(f"There is nothing to report, since the benchmark failed: {message}")
    facts = _mapping(results.get("model") or {}, "model")
    plan = _mapping(results.get("plan") or {}, "plan")
    inference = _mapping(results.get("run") or {}, "run")
    hosts = _hosts(results)
    split = _split(plan, inference, hosts)
    this: Run = {
        "schema_version": SCHEMA_VERSION,
        "time": _time(results.get("time"), "time"),
        "build": {key: _mapping(bench.get("build"), "bench.build").get(key) for key in ("commit", "number", "patches")},
        "model": _identity(facts, _mapping(bench.get("model") or {}, "bench.model")),
        "workers": [str(worker) for worker in _sequence(bench.get("workers"), "bench.workers")],
        "options": dict(_mapping(bench.get("options") or {}, "bench.options")),
        "tests": [
            _test(test, f"bench.tests[{index}]")
            for index, test in enumerate(_sequence(bench.get("tests"), "bench.tests"))
        ],
    }
    if not this["tests"]:
        _refuse("There is nothing to report: bench.tests is empty.")
    before = [
        _run(run, f"history[{index}]") for index, run in enumerate(_sequence(results.get("history") or [], "history"))
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        "title": str(results.get("title") or "") or _title(this),
        "summary": _summary(this, before),
        "time": this["time"],
        "build": {**_mapping(bench["build"], "bench.build")},
        "hosts": hosts,
        "model": _model_facts(facts, this["model"]),
        "settings": dict(_mapping(results.get("settings") or {}, "settings")),
        "tests": this["tests"],
        "plan": {key: plan.get(key) for key in ("fits", "message", "tensor_split", "ctx_size")},
        "split": split,
        "split_note": _split_note(split),
        "run": _inference(inference),
        "history": [*before, this][-SHOWN_RUNS:],
    }


def parse_history(text: str, name: str) -> list[Run]:
    """Return the runs of a history, which has one JSON object in a line; `name` is the file in messages."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    runs = []
    for number, line in enumerate(lines, 1):
        try:
            if len(line) > _LONGEST_LINE:
                _refuse("it is longer than a million characters")
            line.encode()
            runs.append(_run(json.loads(line, parse_constant=_no_constant), ""))
        except (ValueError, RecursionError) as error:
            raise BenchmarkError(
                f"Line {number} of the history {name} is no run of a benchmark ({_reason(line, error)}): "
                "mend it, or move the file away to begin another."
            ) from None
    return runs


def history_line(report: Report) -> str:
    """Return the line of the history that a report's own run makes."""
    return json.dumps(report["history"][-1], sort_keys=True, ensure_ascii=False, allow_nan=False)


def series_of(run: Run) -> str:
    """Return a text that two runs share if they can be compared: build, model and shape are the same."""
    # More repetitions are no other thing.
    options = {key: value for key, value in run["options"].items() if key != "repetitions"}
    keys = ("kind", "n_prompt", "n_gen", "n_depth", "batch_size", "ubatch_size")
    tests = [[test.get(key) for key in keys] for test in run["tests"]]
    build = [run["build"].get(key) for key in ("commit", "patches")]
    return json.dumps([build, run["model"], run["workers"], options, tests], sort_keys=True)


def speed_of(tests: Sequence[Test], kind: str) -> Speed | None:
    """Return the speed of the first test of a kind."""
    return next((test["tokens_per_second"] for test in tests if test["kind"] == kind), None)


def shown_speed(speed: Speed) -> str:
    """Return a speed with its spread, in digits that mean something."""
    mean, spread = speed["mean"], speed["stddev"]
    return shown_number(mean) + (f" ± {spread:.{_decimals(mean)}f}" if len(speed["samples"]) > 1 else "")


def shown_number(speed: float) -> str:
    """Return tokens per second in digits that mean something."""
    return f"{speed:.{_decimals(speed)}f}"


def _decimals(speed: float) -> int:
    return 2 if speed < 10 else 1 if speed < 1000 else 0


def _reason(line: str, error: Exception) -> str:
    if not line.strip():
        return "it is empty"
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON from column {error.colno} on"
    if isinstance(error, UnicodeError):
        return "it is no UTF-8"
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)


def _no_constant(name: str) -> NoReturn:
    _refuse(f"{name} is no number")


def _refuse(message: str) -> NoReturn:
    raise BenchmarkError(message)


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        _refuse(f"{where} must be a dictionary")
    return value


def _sequence(value: object, where: str) -> Sequence[Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        _refuse(f"{where} must be a list")
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        _refuse(f"{where} must be a number")
    # Before float(), which has no place for every whole number.
    if not 0 <= value <= 1e18:
        _refuse(f"{where} must be a number from 0 to 1e18")
    return float(value)


def _count(value: object, where: str) -> int:
    number = _number(value, where)
    if number != int(number):
        _refuse(f"{where} must be a whole number")
    return int(number)


def _optional_count(value: object, where: str) -> int | None:
    return None if value is None else _count(value, where)


def _optional_mib(value: object, where: str) -> int | None:
    """Return bytes for what the log says in MiB."""
    return None if value is None else round(_number(value, where) * MIB)


def _time(value: object, where: str) -> str:
    try:
        return datetime.strptime(str(value), TIME_FORMAT).strftime(TIME_FORMAT)
    except ValueError:
        _refuse(f"{where} must be a time in UTC such as 2026-01-31T23:59:59Z")


def _test(value: object, where: str) -> Test:
    test = _mapping(value, where)
    speed = _mapping(test.get("tokens_per_second"), f"{where}.tokens_per_second")
    samples = [
        _number(sample, f"{where}.tokens_per_second.samples[{index}]")
        for index, sample in enumerate(_sequence(speed.get("samples"), f"{where}.tokens_per_second.samples"))
    ]
    if test.get("kind") not in KINDS:
        _refuse(f"{where}.kind must be one of {', '.join(KINDS)}")
    return {
        "name": str(test.get("name") or test["kind"]),
        "kind": str(test["kind"]),
        "n_prompt": _count(test.get("n_prompt"), f"{where}.n_prompt"),
        "n_gen": _count(test.get("n_gen"), f"{where}.n_gen"),
        "n_depth": _count(test.get("n_depth") or 0, f"{where}.n_depth"),
        "batch_size": _optional_count(test.get("batch_size"), f"{where}.batch_size"),
        "ubatch_size": _optional_count(test.get("ubatch_size"), f"{where}.ubatch_size"),
        "tokens_per_second": {
            "mean": _number(speed.get("mean"), f"{where}.tokens_per_second.mean"),
            # Of one sample there is none.
            "stddev": _number(speed.get("stddev") or 0, f"{where}.tokens_per_second.stddev"),
            "samples": samples,
        },
    }


def _run(value: object, where: str) -> Run:
    """Return a line of the history, or say which of its keys is wrong."""
    at = f"{where}." if where else ""
    run = _mapping(value, where or "it")
    if run.get("schema_version") != SCHEMA_VERSION or isinstance(run.get("schema_version"), bool):
        _refuse(f"{at}schema_version must be {SCHEMA_VERSION}")
    build, model = _mapping(run.get("build"), f"{at}build"), _mapping(run.get("model"), f"{at}model")
    tests = _sequence(run.get("tests"), f"{at}tests")
    return {
        "schema_version": SCHEMA_VERSION,
        "time": _time(run.get("time"), f"{at}time"),
        "build": dict(build),
        "model": _identity(model, {}, f"{at}model"),
        "workers": [str(worker) for worker in _sequence(run.get("workers"), f"{at}workers")],
        "options": dict(_mapping(run.get("options"), f"{at}options")),
        "tests": [_test(test, f"{at}tests[{index}]") for index, test in enumerate(tests)],
    }


def _identity(facts: Mapping[str, Any], other: Mapping[str, Any], where: str = "model") -> Model:
    def of(key: str) -> Any:  # noqa: ANN401 - JSON of any shape
        return facts.get(key) if facts.get(key) is not None else other.get(key)

    name, file_type = (None if of(key) is None else str(of(key)) for key in ("name", "file_type"))
    return {
        "name": name or other.get("type") or None,
        "file_type": file_type,
        "parameters": _optional_count(
            other.get("n_params") if of("parameters") is None else of("parameters"), f"{where}.parameters"
        ),
        "size_bytes": _optional_count(of("size_bytes"), f"{where}.size_bytes"),
    }


def _model_facts(facts: Mapping[str, Any], identity: Model) -> dict[str, Any]:
    shape = _mapping(facts.get("shape") or {}, "model.shape")
    files = _sequence(facts.get("files") or [], "model.files")
    path = _mapping(files[0], "model.files[0]").get("path") if files else None
    return {**identity, "path": path, "architecture": facts.get("architecture"), **shape}


def _hosts(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what is known of each host, with what its workers say of themselves."""
    seen = {
        str(_mapping(worker, "workers").get("endpoint")).lower(): worker
        for worker in _sequence(results.get("workers") or [], "workers")
    }
    hosts = []
    for index, value in enumerate(_sequence(results.get("hosts") or [], "hosts")):
        host = dict(_mapping(value, f"hosts[{index}]"))
        endpoints = [str(endpoint) for endpoint in _sequence(host.get("endpoints") or [], f"hosts[{index}].endpoints")]
        host["endpoints"] = endpoints
        host["workers"] = [seen.pop(endpoint.lower()) for endpoint in endpoints if endpoint.lower() in seen]
        hosts.append(host)
    # Endpoints that no host of the inventory claims.
    return hosts + [
        {"name": worker.get("endpoint"), "endpoints": [worker.get("endpoint")], "workers": [worker]}
        for worker in seen.values()
    ]


def _split(plan: Mapping[str, Any], run: Mapping[str, Any], hosts: Sequence[Mapping[str, Any]]) -> list[Share]:
    """Join the plan of each worker with what its devices held."""
    held: dict[str | None, list[Mapping[str, Any]]] = {}
    for device in _sequence(run.get("devices") or [], "run.devices"):
        endpoint = _mapping(device, "run.devices").get("endpoint")
        held.setdefault(None if endpoint is None else str(endpoint).lower(), []).append(device)
    names = {
        endpoint.lower(): str(host.get("name")) if len(host["endpoints"]) == 1 else f"{host.get('name')}, {endpoint}"
        for host in hosts
        for endpoint in host["endpoints"]
    }
    shares = []
    for index, value in enumerate(_sequence(plan.get("workers") or [], "plan.workers")):
        worker = _mapping(value, f"plan.workers[{index}]")
        endpoint = str(worker.get("endpoint"))
        name = names.get(endpoint.lower(), endpoint)
        shares.append(_share(name, endpoint, worker, held.pop(endpoint.lower(), []), f"plan.workers[{index}]"))
    master = _mapping(plan.get("master") or {}, "plan.master")
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
        held = _total([_optional_mib(device.get(buffer), f"run.devices.{buffer}") for device in devices])
        if held is None and devices and planned.get(key) == 0:
            held = 0  # the log has no line for what is not there
        return _figure(_optional_count(planned.get(key), f"{at}.{key}"), held)

    weights, kv, compute = (
        figure("weights_bytes", "model_buffer_mib"),
        figure("kv_bytes", "kv_buffer_mib"),
        figure("compute_bytes", "compute_buffer_mib"),
    )
    return {
        "name": name,
        "endpoint": endpoint,
        "layers_planned": _optional_count(planned.get("layers"), f"{at}.layers"),
        # The log counts the output as a layer.
        "layers_measured": _total([_optional_count(device.get("layers"), "run.devices.layers") for device in devices]),
        "first_layer": _optional_count(planned.get("first_layer"), f"{at}.first_layer"),
        "has_output": bool(planned.get("has_output")),
        "weights": weights,
        "kv": kv,
        "compute": compute,
        "total": _figure(
            _optional_count(planned.get("total_bytes"), f"{at}.total_bytes"),
            _total([part["measured_bytes"] for part in (weights, kv, compute)]),
        ),
        "memory_available_bytes": _optional_count(
            planned.get("memory_available_bytes"), f"{at}.memory_available_bytes"
        ),
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


def _split_note(split: Sequence[Share]) -> str:
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


def _inference(run: Mapping[str, Any]) -> dict[str, Any]:
    perf = _mapping(run.get("perf") or {}, "run.perf")
    return {
        "wall_time_ms": run.get("wall_time_ms"),
        "load_ms": _mapping(perf.get("load") or {}, "run.perf.load").get("time_ms"),
        "prompt_tokens_per_second": _mapping(perf.get("prompt_eval") or {}, "run.perf.prompt_eval").get(
            "tokens_per_second"
        ),
        "generation_tokens_per_second": _mapping(perf.get("eval") or {}, "run.perf.eval").get("tokens_per_second"),
    }


def workers_of(run: Run) -> str:
    """Return how many workers a run had, in words."""
    number = len(run["workers"])
    return "no worker" if number == 0 else "1 worker" if number == 1 else f"{number} workers"


def _title(run: Run) -> str:
    return f"{run['model']['name'] or 'A model'} over {workers_of(run)}"


def _summary(run: Run, before: Sequence[Run]) -> str:
    """Say the result for a person."""
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


def finite(value: object) -> float | None:
    """Return a number that can be shown, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) <= 1e300 and math.isfinite(value) else None
