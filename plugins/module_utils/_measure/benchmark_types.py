# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: what a benchmark's report and its history hold."""

from __future__ import annotations

from typing import Any, TypedDict

# What llama_bench calls its tests, the one that people wait for most first, and what they are to a person.
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
