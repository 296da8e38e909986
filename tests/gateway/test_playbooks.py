# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks that use the cluster take both groups of the lab side by side, and their APIs serve again afterwards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gateway.door import all_in, client, playbook
from support.lab.hosts import ADDRESS, PORT, WORKERS, eventually, words

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORKER_OF = {"master": "worker1", "worker3": "worker2"}


@pytest.fixture(autouse=True)
def serving() -> Iterator[None]:
    yield
    eventually(all_in, 120, "both groups take requests")
    assert client().answers()


def test_workers_of_both_groups_are_seeded() -> None:
    said = words(playbook("seed", seed_from="controller", seed_layers="all", llama_server_pause=True))
    assert all(f"{ADDRESS[worker]}:{PORT} has" in said for worker in WORKERS), said


def test_both_groups_are_measured(tmp_path: Path) -> None:
    short = {"benchmark_n_prompt": 16, "benchmark_n_gen": 2, "benchmark_repetitions": 2, "benchmark_n_predict": 2}
    playbook("benchmark", benchmark_folder=str(tmp_path), llama_server_pause=True, inference_report_path="", **short)
    for master, worker in WORKER_OF.items():
        report = json.loads((tmp_path / master / "report.json").read_text())
        held = [part["endpoint"] for part in report["split"] if part["endpoint"]]
        assert held == [f"{ADDRESS[worker]}:{PORT}"]


def test_both_groups_are_tuned_with_the_threads_of_their_workers(tmp_path: Path) -> None:
    sweep = {
        "tune_goal": "prompt", "tune_n_prompt": 32, "tune_n_gen": 2, "tune_repetitions": 2, "tune_ubatch_sizes": [],
        "tune_batch_sizes": [], "tune_flash_attn": [], "tune_split_modes": [], "tune_tensor_split": False,
        "tune_worker_threads": True, "tune_threads": [1, 2],
    }  # fmt: skip
    playbook("tune", tune_folder=str(tmp_path), llama_server_pause=True, **sweep)
    for master, worker in WORKER_OF.items():
        figures = json.loads((tmp_path / master / "figures.json").read_text())
        assert {tuple(run["run"]["workers"]) for run in figures["runs"]} == {(f"{ADDRESS[worker]}:{PORT}",)}
        assert "worker_threads" in [run["run"]["stage"] for run in figures["runs"]]
