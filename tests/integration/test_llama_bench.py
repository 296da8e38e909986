# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmark as users run it, on real workers: its figures and its failures."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.harness import HANG_S, Release, Worker, free_port, run_module
from support.runs import cpu_seconds, generating, held_by_another_client, wait_for
from support.runs import failure as failure_of
from support.stand_in_workers import many_workers

if TYPE_CHECKING:
    from collections.abc import Callable

    StartWorker = Callable[..., Worker]

pytestmark = pytest.mark.llama

# The runs are quick, as their figures do not matter here.
SMALL = {"n_prompt": [32], "n_gen": [4], "repetitions": 2}
# Longer than any test waits.
ENDLESS = {"n_prompt": [16], "n_gen": [100_000], "repetitions": 1000}


def bench(release: Release, model: Path, *workers: str, check: bool = False, **args: Any) -> Any:
    given = {"bin_folder": str(release.bin), "model": str(model), "workers": workers}
    return run_module("llama_bench", {**given, **SMALL, **args}, check=check)


def failure(result: dict[str, Any]) -> tuple[str, str | None]:
    """Return the kind and endpoint of a failure; assert that its result is as complete as that of a success."""
    assert {"tests", "model", "devices", "options", "workers"} <= set(result)
    return failure_of({"text": None, "perf": None, "offload": None, **result})


@pytest.fixture
def two(release_7: Release, start_worker: StartWorker) -> list[str]:
    return [start_worker(release_7).endpoint for _number in range(2)]


def test_each_test_has_its_figures_and_each_worker_its_part(release_7: Release, model: Path, two: list[str]) -> None:
    result = bench(
        release_7,
        model,
        *two,
        n_prompt=[16, 32, 16],
        n_gen=4,
        n_depth=[0, 24],
        ubatch_size=[16, 512],
        cache_type_k="q8_0",
        flash_attn="on",
        threads=1,
        tensor_split=[1, 1],
    )
    assert result["failure"] is None, result["msg"]
    names = ["pp16", "pp32", "tg4"]
    every = [(name, ubatch) for ubatch in (16, 512) for name in [*names, *(f"{name} @ d24" for name in names)]]
    assert [(test["name"], test["ubatch_size"]) for test in result["tests"]] == every
    for test in result["tests"]:
        rates = test["tokens_per_second"]
        assert len(rates["samples"]) == 2
        assert 0 < rates["min"] <= rates["mean"] <= rates["max"]
        assert rates["stddev"] >= 0
    assert result["build"]["commit"][:9] == "0c1e57098"
    assert (result["model"]["type"], result["model"]["sha256"]) == ("llama ?B Q8_0", None)
    assert 0.9 < result["model"]["size_bytes"] / model.stat().st_size < 1
    assert result["options"] == {
        "split_mode": "layer",
        "tensor_split": [1, 1],
        "n_gpu_layers": 999,
        "cache_type_k": "q8_0",
        "cache_type_v": "f16",
        "flash_attn": "on",
        "threads": 1,
        "repetitions": 2,
    }
    held = {device["endpoint"]: device for device in result["devices"] if device["endpoint"]}
    # The log lists the devices in an order of its own.
    assert sorted(held) == sorted(two)
    assert result["workers"] == two
    assert sum(device["layers"] for device in held.values()) == 9
    assert all(device["model_buffer_mib"] > 1 for device in held.values())


def test_split_mode_tensor_uses_all_workers(release_7: Release, model: Path, two: list[str]) -> None:
    result = bench(release_7, model, *two, split_mode="tensor")
    assert result["failure"] is None, result["msg"]
    assert result["options"]["split_mode"] == "tensor"


def test_in_check_mode_nothing_is_run(release_7: Release, model: Path, two: list[str]) -> None:
    result = bench(release_7, model, *two, check=True)
    assert (result["failure"], result["tests"], result["wall_time_ms"]) == (None, [], None)
    assert result["command"][0] == str(release_7.bin / "llama-bench")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"n_prompt": [], "n_gen": 0}, "There is nothing to measure"),
        ({"repetitions": 0}, "repetitions is 0; give a number from 1"),
        ({"workers": []}, "workers has 0 entries"),
    ],
    ids=["nothing", "repetitions", "no-workers"],
)
def test_bad_input_is_one_sentence_before_anything_is_run(
    release_7: Release, model: Path, args: dict[str, Any], message: str
) -> None:
    result = bench(release_7, model, "127.0.0.1:1", **args)
    assert failure(result) == ("option_rejected", None)
    assert message in result["msg"]
    assert result["build"] is None


