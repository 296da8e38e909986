# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of a sweep for the goal serving and its winners, over simulated services: options to rates."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible_collections.llama_cpp.cluster.plugins.filter.tuning import tuning

if TYPE_CHECKING:
    from collections.abc import Callable

WORKERS = ["10.0.0.11:50052", "10.0.0.12:50052"]
SPECULATION = {kind: {"arguments": ["--spec-type", kind]} for kind in ("ngram-simple", "ngram-map-k", "ngram-mod")}
KNOWN = {
    "workers": WORKERS, "tensor_split": [16, 17], "tune_goal": "serving", "tune_clients": 8, "parallel": 8,
    "speculation": SPECULATION,
}  # fmt: skip


def sweep(
    rate: Callable[[dict[str, Any]], float],
    fails: Callable[[dict[str, Any]], str | None] = lambda _run: None,
    **asked: Any,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a sweep over a service that answers all clients together at these rates."""
    chance = random.Random(1)
    settings = {**KNOWN, **asked}
    records: list[dict[str, Any]] = []
    elapsed = 0.0
    while True:
        now = tuning(settings, records, "2026-11-21T20:00:00Z")
        assert now["problem"] == ""
        run = now["next"]
        if run is None:
            return now, records
        assert len(records) < now["runs_at_most"], "it does not end"
        mean = rate(run) * chance.gauss(1, 0.003)
        wall = 10 + 3 * run["clients"] * run["n_gen"][0] / mean
        elapsed += wall + 5
        figures = {"mean": mean, "stddev": 0.005 * mean}
        failure = fails(run)
        tests = [] if failure else [{"kind": "serving", "tokens_per_second": figures}]
        records.append(
            {"run": run, "tests": tests, "failure": failure, "wall_time_ms": 1000 * wall, "elapsed_s": elapsed,
             "tensor_split": run["tensor_split"], "build": {"version": "0.5.0", "commit": "0c1e57098"},
             "model": {"path": "/srv/m.gguf"}}
        )  # fmt: skip


def won(result: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(result["variables"])
    assert found == result["figures"]["variables"]
    return found


def as_measured(run: dict[str, Any]) -> float:
    """Return the rate of two one-core workers, as the benchmark has measured it."""
    if run["split_mode"] == "tensor":
        return 44.2
    if run["kv_unified"] and run["ubatch_size"] == [4]:
        return 35.5
    return 26.7


def test_the_mode_that_lets_all_workers_compute_is_found() -> None:
    result, records = sweep(as_measured)
    assert won(result) == {
        "llama_server_parallel": 8,
        "llama_server_ubatch_size": 512,
        "llama_server_extra_args": ["--split-mode", "tensor"],
        "llama_server_tensor_split": [],
    }
    assert result["summary"].startswith("split_mode tensor: all clients together 26.")
    assert "# - split mode tensor: all clients together 44." in result["variables"]
    assert (
        "# Goal: serving; 8 clients at a time, prompts of 128 words, 32 tokens generated for each, 3 times each"
        in (result["variables"])
    )
    assert records[0]["run"]["extra_args"] == ["--ubatch-size", "512"]
    assert [record["run"]["stage"] for record in records[-2:]] == ["again", "again"]
    assert "speculation: it depends on what clients ask: give some of it in tune_prompts" in result["left_out"]


def test_without_that_mode_a_unified_cache_comes_with_batches_that_follow_one_another() -> None:
    """Neither of the two alone brings a gain."""
    result, records = sweep(as_measured, tune_split_modes=["layer"])
    assert won(result)["llama_server_extra_args"] == ["--kv-unified"]
    assert won(result)["llama_server_ubatch_size"] == 4
    tried = [record["run"]["extra_args"] for record in records if record["run"]["stage"] == "kv_unified"]
    assert tried == [["--kv-unified", "--ubatch-size", "512"], ["--kv-unified", "--ubatch-size", "4"]]


def test_what_a_build_cannot_do_is_noted() -> None:
    result, _records = sweep(
        as_measured, lambda run: "this build has no such mode" if run["split_mode"] == "tensor" else None
    )
    assert "Split mode tensor cannot be used: this build has no such mode" in result["notes"]
    assert won(result)["llama_server_extra_args"] == ["--kv-unified"]


def test_nothing_changes_where_nothing_wins() -> None:
    given = {"extra_args": ["--split-mode", "tensor", "-kvu", "--jinja"], "ubatch_size": 64}
    result, records = sweep(lambda _run: 30.0, **given)
    assert won(result)["llama_server_extra_args"] == ["--jinja", "--split-mode", "tensor", "--kv-unified"]
    assert won(result)["llama_server_ubatch_size"] == 64
    assert "(all clients together 30." in result["summary"] or "(all clients together 29." in result["summary"]
    assert {record["run"]["parallel"] for record in records} == {4, 8}


def test_speculation_is_tried_on_what_clients_ask() -> None:
    result, records = sweep(
        lambda run: 40.0 if run["speculation"] == "ngram-mod" else 30.0, tune_prompts=["What is a cluster?"]
    )
    assert won(result)["llama_server_spec_type"] == "ngram-mod"
    assert won(result)["llama_server_extra_args"] == []
    (tried,) = [record["run"] for record in records if record["run"]["title"] == "speculation ngram-mod"]
    assert tried["extra_args"] == ["--ubatch-size", "512", "--spec-type", "ngram-mod"]
    assert {tuple(record["run"]["prompts"]) for record in records} == {("What is a cluster?",)}
    assert "8 clients at a time, 1 prompts" in result["variables"]


DRAFT = {"draft-simple": {"arguments": ["--spec-type", "draft-simple", "--spec-draft-model", "/srv/small.gguf"]}}
ASKED = {"speculation": {**SPECULATION, **DRAFT}, "tune_prompts": ["What is a cluster?"], "tune_split_modes": []}


@pytest.mark.parametrize(
    ("quickest", "found"),
    [
        ("draft-simple", {"llama_server_spec_type": "draft-simple"}),
        # The role accepts either a draft model or n-grams.
        ("ngram-simple", {"llama_server_spec_type": "ngram-simple", "llama_server_draft_model": ""}),
        ("none", {}),
    ],
)
def test_a_draft_model_of_the_service_is_measured_too(quickest: str, found: dict[str, str]) -> None:
    result, records = sweep(lambda run: 40.0 if run["speculation"] == quickest else 30.0, **ASKED)
    tried = {record["run"]["speculation"]: record["run"]["extra_args"] for record in records}
    assert set(tried) == {"none", "ngram-simple", "ngram-mod", "draft-simple"}
    assert tried["draft-simple"][2:] == DRAFT["draft-simple"]["arguments"]
    assert {name: value for name, value in won(result).items() if "spec" in name or "draft" in name} == found


@pytest.mark.parametrize(
    ("file", "quickest", "keeps"),
    [("draft-mtp", "draft-mtp", True), ("draft-mtp", "ngram-mod", False), ("draft-simple", "draft-mtp", False)],
)
def test_a_file_that_the_quickest_kind_does_not_take_is_left_out(file: str, quickest: str, *, keeps: bool) -> None:
    """Layers that predict are in the file, or in the model beside a file of a smaller model."""
    kinds = {kind: {"arguments": ["--spec-type", kind]} for kind in (file, "draft-mtp")}
    kinds[file]["arguments"] += ["--spec-draft-model", "/srv/d.gguf"]
    asked = {**ASKED, "speculation": {**SPECULATION, **kinds}}
    result, _records = sweep(lambda run: 40.0 if run["speculation"] == quickest else 30.0, **asked)
    assert won(result)["llama_server_spec_type"] == quickest
    assert ("llama_server_draft_model" not in won(result)) == keeps


def test_a_service_that_drafts_for_nothing_is_told_to_leave_it_off() -> None:
    result, records = sweep(
        lambda run: 40.0 if run["speculation"] == "none" else 30.0, **ASKED, spec_type="draft-simple"
    )
    assert records[0]["run"]["speculation"] == "draft-simple"
    assert won(result)["llama_server_spec_type"] == "none"


def test_a_sweep_keeps_to_its_time() -> None:
    result, records = sweep(as_measured, tune_time_limit=100)
    assert len(records) == 1
    assert result["refusal"].startswith("The sweep would take about ")
    result, records = sweep(as_measured, tune_time_limit=330, tune_shorten=True)
    assert won(result)["llama_server_extra_args"] == ["--split-mode", "tensor"]
    assert records[-1]["elapsed_s"] <= 330
    assert any(left.startswith("slots: with it the sweep would have taken") for left in result["left_out"])


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"tune_clients": 0}, "tune_clients is 0: give a whole number from 1 to 256."),
        ({"tune_prompts": "What?"}, "tune_prompts is What?: give a list, such as ['What is a cluster?']"),
        ({"tune_prompts": [3]}, "tune_prompts holds something that is not a text: give a list of what clients ask."),
        ({"tune_parallel": ["two"]}, "tune_parallel is two: give a whole number from 1 to 256."),
        ({"tune_speculation": ["guess"]}, "tune_speculation holds guess: give some of ngram-simple, "),
        (
            {"tune_speculation": ["draft-simple"]},
            "tune_speculation holds draft-simple, which needs a draft model: give its GGUF file in llama_server_draft_",
        ),
        (
            {"spec_type": "draft-mtp"},
            "llama_server_spec_type is draft-mtp, which needs a model with layers that predict ",
        ),
        ({"spec_type": "guess"}, "llama_server_spec_type is guess, which needs another name."),
        ({"tune_worker_threads": True}, "tune_worker_threads is true, and tune_goal=serving takes the workers as they"),
        ({"extra_args": ["-sm", "row"]}, "llama_server_extra_args, -sm is row, which cannot be measured over RPC."),
        ({"extra_args": ["-sm", "layer", "-lv", "5"]}, "llama_server_extra_args holds -lv, which could write prompts"),
    ],
)
def test_what_is_wrong_is_said(asked: dict[str, Any], sentence: str) -> None:
    assert tuning({**KNOWN, **asked})["problem"].startswith(sentence)


def test_one_worker_has_no_split_mode() -> None:
    now = tuning({**KNOWN, "workers": WORKERS[:1]})
    assert "split mode: there is only one worker" in now["left_out"]
    assert "split_mode" not in [stage["stage"] for stage in now["stages"]]
