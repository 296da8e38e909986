# SPDX-License-Identifier: GPL-3.0-or-later
"""How a benchmark ends; for a rollout: builds, the cost of one more host, missed targets."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import measure, rollout


def result(action: str, log: str = "", **more: Any) -> dict[str, Any]:
    return {"on": "w1", "action": action, "log": log, "elapsed_s": 40, "changed": True, **more}


def test_a_build_is_what_a_compiler_was_run_for() -> None:
    run = measure.Run(
        1.0,
        [
            result("llama_cpp.cluster.watched_command", "/opt/llama_cpp/build/a/configure.log"),
            result("llama_cpp.cluster.watched_command", "/opt/llama_cpp/build/a/build.log"),
            result("llama_cpp.cluster.watched_command", "/opt/llama_cpp/build/a/build.log", on="w2", changed=False),
            result("ansible.builtin.copy", changed=False),
        ],
    )
    assert run.compiled == [{"on": "w1", "seconds": 40}, {"on": "w2", "seconds": 40}]
    assert run.changed == 2


def built(*names: str) -> dict[str, Any]:
    return {
        "hosts": list(names),
        "builds": [{"on": names[0], "seconds": 40}],
        "hosts_with_a_compiler": [names[0]],
        "artifacts": [{"id": "a", "sha256": "5" * 64, "size_bytes": 9}],
        "programs": ["7" * 64],
    }


def taken(first: float, each: float) -> list[dict[str, float]]:
    return [{"delivery": first + each + late, "nothing": 3.0 + late, "load": 1.0} for late in (0.0, 1.0, 0.5)]


@pytest.mark.parametrize(
    ("change", "each", "missed"),
    [
        pytest.param({}, 4.9, [], id="met"),
        pytest.param({}, 5.2, ["From 1 to 2 hosts, one more adds 5.2 s, over 5 s."], id="slow"),
        pytest.param(
            {"builds": [{"on": "a", "seconds": 1}] * 2}, 1.0, ["2 hosts of one class cost 2 builds."], id="two_builds"
        ),
        pytest.param(
            {"artifacts": [{"id": "a", "sha256": "6" * 64}]},
            1.0,
            ["Different hosts made different bytes of the same source."],
            id="other_bytes",
        ),
        pytest.param({"programs": ["7", "8"]}, 1.0, ["2 hosts have programs that differ."], id="other_programs"),
    ],
)
def test_a_missed_target_is_named(change: dict[str, Any], each: float, missed: list[str]) -> None:
    builds = copy.deepcopy([built("a"), {**built("b", "a"), **change}])
    cost = rollout.costs({1: taken(8.0, 0.0), 2: taken(8.0, each)})
    assert cost["one_more_host_s"]["1 to 2"]["delivery"]["median"] == each
    assert cost["2"]["nothing_to_do_s"] == {"median": 3.5, "min": 3.0, "max": 4.0, "values": [3.0, 4.0, 3.5]}
    assert rollout.faults(builds, cost) == missed


@pytest.mark.parametrize(
    ("ending", "status", "said"),
    [
        pytest.param("return 0", 0, "", id="met"),
        pytest.param("return 1", 1, "", id="missed"),
        pytest.param('raise measure.BenchError("No release.")', 1, "bench: No release.\n", id="error"),
        pytest.param('raise RuntimeError("No worker.")', 1, "bench: No worker.\n", id="worker"),
        pytest.param('raise measure.NotRunError("no root.")', 77, "Not run: no root.\n", id="not-run"),
        pytest.param(
            "os.kill(os.getpid(), signal.SIGTERM)", 1, "bench: interrupted; what it started is ended.\n", id="signal"
        ),
    ],
)
def test_a_benchmark_ends_with_a_sentence_and_a_status(ending: str, status: int, said: str) -> None:
    program = f"import os, signal, measure\ndef main():\n    {ending}\nmeasure.run_to_end(main)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(measure.__file__).parent, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (status, said)
