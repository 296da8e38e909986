# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmark as users run it, on real workers: its figures and its failures."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.harness import HANG_S, Release, Worker, run_module
from support.runs import cpu_seconds, wait_for
from support.runs import failure as failure_of

if TYPE_CHECKING:
    from collections.abc import Callable

    Start = Callable[..., Worker]

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


def test_each_test_has_its_figures_and_each_worker_its_part(release: Release, model: Path, two: list[str]) -> None:
    result = bench(
        release,
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
    assert f"b{result['build']['number']}" == release.version
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
    spread = bench(release, model, *two, split_mode="tensor")
    assert (spread["failure"], spread["options"]["split_mode"]) == (None, "tensor")


def test_in_check_mode_nothing_is_run(release: Release, model: Path, two: list[str]) -> None:
    result = bench(release, model, *two, check=True)
    assert (result["failure"], result["tests"], result["wall_time_ms"]) == (None, [], None)
    assert result["command"][0] == str(release.bin / "llama-bench")


def test_a_worker_that_hangs_is_named_at_the_limit_with_what_was_measured_before(
    release: Release, model: Path, start: Start
) -> None:
    stays, hangs = start(), start()
    given = {"n_prompt": [16], "n_gen": [100_000], "repetitions": 1, "timeout": 10}
    with ThreadPoolExecutor() as pool:
        run = pool.submit(bench, release, model, stays.endpoint, hangs.endpoint, **given)
        # Processing the prompt of 16 tokens takes less time than this.
        wait_for(lambda: hangs.held() and cpu_seconds(hangs.process.pid) > 0.25)
        os.kill(hangs.process.pid, signal.SIGSTOP)
        result = run.result(HANG_S)
    assert failure(result) == ("timed_out", hangs.endpoint)
    assert result["msg"].startswith("The run did not end within 10 s and was ended. ")
    assert f"{hangs.endpoint} has answered nothing since" in result["msg"]
    assert [test["name"] for test in result["tests"]] == ["pp16"]
