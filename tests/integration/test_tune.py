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
    from collections.abc import Callable

    from support.harness import Release, Worker


@pytest.fixture
def workers(release_7: Release, start_worker: Callable[..., Worker]) -> list[Worker]:
    """Return two workers of one thread on this machine."""
    return [start_worker(release_7, threads=1) for _worker in range(2)]


@pytest.fixture
def host(release_7: Release, model: Path, workers: list[Worker]) -> dict[str, Any]:
    """Return this machine as the host of these workers, with variables for a short sweep over them."""
    return {
        "rpc_server_bind_address": "127.0.0.1",
        "rpc_server_instances": [{"port": worker.port} for worker in workers],
        "llama_cpp_prefix": str(release_7.prefix),
        "gguf_model_path": str(model),
        "inference_extra_args": ["--check-tensors", "-ub", "256"],
        "tune_goal": "prompt",
        "tune_n_prompt": 256,
        "tune_n_gen": 2,
        "tune_repetitions": 2,
    }


@pytest.mark.long
def test_a_sweep_leaves_what_won_as_variables(tmp_path: Path, host: dict[str, Any], workers: list[Worker]) -> None:
    short = {"tune_ubatch_sizes": [32], "tune_batch_sizes": [], "tune_flash_attn": ["off"], "tune_tensor_split": False}
    done = play_here("tune.yml", tmp_path, {**host, **short})
    assert done.returncode == 0, done.stdout
    assert "changed=0" in done.stdout
    assert all(worker.alive for worker in workers), "it has started none anew without being told"

    text = (tmp_path / "tune/variables.yml").read_text()
    figures = json.loads((tmp_path / "tune/figures.json").read_text())
    assert yaml.safe_load(text) == figures["variables"]
    assert figures["summary"] in done.stdout
    # The other split mode may win. It is then tried with other batches, and it needs flash attention.
    stages = [run["run"]["stage"] for run in figures["runs"]]
    assert list(dict.fromkeys(stages))[:3] == ["start", "ubatch_size", "split_mode"]
    assert ("flash_attn" in stages) != (figures["left_out"].get("flash attention") == "split mode tensor needs it")
    assert figures["runs"][-1]["run"]["stage"] == "again"
    assert all(run["failure"] is None for run in figures["runs"])
    assert [test["ubatch_size"] for test in figures["runs"][1]["tests"]] == [32, 256]
    assert figures["build"]["commit"] in text
    assert "# - physical batch, ubatch_size 32: prompt " in text
    assert figures["variables"]["inference_extra_args"][0] == "--check-tensors"

    # As the page on playbooks describes, later runs use the settings that won.
    report = tmp_path / "report.json"
    given = {**host, "inference_n_predict": 1, "inference_report_path": str(report)}
    done = play_here("infer.yml", tmp_path, given, "-e", f"@{tmp_path / 'tune/variables.yml'}")
    assert done.returncode == 0, done.stdout
    command = json.loads(report.read_text())["inference"]["command"]
    options = figures["variables"]["inference_extra_args"]
    assert [command[at : at + len(options)] for at in range(len(command))].count(options) == 1


def test_a_sweep_for_many_clients_leaves_what_won_as_variables_of_the_service(
    tmp_path: Path, host: dict[str, Any], workers: list[Worker]
) -> None:
    asked = {
        "tune_goal": "serving", "tune_clients": 3, "tune_n_prompt": 8, "tune_n_gen": 4, "tune_ubatch_sizes": [],
        "tune_parallel": [], "llama_server_parallel": 3, "llama_server_ctx_size": 256, "llama_server_cache_ram": 16,
        "llama_server_extra_args": ["--check-tensors", "--kv-unified"], "llama_server_threads": 1,
    }  # fmt: skip
    done = play_here("tune.yml", tmp_path, {**host, **asked})
    assert done.returncode == 0, done.stdout
    assert "changed=0" in done.stdout
    assert all(worker.alive for worker in workers)

    figures = json.loads((tmp_path / "tune/figures.json").read_text())
    assert yaml.safe_load((tmp_path / "tune/variables.yml").read_text()) == figures["variables"]
    runs = [run["run"]["title"] for run in figures["runs"]]
    assert runs[:3] == ["current settings", "split mode tensor", "unified KV cache off"]
    assert [run["failure"] for run in figures["runs"]] == [None] * len(runs)
    (test,) = figures["runs"][0]["tests"]
    # The server starts like the service: with its slots, and with its options rather than those of inference.
    assert (test["clients"], test["generated_tokens"]) == (3, 3 * 4 * 2)
    assert figures["runs"][0]["run"]["extra_args"] == ["--check-tensors", "--kv-unified", "--ubatch-size", "512"]
    assert figures["left_out"]["speculation"].startswith("it depends on what clients ask")
    assert set(figures["variables"]) == {
        f"llama_server_{name}" for name in ("parallel", "ubatch_size", "extra_args", "tensor_split")
    }
    assert figures["variables"]["llama_server_parallel"] == 3


