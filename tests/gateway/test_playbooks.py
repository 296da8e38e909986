# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks that use the cluster take both groups of the lab side by side, and their APIs serve again afterwards."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from gateway.door import all_in, client, playbook
from support.lab.hosts import ADDRESS, PORT, UNIT, WORKERS, eventually, ssh, with_model_copied, words

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
    with with_model_copied() as path:
        said = words(playbook("seed", rpc_server_seed_model=path, seed_layers="all", llama_server_pause=True))
    assert all(f"{ADDRESS[worker]}:{PORT} has" in said for worker in WORKERS), said


def test_both_groups_are_measured(tmp_path: Path) -> None:
    short = {"benchmark_n_prompt": 16, "benchmark_n_gen": 2, "benchmark_repetitions": 2}
    playbook("benchmark", benchmark_folder=str(tmp_path), llama_server_pause=True, inference_report_path="", **short)
    for master, worker in WORKER_OF.items():
        report = json.loads((tmp_path / master / "report.json").read_text())
        held = [part["endpoint"] for part in report["split"] if part["endpoint"]]
        assert held == [f"{ADDRESS[worker]}:{PORT}"]


def test_both_groups_are_tuned_with_the_threads_of_their_workers_which_end_as_they_were(tmp_path: Path) -> None:
    sweep = {
        "tune_n_prompt": 32, "tune_n_gen": 2, "tune_repetitions": 2, "tune_candidates": {"rpc_server_threads": [1, 3]},
        # The workers cannot be started with three threads.
        "rpc_server_device": "{{ 'GPU7' if rpc_server_threads | string == '3' else 'CPU' }}",
        "rpc_server_ready_timeout": 4,
    }  # fmt: skip
    units = [ssh(worker, "cat", f"/etc/systemd/system/{UNIT}").stdout for worker in WORKERS]
    playbook("tune", tune_folder=str(tmp_path), llama_server_pause=True, **sweep)
    for master, worker in WORKER_OF.items():
        text = (tmp_path / master / "variables.yml").read_text()
        assert f"# Workers: {ADDRESS[worker]}:{PORT}\n" in text
        assert len(re.findall(r"^# rpc_server_threads 1 .* tokens/s", text, re.MULTILINE)) == 1, text
        assert f"rpc_server_threads 3 {worker} could not be started with other threads" in " ".join(text.split()), text
    assert [ssh(worker, "cat", f"/etc/systemd/system/{UNIT}").stdout for worker in WORKERS] == units
