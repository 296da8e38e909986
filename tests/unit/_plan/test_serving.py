# SPDX-License-Identifier: GPL-3.0-or-later
"""The hints for an API that does not fit, in the words of its role: what they propose fits, and the next does not.

The figures are those of an estimate; tests/integration/test_engine_plan.py compares a release's with llama-server.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.asking import plan_of
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.inputs import SplitError

from support.synthetic_models import write_synthetic
from support.templates import loaded, worked_out
from support.tiny_projector import write_projector
from support.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
ROLE = ROOT / "roles/llama_server"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model whose caches take 3 KiB for a token."""
    return write_synthetic(tmp_path / "m.gguf", "window, five of six")


def planned(
    model: Path, slots: int, each: int, *options: str, workers: float = 40, master: float = 200, cache_ram: float = 0
) -> dict[str, Any]:
    """Return the plan for two workers and a master with so many MiB."""
    return plan_of(
        {
            "model": model,
            "options": ["--parallel", slots, "--ctx-size", slots * each, *options],
            "workers": [
                {"endpoint": f"w{number}:50052", "memory_available_bytes": int(workers * MIB)} for number in (1, 2)
            ],
            "master_memory_available_bytes": int(master * MIB),
            "master_other_bytes": int(cache_ram * MIB),
            "variables_of": "llama_server",
        }
    )


def number(result: dict[str, Any], variable: str) -> int:
    found = re.search(rf"with {variable}=(\d+)", result["message"])
    assert found, result["message"]
    return int(found[1])


@pytest.mark.parametrize(("slots", "each", "workers"), [(16, 4096, 40), (12, 3000, 40), (40, 300, 12)])
def test_fewer_tokens_or_fewer_slots_fit_and_no_more_of_them(model: Path, slots: int, each: int, workers: int) -> None:
    result = planned(model, slots, each, workers=workers)
    assert not result["fits"]
    fewer_slots = number(result, "llama_server_parallel")
    assert planned(model, fewer_slots, each, workers=workers)["fits"]
    assert not planned(model, fewer_slots + 1, each, workers=workers)["fits"]
    fewer_tokens = number(result, "llama_server_ctx_size")
    assert planned(model, slots, fewer_tokens, workers=workers)["fits"]
    # The cache of a slot consists of blocks of 256 tokens.
    assert not planned(model, slots, fewer_tokens + 256, workers=workers)["fits"]


def test_a_master_that_lacks_memory_may_keep_fewer_prompts(model: Path) -> None:
    result = planned(model, 4, 1024, master=300, cache_ram=1024)
    assert [it["host"] for it in result["shortfall"]] == ["the master"]
    less = number(result, "llama_server_cache_ram")
    assert planned(model, 4, 1024, master=300, cache_ram=less)["fits"]
    assert not planned(model, 4, 1024, master=300, cache_ram=less + 1)["fits"]


def test_the_role_says_the_hints_and_what_the_context_is(model: Path) -> None:
    result = planned(model, 16, 4096)
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


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        (["--spec-type", "draft-simple", "--model-draft"], "speculation", "with llama_server_spec_type=none"),
        (["--mmproj"], "projector", "without llama_server_mmproj"),
    ],
)
def test_what_takes_memory_beside_the_model_can_be_left_out(
    model: Path, tmp_path: Path, options: list[str], kind: str, said: str
) -> None:
    file = write_projector(tmp_path / "p.gguf", 256) if kind == "projector" else model
    without, with_it = (planned(model, 2, 1024, *more) for more in ([], [*options, str(file)]))
    assert with_it["workers"] == without["workers"]
    needs = [it["master"]["total_bytes"] / MIB for it in (without, with_it)]
    assert needs[1] > needs[0]
    # Between them, and the reserve is none.
    little = planned(model, 2, 1024, *options, str(file), master=sum(needs) / 2)
    assert kind in [it["kind"] for it in little["suggestions"]]
    assert said in little["message"]
    assert planned(model, 2, 1024, master=sum(needs) / 2)["fits"]


def test_less_than_nothing_is_not_kept_on_the_master(model: Path) -> None:
    with pytest.raises(SplitError, match=r"master_other_bytes is -1048576; give a number from 0\."):
        planned(model, 2, 1024, cache_ram=-1)