@pytest.mark.long
def test_the_draft_model_of_a_service_is_measured_on_what_clients_ask(
    tmp_path: Path, host: dict[str, Any], model: Path
) -> None:
    """The model drafts for itself here. The test makes no claim about speed."""
    asked = {
        "tune_goal": "serving", "tune_clients": 1, "tune_n_gen": 4, "tune_ubatch_sizes": [], "tune_parallel": [],
        "tune_split_modes": [], "tune_speculation": ["draft-simple"], "tune_prompts": ["What is a cluster?"],
        "llama_server_parallel": 1, "llama_server_ctx_size": 256, "llama_server_cache_ram": 16,
        "llama_server_extra_args": [], "llama_server_threads": 1, "llama_server_draft_model": str(model),
    }  # fmt: skip
    done = play_here("tune.yml", tmp_path, {**host, **asked})
    assert done.returncode == 0, done.stdout
    runs = json.loads((tmp_path / "tune/figures.json").read_text())["runs"]
    assert [run["failure"] for run in runs] == [None] * len(runs)
    # The service drafts, so the sweep also tries it without drafting.
    first, (other,) = runs[0], [run for run in runs if run["run"]["title"] == "speculation none"]
    assert first["run"]["extra_args"][-4:] == ["--spec-draft-model", str(model), "--spec-draft-device", "none"]
    assert first["tests"][0]["drafted_tokens"] > 0
    assert other["tests"][0]["drafted_tokens"] == 0


@pytest.mark.long
def test_a_sweep_that_takes_too_long_is_refused_after_its_first_run(tmp_path: Path, host: dict[str, Any]) -> None:
    # Each run counts for some seconds, however quick it is. The first one may take as long as all of them.
    many = {"tune_cache_types": ["bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"], "tune_time_limit": 60}
    done = play_here("tune.yml", tmp_path, {**host, **many})
    assert done.returncode == 2
    assert "The sweep would take about " in done.stdout
    assert "tune_time_limit is 60 s: raise it, take fewer tokens" in done.stdout
    assert "Run 2 of" not in done.stdout
    assert not (tmp_path / "tune").exists()


def test_a_check_says_what_would_be_tried_and_runs_nothing(tmp_path: Path, host: dict[str, Any]) -> None:
    done = play_here("tune.yml", tmp_path, host, "--check")
    assert done.returncode == 0, done.stdout
    assert "The sweep takes at most " in done.stdout
    assert "physical batch: at most 1 runs, 3 figures" in done.stdout
    assert "Not tried: threads of the workers: tune_worker_threads is not set" in done.stdout
    assert "Run 1 of" not in done.stdout
    assert not (tmp_path / "tune").exists()


@pytest.mark.long
def test_whether_a_worker_could_do_alone_is_planned_with_the_options_of_inference(
    tmp_path: Path, host: dict[str, Any], workers: list[Worker]
) -> None:
    # One worker could hold the whole cache in q4_0, but not in f16, which is the type of a plan without options.
    memory = dict.fromkeys((f"127.0.0.1:{worker.port}" for worker in workers), 250 << 20)
    changes = {
        "inference_extra_args": ["-fa", "on", "-ctk", "q4_0", "-ctv", "q4_0"],
        "inference_ctx_size": 32768,
        "inference_worker_memory_bytes": memory,
        "inference_reserve_bytes": 0,
        "inference_reserve_percent": 0,
    }
    done = play_here("tune.yml", tmp_path, {**host, **changes}, "--check")
    assert done.returncode == 0, done.stdout
    assert "tensor split by speed: at most 3 runs" in done.stdout


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"tune_goal": "speed"}, "tune_goal is speed: give generation, prompt, balanced or serving."),
        pytest.param(
            {"tune_folder": "no/such/folder"},
            "The result cannot be written to tune_folder, {parent}/no/such/folder: it is not a writable folder on",
            marks=pytest.mark.long,
        ),
    ],
    ids=["goal", "folder"],
)
def test_what_stands_in_the_way_is_said_before_any_host_is_asked(
    tmp_path: Path, variables: dict[str, Any], sentence: str
) -> None:
    # Nobody answers at TEST-NET-1.
    host = {"ansible_connection": "ssh", "ansible_host": "192.0.2.1", "gguf_model_path": "/srv/model.gguf", **variables}
    done = play_here("tune.yml", tmp_path, host)
    assert done.returncode == 2
    assert sentence.format(parent=tmp_path) in done.stdout
    assert "UNREACHABLE" not in done.stdout
