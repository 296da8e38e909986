# SPDX-License-Identifier: GPL-3.0-or-later
"""An API under load as the module measures it, over real workers: its figures and its failures."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from support.harness import HANG_S, Release, Worker, completed, run_module
from support.runs import failure as failure_of
from support.runs import generating, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Start = Callable[..., Worker]

pytestmark = pytest.mark.llama

# The runs are quick, as their figures do not matter here.
SMALL = {"clients": 3, "n_prompt": 8, "n_gen": 6, "repetitions": 2, "parallel": 2, "ctx_size": 256}


def bench(release: Release, model: Path, *workers: str, check: bool = False, **args: Any) -> Any:
    given = {"bin_folder": str(release.bin), "model": str(model), "workers": workers, "threads": 1}
    return run_module("llama_server_bench", {**given, **SMALL, **args}, check=check)


def failure(result: dict[str, Any]) -> tuple[str, str | None]:
    """Return the kind and endpoint of a failure; assert that its result is as complete as that of a success."""
    return failure_of({"text": None, "perf": None, "offload": None, "devices": None, **result})


def servers_of(model: Path) -> str:
    """Return the process ids of the llama-servers that run this model."""
    return completed("pgrep", "-f", f"llama-server --model {model} ").stdout


@pytest.mark.parametrize("mode", ["layer", "tensor"])
def test_all_clients_get_answers_of_the_length_that_was_asked_for(
    release: Release, model: Path, two: list[str], mode: str
) -> None:
    result = bench(release, model, *two, extra_args=["--split-mode", mode], tensor_split=[1, 1])
    assert result["failure"] is None, result["msg"]
    (test,) = result["tests"]
    assert (test["kind"], test["clients"]) == ("serving", 3)
    rates = test["tokens_per_second"]
    assert len(rates["samples"]) == 2
    assert 0 < rates["min"] <= rates["mean"] <= rates["max"]
    assert 0 < test["first_token_ms"]["median"] <= test["first_token_ms"]["p95"] < result["wall_time_ms"]
    assert 0 < test["between_tokens_ms"]["median"] <= test["between_tokens_ms"]["p95"]
    assert f"b{result['build']['number']}" == release.version
    assert result["model"] == {"path": str(model), "sha256": None}
    assert result["workers"] == two
    # Two slots of 256 tokens.
    command = result["command"]
    assert command[command.index("--ctx-size") + 1] == "512"
    assert not servers_of(model)


def test_prompts_that_are_given_are_asked_and_may_be_guessed_from(
    release: Release, model: Path, two: list[str]
) -> None:
    again = "the river and the stone and the river and the stone and the river and the stone and"
    spec = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "2"]
    result = bench(release, model, *two, prompts=[again], extra_args=spec, n_gen=48)
    assert result["failure"] is None, result["msg"]
    assert result["tests"][0]["tokens_per_second"]["mean"] > 0


def test_in_check_mode_nothing_is_run(release: Release, model: Path, two: list[str]) -> None:
    result = bench(release, model, *two, check=True)
    assert (result["failure"], result["tests"], result["wall_time_ms"]) == (None, [], None)
    assert result["command"][0] == str(release.bin / "llama-server")


def test_what_cannot_be_measured_is_one_sentence(release: Release, model: Path, two: list[str]) -> None:
    result = bench(release, model, *two, extra_args=["--no-such-option"])
    assert failure(result)[0] == "option_rejected"
    assert "--no-such-option" in result["msg"]
    # Every client fails if its prompt does not fit into a slot.
    result = bench(release, model, *two, n_prompt=600)
    assert failure(result) == ("unknown", None)
    assert "llama-server did not answer its clients: 3 of 3 requests failed, the first one: " in result["msg"]
    assert not servers_of(model)


def test_a_worker_that_is_lost_is_named_and_ends_it(release: Release, model: Path, start: Start) -> None:
    stays, dies = start(), start()
    with ThreadPoolExecutor() as pool:
        run = pool.submit(bench, release, model, stays.endpoint, dies.endpoint, n_gen=100_000, ctx_size=200_000)
        wait_for(lambda: generating(dies))
        dies.kill()
        began = time.monotonic()
        result = run.result(HANG_S)
    assert time.monotonic() - began < HANG_S / 3
    assert failure(result) == ("worker_lost", dies.endpoint)
    assert result["log_tail"]
    assert not servers_of(model)