def test_a_release_without_llama_bench_is_named(release_7: Release, model: Path, tmp_path: Path) -> None:
    result = bench(release_7, model, "127.0.0.1:1", bin_folder=str(tmp_path))
    assert failure(result) == ("binary_missing", None)
    assert f"There is no llama-bench in {tmp_path}; install llama.cpp there" in result["msg"]


def test_workers_that_are_not_as_they_should_be(release_7: Release, model: Path, start_worker: StartWorker) -> None:
    ours, missing = start_worker(release_7), f"127.0.0.1:{free_port()}"
    assert failure(bench(release_7, model, ours.endpoint, missing)) == ("worker_unreachable", missing)
    assert failure(bench(release_7, model, ours.endpoint, missing, verify=False)) == ("worker_unreachable", missing)
    with many_workers(1, major=5) as (theirs,):
        assert failure(bench(release_7, model, ours.endpoint, theirs)) == ("protocol_mismatch", theirs)
    with held_by_another_client(ours):
        assert failure(bench(release_7, model, ours.endpoint)) == ("worker_busy", ours.endpoint)
    idle = start_worker(release_7)
    dropped = bench(release_7, model, ours.endpoint, idle.endpoint, tensor_split=[1, 0.0001])
    assert failure(dropped) == ("worker_dropped", idle.endpoint)
    assert [test["name"] for test in dropped["tests"]] == ["pp32", "tg4"]


def test_what_llama_cpp_refuses_is_said(release_7: Release, model: Path, two: list[str], tmp_path: Path) -> None:
    result = bench(release_7, model, *two, cache_type_v="q8_0", flash_attn="off")
    assert failure(result) == ("option_rejected", None)
    assert "quantized V cache requires flash_attn to be enabled; change flash_attn" in result["msg"]
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(model.read_bytes()[:5_000_000])
    result = bench(release_7, bad, *two)
    assert failure(result) == ("model_invalid", None)
    assert "is not within the file bounds" in result["msg"]


def test_a_worker_killed_during_the_run_is_named(release_7: Release, model: Path, start_worker: StartWorker) -> None:
    stays, dies = start_worker(release_7), start_worker(release_7)
    with ThreadPoolExecutor() as pool:
        run = pool.submit(bench, release_7, model, stays.endpoint, dies.endpoint, **ENDLESS)
        wait_for(lambda: generating(dies))
        dies.kill()
        began = time.monotonic()
        result = run.result(HANG_S)
    assert time.monotonic() - began < HANG_S / 3
    assert failure(result) == ("worker_lost", dies.endpoint)
    assert result["log_tail"]


def test_a_worker_that_hangs_is_named_at_the_limit_with_what_was_measured_before(
    release_7: Release, model: Path, start_worker: StartWorker
) -> None:
    stays, hangs = start_worker(release_7), start_worker(release_7)
    given = {"n_prompt": [16], "n_gen": [100_000], "repetitions": 1, "timeout": 10}
    with ThreadPoolExecutor() as pool:
        run = pool.submit(bench, release_7, model, stays.endpoint, hangs.endpoint, **given)
        # Processing the prompt of 16 tokens takes less time than this.
        wait_for(lambda: hangs.held() and cpu_seconds(hangs.process.pid) > 0.25)
        os.kill(hangs.process.pid, signal.SIGSTOP)
        result = run.result(HANG_S)
    assert failure(result) == ("timed_out", hangs.endpoint)
    assert result["msg"].startswith("The run did not end within 10 s and was ended. ")
    assert f"{hangs.endpoint} has answered nothing since" in result["msg"]
    assert [test["name"] for test in result["tests"]] == ["pp16"]
