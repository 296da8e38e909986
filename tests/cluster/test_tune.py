# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of playbook tune that may restart workers: they serve with other threads meanwhile, and end as they were.

tests/integration/test_tune.py checks that the playbook restarts none without being told.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from support.lab.hosts import ADDRESS, PORT, UNIT, ask, eventually, play, ssh, ssh_command

if TYPE_CHECKING:
    from pathlib import Path

# Prints the number of the worker's threads whenever it changes, until a line comes in.
WATCH = """
import glob, select, sys
seen, ended = None, False
while not ended:
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            words = open(path).read().split("\\0")
        except OSError:
            continue
        if words[0].endswith("/rpc-server") and "-t" in words and words[words.index("-t") + 1] != seen:
            seen = words[words.index("-t") + 1]
            print(seen, flush=True)
    ended = bool(select.select([sys.stdin], [], [], 0.2)[0])
"""
# The sweep varies the threads only.
SWEEP = {
    "tune_worker_threads": True,
    "tune_threads": [1],
    "tune_goal": "prompt",
    "tune_n_prompt": 16,
    "tune_n_gen": 2,
    "tune_repetitions": 2,
    "tune_ubatch_sizes": [],
    "tune_batch_sizes": [],
    "tune_flash_attn": [],
    "tune_split_modes": [],
    "llama_cpp_worker_group": "tuned",
}


@dataclass(frozen=True)
class Serving:
    """The state of a worker: the process that serves, its command, its unit."""

    pid: int
    command: list[str]
    unit: str

    @property
    def threads(self) -> str:
        return self.command[self.command.index("-t") + 1]


def serving(worker: str) -> Serving:
    pid = int(ssh(worker, "systemctl", "show", "--property=MainPID", "--value", UNIT).stdout)
    command = ssh(worker, "cat", f"/proc/{pid}/cmdline").stdout.split("\0")
    return Serving(pid, command, ssh(worker, "cat", f"/etc/systemd/system/{UNIT}").stdout)


def ready(worker: str) -> bool:
    return ask("master", f"{ADDRESS[worker]}:{PORT}") == {f"{ADDRESS[worker]}:{PORT}": "ready"}


@dataclass(frozen=True)
class Tuned:
    """The result of one sweep over a cluster of the master and one worker."""

    code: int
    said: str
    figures: dict[str, Any]
    before: Serving
    after: Serving
    threads: list[str]


def tuned(folder: Path, worker: str, **variables: Any) -> Tuned:
    inventory = folder / f"{worker}.json"
    inventory.write_text(json.dumps({"tuned": {"hosts": {worker: variables}}}))
    given = {**SWEEP, "tune_folder": str(folder / worker)}
    eventually(lambda: ready(worker), 30, f"{worker} is ready")
    before = serving(worker)
    watch = [*ssh_command(worker), "sudo", "python3", "-u", "-c", shlex.quote(WATCH)]
    with subprocess.Popen(watch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout
        first = watcher.stdout.readline()
        done = play("tune", "-i", str(inventory), "-e", json.dumps(given), check=False)
        seen = watcher.communicate("end\n", timeout=60)[0]
    eventually(lambda: ready(worker), 30, f"{worker} is ready again")
    return Tuned(
        done.returncode,
        re.sub(r"\s+", " ", done.stdout),
        json.loads((folder / worker / "figures.json").read_text()),
        before,
        serving(worker),
        (first + seen).split(),
    )


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tuned]:
    """Run two sweeps side by side: over worker1, and over worker2, which cannot be started with one thread."""
    folder = tmp_path_factory.mktemp("tune")
    unable = {
        "rpc_server_device": "{{ 'GPU7' if rpc_server_threads | string == '1' else 'CPU' }}",
        "rpc_server_ready_timeout": 4,
    }
    with ThreadPoolExecutor() as threads:
        runs = {
            "worker1": threads.submit(tuned, folder, "worker1"),
            "worker2": threads.submit(tuned, folder, "worker2", **unable),
        }
        return {worker: run.result() for worker, run in runs.items()}


@pytest.mark.long
def test_workers_are_measured_with_other_threads_and_end_as_they_were(sweeps: dict[str, Tuned]) -> None:
    run = sweeps["worker1"]
    if run.before.threads == "1":
        pytest.skip("a worker of one core has one thread, and no other number to try")
    assert run.code == 0, run.said
    tried = [
        (each["run"]["worker_threads"], each["failure"])
        for each in run.figures["runs"]
        if each["run"]["stage"] == "worker_threads"
    ]
    assert tried == [(1, None), (None, None)]
    assert run.threads == [run.before.threads, "1", run.before.threads]
    assert run.after.pid != run.before.pid
    assert (run.after.command, run.after.unit) == (run.before.command, run.before.unit)


@pytest.mark.long
def test_a_worker_that_cannot_be_started_with_others_ends_as_it_was(sweeps: dict[str, Tuned]) -> None:
    run = sweeps["worker2"]
    if run.before.threads == "1":
        pytest.skip("a worker of one core has one thread, and no other number to try")
    assert run.code != 0
    assert f"worker2:{PORT} did not answer within 4 s" in run.said
    assert run.figures["left_out"]["threads of the workers"] == (
        "not all of them were tried, since worker2 could not be started with other threads"
    )
    assert "rpc_server_threads" not in run.figures["variables"]
    assert run.after.pid != run.before.pid
    assert (run.after.command, run.after.unit) == (run.before.command, run.before.unit)
