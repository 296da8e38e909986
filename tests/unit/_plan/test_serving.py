# SPDX-License-Identifier: GPL-3.0-or-later
"""The hints for an API that does not fit: the numbers that they propose fit, and the next ones do not.

tests/integration/test_server_memory.py compares the sizes with those of llama-server.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import Header, read_header, read_model
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.inputs import Cluster, Load, SplitError, Worker
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.result import plan

from support.synthetic_models import write_synthetic
from support.templates import loaded, worked_out
from support.tiny_projector import write_projector
from support.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
# The bytes of a recurrent layer's state in the model "a layer that predicts": 3 columns of a convolution, and 4 heads.
STATE = 4 * (3 * (256 + 2 * 2 * 64) + 4 * 64 * 64)
ROLE = ROOT / "roles/llama_server"


@pytest.fixture
def model(tmp_path: Path) -> list[Header]:
    return read_model(write_synthetic(tmp_path / "m.gguf", "window, five of six"))


def cluster(workers: int = 40, master: int = 200) -> Cluster:
    """Return two workers and a master with so many MiB."""
    two = tuple(Worker(f"w{number}:50052", workers * MIB) for number in (1, 2))
    return Cluster(two, master_memory_available_bytes=master * MIB)


def planned(model: list[Header], over: Cluster, slots: int, each: int, cache_ram: int = 0) -> dict[str, Any]:
    load = Load(ctx_size=slots * each, parallel=slots, master_other_bytes=cache_ram * MIB)
    return plan(model, load, over, draft=model, variables_of="llama_server")


def number(result: dict[str, Any], variable: str) -> int:
    found = re.search(rf"with {variable}=(\d+)", result["message"])
    assert found, result["message"]
    return int(found[1])


@pytest.mark.parametrize(("slots", "each"), [(16, 4096), (12, 3000), (40, 300)])
def test_fewer_tokens_or_fewer_slots_fit_and_no_more_of_them(model: list[Header], slots: int, each: int) -> None:
    over = cluster()
    result = planned(model, over, slots, each)
    assert not result["fits"]
    fewer_slots = number(result, "llama_server_parallel")
    assert planned(model, over, fewer_slots, each)["fits"]
    assert not planned(model, over, fewer_slots + 1, each)["fits"]
    fewer_tokens = number(result, "llama_server_ctx_size")
    assert planned(model, over, slots, fewer_tokens)["fits"]
    # The cache of a slot consists of blocks of 256 tokens.
    assert not planned(model, over, slots, fewer_tokens + 256)["fits"]


def test_a_master_that_lacks_memory_may_keep_fewer_prompts(model: list[Header]) -> None:
    over = cluster(workers=400, master=300)
    result = planned(model, over, 4, 1024, 1024)
    assert [it["host"] for it in result["shortfall"]] == ["the master"]
    less = number(result, "llama_server_cache_ram")
    assert planned(model, over, 4, 1024, less)["fits"]
    assert not planned(model, over, 4, 1024, less + 1)["fits"]


def test_the_role_says_the_hints_and_what_the_context_is(model: list[Header]) -> None:
    result = planned(model, cluster(), 16, 4096)
    block = next(task["block"] for task in loaded(ROLE / "tasks/divide.yml") if "block" in task)
    task = next(task for task in block if task["name"] == "Check that the model fits")
    given = {
        **loaded(ROLE / "defaults/main.yml"),
        **loaded(ROLE / "vars/main.yml"),
        "__inference_plan": result,
        "__inference_plan_arguments": {"left": []},
        "llama_server_parallel": 16,
        "llama_server_ctx_size": 4096,
    }
    words = " ".join(str(worked_out(task["ansible.builtin.assert"]["fail_msg"], given)).split())
    assert words == f"{result['message']} 16 slots of 4096 tokens take a context of 65536."


def test_a_draft_model_and_what_is_kept_are_the_masters(model: list[Header]) -> None:
    load = Load(ctx_size=2048, parallel=2, master_other_bytes=MIB)
    with_draft, without = plan(model, load, cluster(), draft=model), plan(model, load, cluster())
    assert with_draft["workers"] == without["workers"]
    assert without["master"]["other_bytes"] == MIB
    assert with_draft["master"]["other_bytes"] - MIB > 5 * MIB
    for result in (with_draft, without):
        parts = ("weights_bytes", "kv_bytes", "compute_bytes", "other_bytes")
        assert result["master"]["total_bytes"] == sum(result["master"][part] for part in parts)


def test_a_projector_is_the_masters_and_is_said_to_be_an_estimate(model: list[Header], tmp_path: Path) -> None:
    load = Load(ctx_size=2048, parallel=2)
    projector = read_header(write_projector(tmp_path / "p.gguf", 256))
    with_it, without = plan(model, load, cluster(), projector=projector), plan(model, load, cluster())
    assert with_it["workers"] == without["workers"]
    more = with_it["master"]["other_bytes"]
    assert more > sum(tensor.bytes or 0 for tensor in projector.tensors)
    assert with_it["master"]["total_bytes"] == without["master"]["total_bytes"] + more
    assert [note for note in with_it["notes"] if note not in without["notes"]] == [
        "The projector's compute buffer is an estimate for the largest picture that a slot can take."
    ]
    missing = plan(model, load, cluster(master=0), projector=projector)["shortfall"]
    assert missing[0]["bytes"] - plan(model, load, cluster(master=0))["shortfall"][0]["bytes"] == more


def test_what_takes_memory_beside_the_model_can_be_left_out(model: list[Header], tmp_path: Path) -> None:
    load = Load(ctx_size=2048, parallel=2)
    projector = read_header(write_projector(tmp_path / "p.gguf", 256))
    needs = [plan(model, load, cluster(), **given)["master"]["total_bytes"] for given in ({}, {"draft": model})]
    over = replace(cluster(), master_memory_available_bytes=sum(needs) // 2, reserve_percent=0, reserve_bytes=0)
    drafted = plan(model, load, over, draft=model, variables_of="llama_server")
    assert "speculation" in [it["kind"] for it in drafted["suggestions"]]
    assert "with llama_server_spec_type=none" in drafted["message"]
    needs[1] = plan(model, load, cluster(), projector=projector)["master"]["total_bytes"]
    over = replace(over, master_memory_available_bytes=sum(needs) // 2)
    pictured = plan(model, load, over, projector=projector, variables_of="llama_server")
    assert "without llama_server_mmproj" in pictured["message"]
    assert plan(model, load, over)["fits"]


@pytest.mark.parametrize("place", ["of the model", "in a file of their own"])
def test_layers_that_predict_are_on_the_last_worker(tmp_path: Path, place: str) -> None:
    """It has their cache, of F16, and their compute buffer; a recurrent layer has a state for each drafted token."""
    model = read_model(write_synthetic(tmp_path / "m.gguf", "a layer that predicts", layers=5))
    small = Load(ctx_size=8192, parallel=4, outputs_per_slot=4, cache_type_k="q8_0", cache_type_v="q8_0")
    over = replace(cluster(), tensor_split=(3.0, 3.0))
    plain = plan(model, small, over)
    drafts = replace(small, spec_type="draft-mtp")
    file = read_model(write_synthetic(tmp_path / "d.gguf", "a layer that predicts", layers=5))
    mtp = plan(model, drafts, over, draft=None if place == "of the model" else file)
    (first, last), (first_plain, last_plain) = mtp["workers"], plain["workers"]
    assert first_plain["kv_bytes"] == 3 * STATE * 4
    assert first["kv_bytes"] == 4 * first_plain["kv_bytes"]
    # The fourth layer alone has a cache, and the fifth one has another one like it.
    assert last["kv_bytes"] - last_plain["kv_bytes"] == 8192 * 2 * 64 * 2 * 2
    assert last["compute_bytes"] > 1.5 * last_plain["compute_bytes"]
    assert first["weights_bytes"] == first_plain["weights_bytes"]
    assert (last["weights_bytes"] > last_plain["weights_bytes"]) == (place == "in a file of their own")
    assert mtp["master"]["compute_bytes"] > plain["master"]["compute_bytes"]
    assert mtp["master"]["other_bytes"] == 0
    counted = "The layers that only predict further tokens are counted in full; llama.cpp leaves most of it out."
    assert (counted in plain["notes"], counted in mtp["notes"]) == (True, False)


def test_a_model_without_layers_that_predict_cannot_draft_with_them(model: list[Header]) -> None:
    load = Load(ctx_size=2048, parallel=2, spec_type="draft-mtp")
    for draft in (None, model):
        with pytest.raises(
            SplitError, match="spec_type is draft-mtp, and the model that drafts has no layers that pre"
        ):
            plan(model, load, cluster(), draft=draft)


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (Load(parallel=-1), "parallel is -1; give a number from 0"),
        (Load(outputs_per_slot=0), "outputs_per_slot is 0; give a number from 1"),
        (Load(master_other_bytes=-1), "master_other_bytes is -1; give a number from 0"),
    ],
)
def test_bad_input(model: list[Header], load: Load, said: str) -> None:
    with pytest.raises(SplitError, match=said):
        plan(model, load, cluster())
