# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmark of a run with nothing to do: its counts, its longest steps, and missed targets."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
from benchmarks import site_again
from benchmarks.measure import Run
from support.lab.round_trips import counted, round_trips


def result(step: str, host: str, task: str, began: float | None, ended: float, **more: Any) -> dict[str, Any]:
    kind = {"action": "ansible.builtin.command", "status": "ok", "changed": False, **more}
    return {"id": step, "host": host, "task": task, "began_s": began, "ended_s": ended, **kind}


INFERENCE = {"action": "llama_cpp.cluster.distributed_inference"}


def run(seconds: float, late: float = 0.0) -> Run:
    return Run(
        seconds,
        [
            result("1", "master", "Read the host's facts", 0.0, 1.0),
            result("1", "worker1", "Read the host's facts", 0.5, 2.0 + late),
            # One host after the other, as in a loop over different files.
            result("2", "worker1", "llama_cpp.cluster.rpc_server : It runs", 3.0, 4.0),
            result("3", "worker3", "llama_cpp.cluster.rpc_server : It runs", 4.0, 4.5),
            result("4", "worker1", "llama_cpp.cluster.rpc_server : It is gone", None, 5.0, status="skipped"),
            result("5", "master", "llama_cpp.cluster.inference : It is used", 5.0, 8.0, **INFERENCE),
        ],
    )


def test_what_hosts_do_at_once_counts_once() -> None:
    found = site_again.seconds_by(run(10.0), "role")
    assert found == {"of the playbook": 2.0, "rpc_server": 1.5, "inference": 3.0}
    assert site_again.seconds_by(run(10.0), "task")["llama_cpp.cluster.rpc_server : It runs"] == 1.5
    assert site_again.inference_s(run(10.0)) == 3.0


def cost(trips: int) -> dict[str, Any]:
    runs = {2: [run(10.0), run(11.0, late=1.0)], 4: [run(12.0), run(13.0)]}
    return site_again.costs(runs, {2: {"worker1": 6, "worker3": 5, "master": 8}, 4: {"worker1": trips, "master": 8}})


def test_growth_is_without_inference_and_of_one_round() -> None:
    found = cost(6)
    assert found["one_more_worker_s"] == {"2 to 4": {"median": 1.0, "min": 1.0, "max": 1.0, "values": [1.0, 1.0]}}
    size = found["sizes"]["2"]
    assert size["without_inference_s"]["values"] == [7.0, 8.0]
    assert size["round_trips"] == {"worker": 6, "master": 8}
    assert list(size["longest_tasks_s"])[:2] == ["llama_cpp.cluster.inference : It is used", "Read the host's facts"]
    assert size["seconds_by_role"] == {"inference": 3.0, "of the playbook": 2.5, "rpc_server": 1.5}


@pytest.mark.parametrize(
    ("trips", "missed"),
    [
        pytest.param(7, [], id="met"),
        pytest.param(8, ["Over 4 workers Ansible starts 8 programs on a worker, over 7."], id="one_more"),
    ],
)
def test_a_host_that_is_asked_too_often_is_named(trips: int, missed: list[str]) -> None:
    assert site_again.faults(cost(trips)) == missed


def test_each_program_over_ssh_is_counted_for_its_host(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ssh").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    (programs / "ssh").chmod(0o755)
    config = tmp_path / "ssh_config"
    config.write_text("Host master\n  HostName 10.87.0.10\nHost worker1\n  HostName 10.87.0.11\nHost *\n  User ops\n")
    environment = {**os.environ, **counted(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}"}
    for address in ("10.87.0.11", "10.87.0.10", "10.87.0.11"):
        command = [environment["ANSIBLE_SSH_EXECUTABLE"], "-o", "User=a b", address, "sh -c 'echo 10.87.0.10'"]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert said == f"-o|User=a b|{address}|sh -c 'echo 10.87.0.10'|"
    assert round_trips(tmp_path, config) == {"master": 1, "worker1": 2}
