# SPDX-License-Identifier: GPL-3.0-or-later
"""The choice of playbook tune: what is measured next, and what is kept."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.filter.tuning import tuning

CANDIDATES = {"--ubatch-size": [64, 128], "--split-mode": ["layer", "tensor"], "rpc_server_threads": [4]}
PRESENT = {"extra_args": ["--check-tensors", "-ub", "256"], "tensor_split": [], "parallel": 1, "threads": 0}


def records(*rates: float | str, own_spread: float = 0.01) -> list[dict[str, Any]]:
    """Return a record for each run: of these tokens per second, or of this failure."""
    half = own_spread / 2
    return [{"failure": it} if isinstance(it, str) else {"samples": [it * (1 - half), it * (1 + half)]} for it in rates]


def args(*words: str) -> dict[str, Any]:
    return {"inference_extra_args": ["--check-tensors", *words]}


UB64, UB128, TENSOR = ("--ubatch-size", "64"), ("--ubatch-size", "128"), ("--split-mode", "tensor")


@pytest.mark.parametrize(
    ("rates", "own_spread", "variables"),
    [
        pytest.param((10, 10, 10, 10, 10, 10), 0.01, {}, id="nothing-is-faster"),
        pytest.param((10, 13, 12, 9, 13, 10), 0.01, args(*UB64), id="the-first-value"),
        pytest.param((10, 12, 13, 9, 13, 10), 0.01, args(*UB128), id="a-later-value"),
        pytest.param((10, 12, 11, 15, 15, 10), 0.01, args(*UB64, *TENSOR), id="two-options-together"),
        pytest.param((10, 12, "lost", "refused", 15, 10), 0.01, args(*UB64) | {"rpc_server_threads": 4}, id="failures"),
        pytest.param((10, 10, 10, 10, 12, 10), 0.01, {"rpc_server_threads": 4}, id="only-threads"),
        pytest.param((10, 10.15, 10, 10, 10, 10), 0.001, {}, id="less-than-two-percent"),
        pytest.param((10, 12, 10, 10, 10, 10), 0.3, {}, id="less-than-the-spread-of-a-run"),
        pytest.param((10, 12, 12, 12, 12, 12), 0.01, {}, id="the-cluster-became-faster-by-itself"),
        pytest.param((10, 12, 12, 12, 12, 11.5), 0.01, {}, id="most-of-it-by-itself"),
        pytest.param((10, 12, 12, 12, 12, "worker lost"), 0.01, {}, id="the-end-was-not-measured"),
    ],
)
def test_only_what_beats_the_present_settings_at_start_and_end_is_kept(
    rates: tuple[float | str, ...], own_spread: float, variables: dict[str, Any]
) -> None:
    found = tuning(CANDIDATES, PRESENT, records(*rates, own_spread=own_spread))
    assert found["variables"] == variables
    assert len(found["table"]) == len(rates)


def test_each_run_takes_the_best_so_far_and_one_other_value() -> None:
    rates = (10, 12, 11, 15, 14, 10)
    steps = [tuning(CANDIDATES, PRESENT, records(*rates[:done])) for done in range(len(rates))]
    assert [run["value"] for run in steps[0]["runs"]] == [None, 64, 128, "tensor", 4, None]
    assert [step["settings"]["extra_args"][1:] for step in steps] == [
        ["-ub", "256"], [*UB64], [*UB128], [*UB64, *TENSOR], [*UB64, *TENSOR], ["-ub", "256"],
    ]  # fmt: skip
    assert [step["settings"].get("rpc_server_threads") for step in steps] == [None, None, None, None, 4, None]


def test_the_table_and_the_summary_have_the_figures() -> None:
    found = tuning(CANDIDATES, PRESENT, records(10, 12, "worker\nlost", 10, 10, 10.1))
    lines = [" ".join(line.split()) for line in found["table"]]
    assert lines[1] == "--ubatch-size 64 12.00 tokens/s (11.94 to 12.06) +20.0% kept"
    assert lines[5] == "present settings again 10.10 tokens/s (10.05 to 10.15) +1.0%"
    assert found["summary"] == (
        "--ubatch-size 64: 12.00 tokens/s, 19.4% more than the present settings (10.05, with a spread of 2.0%)."
    )


def test_with_several_clients_it_tunes_the_service() -> None:
    candidates = {"--turns": [1], "parallel": [4, 8], "tensor_split": [[1, 2]]}
    found = tuning(candidates, {**PRESENT, "parallel": 4}, records(10, 11, 12, 13, 10), clients=8)
    assert found["variables"] == {
        "llama_server_extra_args": [*PRESENT["extra_args"], "--turns", "1"],
        "llama_server_parallel": 8,
        "inference_tensor_split": [1, 2],
    }


@pytest.mark.parametrize(
    ("candidates", "clients", "sentence"),
    [
        ([64], 1, "tune_candidates is [64]: give a list of values for each option, such as"),
        ({"--ubatch-size": 64}, 1, "tune_candidates is {'--ubatch-size': 64}: give a list of values"),
        ({"-ub": [64]}, 1, "tune_candidates holds -ub: give long forms of llama.cpp's options, or parallel, "),
        ({"--port": [1]}, 1, "tune_candidates holds --port, which the role sets itself: use llama_server_port."),
        ({"parallel": [4]}, 1, "tune_candidates holds parallel, and one client needs one slot: set tune_clients"),
        ({"--ubatch-size": [512], "--turns": [1]}, 1, "tune_candidates holds nothing but the present settings"),
        (CANDIDATES, "many", "tune_clients is many: give a number from 1 to 999."),
    ],
)
def test_what_cannot_be_measured_is_refused(candidates: Any, clients: Any, sentence: str) -> None:
    assert tuning(candidates, clients=clients)["problem"].startswith(sentence)
