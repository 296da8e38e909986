# SPDX-License-Identifier: GPL-3.0-or-later
"""Documented tasks run as they are written, except for the addresses and the model's path."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.examples import as_plays, blocks, tasks
from support.harness import Release, Worker
from support.tree import COLLECTION, PLUGINS, documentation, run

CLUSTER_MODULES = {f"{COLLECTION}.{name}" for name in ("rpc_worker_info", "distributed_inference")}


def _documented() -> dict[str, list[dict[str, Any]]]:
    """Return the playbooks and task lists that use a cluster, by their place in the documentation."""
    found = {plugin.fqcn: yaml.safe_load(documentation(plugin.kind)[plugin.fqcn]["examples"]) for plugin in PLUGINS}
    found.update((str(block), yaml.safe_load(block.text)) for block in blocks("yaml", "yml"))
    return {
        place: content
        for place, content in found.items()
        if isinstance(content, list) and any(CLUSTER_MODULES & task.keys() for task in tasks(content))
    }


DOCUMENTED = _documented()


def test_a_block_that_is_marked_as_an_example_is_among_them() -> None:
    assert {str(block) for block in blocks("yaml") if block.marker == "example"} - DOCUMENTED.keys() == set()


@pytest.mark.llama
@pytest.mark.parametrize("place", DOCUMENTED)
def test_example_runs_on_a_cluster(
    place: str, start: Callable[..., Worker], release: Release, model: Path, tmp_path: Path
) -> None:
    workers = [start(), start()]
    text = yaml.safe_dump(as_plays(DOCUMENTED[place]), sort_keys=False)
    for number, worker in enumerate(workers, 1):
        text = re.sub(rf"\b(?:10\.0\.0|192\.0\.2)\.1{number}(?::\d+)?", worker.endpoint, text)
    text = re.sub(r"/srv/models/[\w.-]+", str(model), text)
    plays = yaml.safe_load(text)
    for play in plays:
        play["module_defaults"] = {f"{COLLECTION}.distributed_inference": {"bin_folder": str(release.bin)}}
    playbook = tmp_path / "playbook.yml"
    playbook.write_text(yaml.safe_dump(plays, sort_keys=False))
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(
        yaml.safe_dump(
            {
                "all": {"vars": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}},
                "llama_masters": {"hosts": {"master": {}}},
                "llama_workers": {
                    "hosts": {
                        f"worker{number}": {"rpc_server_address": "127.0.0.1", "rpc_server_port": worker.port}
                        for number, worker in enumerate(workers, 1)
                    }
                },
            }
        )
    )
    result = run("ansible-playbook", "-i", inventory, playbook, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "WARNING" not in result.stderr
    assert all(worker.alive for worker in workers)


@pytest.mark.llama
@pytest.mark.parametrize(
    ("name", "said"), [("gguf_info", r"(?s)msg\W+2048\b.*skipped=0"), ("split_plan_info", "ok=2 ")]
)
def test_tasks_that_look_at_a_model_run(model: Path, tmp_path: Path, name: str, said: str) -> None:
    """The model's context is that of playbooks/files/random_model.py."""
    examples = documentation("module")[f"{COLLECTION}.{name}"]["examples"]
    plays = as_plays(yaml.safe_load(re.sub(r"/srv/models/[\w.-]+", str(model), examples)))
    playbook = tmp_path / "playbook.yml"
    playbook.write_text(yaml.safe_dump(plays, sort_keys=False))
    interpreter = f"ansible_python_interpreter={sys.executable}"
    result = run("ansible-playbook", "-i", "here,", "-c", "local", "-e", interpreter, playbook, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(said, result.stdout)
