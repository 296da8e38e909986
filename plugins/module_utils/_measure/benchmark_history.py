# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the types of a benchmark's report, and functions that read, check and compare the runs of a history.

An error message names the place of the wrong value.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Mapping, NoReturn, Sequence, TypedDict

TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
MIB = 1024 * 1024
# llama_bench's kinds of tests and their names for people. The kind that people wait for most comes first.
KINDS = {"generation": "generation", "prompt": "prompt", "mixed": "prompt and generation together"}


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
    """One planned value beside the measured one. An unknown value is None, and so is the difference then."""

    planned_bytes: int | None
    measured_bytes: int | None
    difference_percent: float | None


class Share(TypedDict):
    """The planned and the measured share of one worker, or of the master."""

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
    """The facts that distinguish one model from another."""

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
    """A whole report, as in report.json."""

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


class BenchmarkError(ValueError):
    """The given data makes no report, or the history is broken; the message is one sentence that names the place."""


def refuse(message: str) -> NoReturn:
    """Raise BenchmarkError."""
    raise BenchmarkError(message)


def mapping_at(value: object, where: str) -> Mapping[str, Any]:
    """Return the value if it is a dictionary; raises BenchmarkError otherwise."""
    if not isinstance(value, Mapping):
        refuse(f"{where} must be a dictionary")
    return value


def sequence_at(value: object, where: str) -> Sequence[Any]:
    """Return the value if it is a list; raises BenchmarkError otherwise."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        refuse(f"{where} must be a list")
    return value


def number_at(value: object, where: str) -> float:
    """Return the value if it is a number from 0 to 1e18; raises BenchmarkError otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        refuse(f"{where} must be a number")
    # Check this before float(), which cannot hold every whole number.
    if not 0 <= value <= 1e18:
        refuse(f"{where} must be a number from 0 to 1e18")
    return float(value)


def count_at(value: object, where: str) -> int:
    """Return the value if it is a whole number from 0; raises BenchmarkError otherwise."""
    number = number_at(value, where)
    if number != int(number):
        refuse(f"{where} must be a whole number")
    return int(number)


def optional_count(value: object, where: str) -> int | None:
    """Return None for None, and otherwise the value if it is a whole number from 0."""
    return None if value is None else count_at(value, where)


def time_at(value: object, where: str) -> str:
    """Return the value if it is a time in UTC; raises BenchmarkError otherwise."""
    try:
        return datetime.strptime(str(value), TIME_FORMAT).strftime(TIME_FORMAT)
    except ValueError:
        refuse(f"{where} must be a time in UTC such as 2026-01-31T23:59:59Z")


# The version of report.json and of each line of the history. Every change that their readers would notice raises it.
SCHEMA_VERSION = 1
# The lines of real runs are much shorter. A longer line is refused.
_LONGEST_LINE = 1_000_000


def parse_history(text: str, name: str) -> list[Run]:
    """Return the runs of a history with one JSON object per line; messages call its file `name`."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    runs = []
    for number, line in enumerate(lines, 1):
        try:
            if len(line) > _LONGEST_LINE:
                refuse("it is longer than a million characters")
            line.encode()
            runs.append(_run_of(json.loads(line, parse_constant=_no_constant)))
        except (ValueError, RecursionError) as error:
            raise BenchmarkError(
                f"Line {number} of the history {name} is not a benchmark run ({_reason(line, error)}): "
                "correct it, or move the file away to start a new history."
            ) from None
    return runs


def history_line(report: Report) -> str:
    """Return the line that a report's own run adds to the history."""
    return json.dumps(report["history"][-1], sort_keys=True, ensure_ascii=False, allow_nan=False)


def series_of(run: Run) -> str:
    """Return a text that two runs share if they have the same build, model and shape and so can be compared."""
    # Runs with different repetitions can be compared.
    options = {key: value for key, value in run["options"].items() if key != "repetitions"}
    keys = ("kind", "n_prompt", "n_gen", "n_depth", "batch_size", "ubatch_size")
    tests = [[test.get(key) for key in keys] for test in run["tests"]]
    build = [run["build"].get(key) for key in ("commit", "patches")]
    return json.dumps([build, run["model"], run["workers"], options, tests], sort_keys=True)


def _reason(line: str, error: Exception) -> str:
    if not line.strip():
        return "it is empty"
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON from column {error.colno} on"
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _no_constant(name: str) -> NoReturn:
    refuse(f"{name} is not a number")


def tests_at(value: object, where: str) -> list[Test]:
    """Return the tests of llama-bench; raises BenchmarkError for a wrong one."""
    return [_test_at(test, f"{where}[{index}]") for index, test in enumerate(sequence_at(value, where))]


def _test_at(value: object, where: str) -> Test:
    test = mapping_at(value, where)
    speed = mapping_at(test.get("tokens_per_second"), f"{where}.tokens_per_second")
    samples = [
        number_at(sample, f"{where}.tokens_per_second.samples[{index}]")
        for index, sample in enumerate(sequence_at(speed.get("samples"), f"{where}.tokens_per_second.samples"))
    ]
    if test.get("kind") not in KINDS:
        refuse(f"{where}.kind must be one of {', '.join(KINDS)}")
    return {
        "name": str(test.get("name") or test["kind"]),
        "kind": str(test["kind"]),
        "n_prompt": count_at(test.get("n_prompt"), f"{where}.n_prompt"),
        "n_gen": count_at(test.get("n_gen"), f"{where}.n_gen"),
        "n_depth": count_at(test.get("n_depth") or 0, f"{where}.n_depth"),
        "batch_size": optional_count(test.get("batch_size"), f"{where}.batch_size"),
        "ubatch_size": optional_count(test.get("ubatch_size"), f"{where}.ubatch_size"),
        "tokens_per_second": {
            "mean": number_at(speed.get("mean"), f"{where}.tokens_per_second.mean"),
            # One sample has no standard deviation.
            "stddev": number_at(speed.get("stddev") or 0, f"{where}.tokens_per_second.stddev"),
            "samples": samples,
        },
    }


def _run_of(value: object) -> Run:
    """Return the run of a line of the history; raises BenchmarkError that names a wrong key."""
    run = mapping_at(value, "it")
    if run.get("schema_version") != SCHEMA_VERSION or isinstance(run.get("schema_version"), bool):
        refuse(f"schema_version must be {SCHEMA_VERSION}")
    return {
        "schema_version": SCHEMA_VERSION,
        "time": time_at(run.get("time"), "time"),
        "build": dict(mapping_at(run.get("build"), "build")),
        "model": identity_of(mapping_at(run.get("model"), "model"), {}),
        "workers": [str(worker) for worker in sequence_at(run.get("workers"), "workers")],
        "options": dict(mapping_at(run.get("options"), "options")),
        "tests": tests_at(run.get("tests"), "tests"),
    }


def identity_of(facts: Mapping[str, Any], other: Mapping[str, Any]) -> Model:
    """Return the facts that distinguish a model from others; `other` completes `facts`."""

    def of(key: str) -> Any:  # noqa: ANN401 - JSON of any shape
        return facts.get(key) if facts.get(key) is not None else other.get(key)

    name, file_type = (None if of(key) is None else str(of(key)) for key in ("name", "file_type"))
    return {
        "name": name or other.get("type") or None,
        "file_type": file_type,
        "parameters": optional_count(
            other.get("n_params") if of("parameters") is None else of("parameters"), "model.parameters"
        ),
        "size_bytes": optional_count(of("size_bytes"), "model.size_bytes"),
    }
