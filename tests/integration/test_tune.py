# SPDX-License-Identifier: GPL-3.0-or-later
"""The sweep over real workers, and the messages where no sweep is possible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from support.harness import play_here

if TYPE_CHECKING:
    pass


@pytest.fixture
def host(here: dict[str, Any]) -> dict[str, Any]:
    """Return this machine with variables for a short sweep over its workers."""
    return {
        **here,
        # Computed token by token, a prompt takes many times as long.
        "inference_extra_args": ["--check-tensors", "-ub", "1"],
        "tune_n_prompt": 200,
        "tune_n_gen": 2,
        "tune_repetitions": 2,
    }


@pytest.mark.long
@pytest.mark.parametrize(("clients", "role"), [(1, "inference"), (3, "llama_server")])
def test_a_sweep_leaves_what_is_faster_as_variables(
    tmp_path: Path, host: dict[str, Any], clients: int, role: str
) -> None:
    candidates = {"--ubatch-size": [1, 256], "--turns": [2], "--rope-scaling": ["square"]}
    asked = {"tune_clients": clients, "llama_server_parallel": 3}
    done = play_here("tune.yml", tmp_path, {**host, **asked, "tune_candidates": candidates})
    assert done.returncode == 0, done.stdout
    assert "changed=0" in done.stdout
    text = (tmp_path / "tune/variables.yml").read_text()
    rows = [line.split("  ")[0].removeprefix("# ") for line in text.splitlines() if " tokens/s (" in line]
    turns = ["--turns 2"] if clients > 1 else []
    assert rows == ["present settings", "--ubatch-size 256", *turns, "present settings again"]
    assert "# --rope-scaling square" in text
    summary = text.splitlines()[1].removeprefix("# ")
    assert summary in done.stdout
    # On a busy host, chance may decide what is faster.
    variables = yaml.safe_load(text)
    options = variables.get(f"{role}_extra_args", host["inference_extra_args"])
    assert ("256" in options) is ("--ubatch-size 256" in summary)
    assert bool(variables) is not summary.startswith("Nothing is certainly faster")

    if clients == 1:
        report = {"inference_n_predict": 1, "inference_report_path": "report.json"}
        done = play_here("infer.yml", tmp_path, {**host, **report}, "-e", f"@{tmp_path / 'tune/variables.yml'}")
        assert done.returncode == 0, done.stdout
        command = json.loads((tmp_path / "report.json").read_text())["inference"]["command"]
        assert [word for word in command if word in options] == options


@pytest.mark.long
def test_a_check_says_what_would_be_measured_and_measures_nothing(tmp_path: Path, host: dict[str, Any]) -> None:
    done = play_here("tune.yml", tmp_path, host, "--check")
    assert done.returncode == 0, done.stdout
    assert "--ubatch-size 256, --ubatch-size 1024, --split-mode tensor, present settings again" in done.stdout
    assert "Run 2 of" not in done.stdout
    assert not (tmp_path / "tune").exists()


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"tune_candidates": {"-ub": [64]}}, "tune_candidates holds -ub: give long forms of llama.cpp's options"),
        ({"tune_repetitions": 1}, "tune_repetitions is 1: give at least 2, or there is no spread."),
        (
            {"tune_candidates": {"rpc_server_threads": [1]}, "rpc_server_instances": [{"port": 1, "threads": 1}]},
            "tune_candidates holds rpc_server_threads, and the threads are given with -e, or rpc_server_instances",
        ),
    ],
    ids=["candidates", "repetitions", "threads"],
)
def test_what_stands_in_the_way_is_said_before_any_host_is_asked(
    tmp_path: Path, variables: dict[str, Any], sentence: str
) -> None:
    host = {"ansible_connection": "ssh", "ansible_host": "192.0.2.1", "gguf_model_path": "/srv/model.gguf", **variables}
    done = play_here("tune.yml", tmp_path, host)
    assert done.returncode == 2
    assert sentence in done.stdout
    assert "UNREACHABLE" not in done.stdout
