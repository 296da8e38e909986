# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the history of a benchmark, which of its runs are alike, and their speeds in words."""

from __future__ import annotations

import json
import statistics
from datetime import datetime
from typing import Any, Dict, Mapping, NoReturn, Sequence

# llama_bench's kinds of tests. The kind that people wait for most comes first.
KINDS = ("generation", "prompt")
# The version of report.json and of each line of the history. Every change that their readers would notice raises it.
SCHEMA_VERSION = 1
# The lines of real runs are much shorter. A longer line is refused.
_LONGEST_LINE = 1_000_000
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"

Run = Dict[str, Any]
Test = Dict[str, Any]
Speed = Dict[str, Any]


class BenchmarkError(ValueError):
    """A line of the history is no run; the message is one sentence that names the place."""


def parse_history(text: str, name: str) -> list[Run]:
    """Return the runs of a history with one JSON object per line; messages call its file `name`."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    runs = []
    for number, line in enumerate(lines, 1):
        try:
            if len(line) > _LONGEST_LINE:
                raise BenchmarkError("it is longer than a million characters")
            line.encode()
            runs.append(_checked(json.loads(line, parse_constant=_no_constant)))
        except (ValueError, RecursionError) as error:
            raise BenchmarkError(
                f"Line {number} of the history {name} is not a benchmark run ({_reason(line, error)}): "
                "correct it, or move the file away to start a new history."
            ) from None
    return runs


def history_line(run: Run) -> str:
    return json.dumps(run, sort_keys=True, ensure_ascii=False, allow_nan=False)


def series_of(run: Run) -> str:
    """Return a text that two runs share if they have the same build, model and shape and so can be compared."""
    # Runs with different repetitions can be compared.
    options = {key: value for key, value in run["options"].items() if key != "repetitions"}
    keys = ("kind", "n_prompt", "n_gen", "n_depth", "batch_size", "ubatch_size")
    tests = [[test.get(key) for key in keys] for test in run["tests"]]
    build = [run["build"].get("commit") or run["build"].get("number"), run["build"].get("patches")]
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
    raise BenchmarkError(f"{name} is not a number")


def _checked(run: Any) -> Run:  # noqa: ANN401 - JSON of any shape
    """Return the run of a line; raises BenchmarkError that names a wrong key."""
    _check(run, dict, "it")
    if run.get("schema_version") != SCHEMA_VERSION or isinstance(run.get("schema_version"), bool):
        raise BenchmarkError(f"schema_version must be {SCHEMA_VERSION}")
    try:
        datetime.strptime(str(run.get("time")), _TIME_FORMAT)
    except ValueError:
        raise BenchmarkError("time must be a time in UTC such as 2026-01-31T23:59:59Z") from None
    for key, kind in (("build", dict), ("model", dict), ("options", dict), ("workers", list), ("tests", list)):
        _check(run.get(key), kind, key)
    for index, test in enumerate(run["tests"]):
        _check_test(test, f"tests[{index}]")
    model = {key: run["model"].get(key) for key in ("name", "file_type", "parameters", "size_bytes")}
    return {**run, "workers": [str(worker) for worker in run["workers"]], "model": model}


def _check(value: object, kind: type, where: str) -> None:
    if not isinstance(value, kind):
        raise BenchmarkError(f"{where} must be a {'dictionary' if kind is dict else 'list'}")


def _check_test(test: Any, where: str) -> None:  # noqa: ANN401
    _check(test, dict, where)
    _check(test.get("tokens_per_second"), dict, f"{where}.tokens_per_second")
    speed: Mapping[str, Any] = test["tokens_per_second"]
    _check(speed.get("samples"), list, f"{where}.tokens_per_second.samples")
    numbers = {key: test.get(key) for key in ("n_prompt", "n_gen", "n_depth")}
    numbers.update({f"tokens_per_second.{key}": speed.get(key) for key in ("mean", "stddev")})
    numbers.update({f"tokens_per_second.samples[{index}]": sample for index, sample in enumerate(speed["samples"])})
    for key, value in numbers.items():
        # Compare before any calculation, because a float cannot hold every whole number.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e18:
            raise BenchmarkError(f"{where}.{key} must be a number from 0 to 1e18")
        if key in test and value != int(value):
            raise BenchmarkError(f"{where}.{key} must be a whole number")
    if test.get("kind") not in KINDS:
        raise BenchmarkError(f"{where}.kind must be one of {', '.join(KINDS)}")


def speed_of(tests: Sequence[Test], kind: str) -> Speed | None:
    return next((test["tokens_per_second"] for test in tests if test["kind"] == kind), None)


def shown_speed(speed: Speed) -> str:
    """Return a speed in tokens per second with its spread, rounded to significant digits."""
    mean, spread = speed["mean"], speed["stddev"]
    return shown_number(mean) + (f" ± {spread:.{_decimals(mean)}f}" if len(speed["samples"]) > 1 else "")


def shown_number(speed: float) -> str:
    """Return tokens per second, rounded to significant digits."""
    return f"{speed:.{_decimals(speed)}f}"


def _decimals(speed: float) -> int:
    return 2 if speed < 10 else 1 if speed < 1000 else 0


def workers_of(run: Run) -> str:
    """Return how many workers a run had, in words."""
    number = len(run["workers"])
    return "no worker" if number == 0 else "1 worker" if number == 1 else f"{number} workers"


def summary_of(run: Run, before: Sequence[Run]) -> str:
    """Return the result in one sentence, compared with the last run of the same series."""
    speeds = [(kind, speed_of(run["tests"], kind)) for kind in KINDS]
    figures = [f"{shown_speed(speed)} t/s {kind}" for kind, speed in speeds if speed is not None]
    said = f"{workers_of(run)}, {' and '.join(figures)}"
    own = series_of(run)
    last = next((other for other in reversed(before) if series_of(other) == own), None)
    if last is None:
        return f"{said}; the first run of this build, model and shape."
    changes = [
        f"{kind} {_change(speed, other)}"
        for kind, speed in speeds
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


def slower_than_before(runs: Sequence[Run], tolerance_percent: float) -> str:
    """Return a sentence on the tests of the last run that are slower than tolerated (0: any is); empty if none is.

    The reference is the median of the earlier runs. Compared with the last run alone, the second of two slow runs would
    not count as slower.
    """
    *before, run = runs
    own = series_of(run)
    alike = [other["tests"] for other in before if series_of(other) == own]
    if not alike or tolerance_percent == 0:
        return ""
    slower = []
    for test, *others in zip(run["tests"], *alike):
        speed = test["tokens_per_second"]
        usual = statistics.median(other["tokens_per_second"]["mean"] for other in others)
        if speed["mean"] < usual * (1 - tolerance_percent / 100):
            less = f"{100 * (1 - speed['mean'] / usual):.1f} % less"
            slower.append(f"{test['kind']} {shown_speed(speed)} t/s, {less} than {shown_number(usual)}")
    if not slower:
        return ""
    runs_before = "1 earlier run" if len(alike) == 1 else f"{len(alike)} earlier runs"
    return (
        f"Slower by more than {tolerance_percent:g} % than the median of {runs_before} of the same build, model and "
        f"shape: {'; '.join(slower)}."
    )
