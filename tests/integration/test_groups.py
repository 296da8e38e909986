# SPDX-License-Identifier: GPL-3.0-or-later
"""Several clusters in one inventory: each master has the workers of its group, and no others."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from support.harness import Release, Worker, play_over

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.llama

GROUPS = ("chat", "code")


@pytest.fixture
def workers(start: Callable[..., Worker]) -> dict[str, Worker]:
    """Return one worker for each group."""
    return {group: start(threads=1) for group in GROUPS}


@pytest.fixture
def inventory(release: Release, model: Path, workers: dict[str, Worker]) -> dict[str, Any]:
    """Return an inventory of two groups, each with a master and a worker, all on this machine."""
    common = {
        "llama_cpp_prefix": str(release.prefix),
        "gguf_model_path": str(model),
        "inference_n_predict": 2,
        "inference_report_path": "{{ llama_group }}.json",
        "rpc_server_bind_address": "127.0.0.1",
    }
    return {
        "llama_masters": {"hosts": {f"{group}-master": {} for group in GROUPS}},
        "llama_workers": {
            "hosts": {f"{group}-worker": {"rpc_server_port": worker.port} for group, worker in workers.items()}
        },
        **{
            group: {
                "hosts": {f"{group}-master": {}, f"{group}-worker": {}},
                "vars": {**common, "llama_group": group},
            }
            for group in GROUPS
        },
    }


def test_one_group_is_taken_by_its_name(tmp_path: Path, inventory: dict[str, Any], workers: dict[str, Worker]) -> None:
    # The missing worker matters only to its own group.
    inventory["llama_workers"]["hosts"]["code-worker"]["rpc_server_port"] = 1
    done = play_over("infer.yml", tmp_path, inventory, "--limit", "chat")
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "chat.json").exists()
    assert not (tmp_path / "code.json").exists()
    done = play_over("infer.yml", tmp_path, inventory)
    assert done.returncode != 0
    assert "code-master : ok" in done.stdout
    assert workers["code"].endpoint not in done.stdout


def test_a_host_that_groups_share_has_a_worker_for_each(
    tmp_path: Path, inventory: dict[str, Any], workers: dict[str, Worker]
) -> None:
    instances = [{"port": worker.port, "group": group} for group, worker in workers.items()]
    inventory["llama_workers"]["hosts"] = {"both": {"rpc_server_instances": instances}}
    for group in GROUPS:
        del inventory[group]["hosts"][f"{group}-worker"]
    address = {
        "rpc_server_bind_address": "127.0.0.1",
        "llama_cpp_prefix": inventory["chat"]["vars"]["llama_cpp_prefix"],
    }
    inventory["llama_workers"]["vars"] = address
    done = play_over("infer.yml", tmp_path, inventory)
    assert done.returncode == 0, done.stdout
    # The groups run side by side, in one batch.
    assert done.stdout.count("PLAY [Run distributed inference]") == 1
    said = " ".join(done.stdout.split())
    for group, other in (GROUPS, GROUPS[::-1]):
        report = json.loads((tmp_path / f"{group}.json").read_text())
        assert [each["endpoint"] for each in report["workers"]] == [workers[group].endpoint]
        assert report["inference"]["text"]
        assert re.search(rf"On both the plan leaves [0-9.]+ GiB to group {other}, which shares that host", said)


@pytest.mark.parametrize(
    ("group", "options", "sentence"),
    [
        ("docs", [], "Group docs has no master: set llama_group: docs for a host of llama_masters, or give "),
        pytest.param("", [], "has no llama_group, and other hosts have one: give it to all.", marks=pytest.mark.long),
        pytest.param(
            "code",
            ["-e", "llama_group=chat"],
            "llama_group is given with -e, which makes one group of all hosts",
            marks=pytest.mark.long,
        ),
    ],
)
def test_groups_that_are_none_are_said_at_once(
    tmp_path: Path, inventory: dict[str, Any], group: str, options: list[str], sentence: str
) -> None:
    inventory["code"]["hosts"]["code-worker"] = {"llama_group": group}
    done = play_over("site.yml", tmp_path, inventory, *options)
    assert done.returncode != 0
    assert sentence in done.stdout
    assert "TASK [Read the host's facts]" not in done.stdout
