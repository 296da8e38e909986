# SPDX-License-Identifier: GPL-3.0-or-later
"""Figures and defaults that a page or a message repeats match their source."""

from __future__ import annotations

import re

import yaml
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.result import ONE_HOST

from support.tree import ROOT


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def test_what_a_second_worker_gives_generation_is_the_measured_figure() -> None:
    row = next(
        line
        for line in page("explanation/performance.md").splitlines()
        if line.startswith("| two workers of one core / one, `ubatch` 64")
    )
    measured = row.split("|")[3].split()[0]
    assert f"two equal workers generated {measured} times as fast as one" in ONE_HOST
    assert re.search(rf"two\s+equal workers are {measured} times as fast as one", page("explanation/planning.md"))


def test_the_benchmark_s_tests_are_named_by_their_defaults() -> None:
    tasks = yaml.safe_load((ROOT / "playbooks/tasks/benchmark/check_variables.yml").read_text())
    text = yaml.safe_dump(tasks)
    sizes = [re.search(rf"benchmark_{name} \| default\((\d+)\)", text) for name in ("n_prompt", "n_gen")]
    read, generated = [size[1] for size in sizes if size]
    shown = f"shows prompt (`pp{read}`) and generation (`tg{generated}`) separately"
    assert shown in page("explanation/performance.md")


def test_the_example_inventory_names_the_role_s_limit_of_the_cache() -> None:
    default = yaml.safe_load((ROOT / "roles/rpc_server/defaults/main.yml").read_text())["rpc_server_cache_max"]
    assert (
        f"# rpc_server_cache_max: {default}\n"
        in (ROOT / "inventories/example/group_vars/llama_workers.yml").read_text()
    )


def test_no_example_of_an_upgrade_names_the_default_version() -> None:
    default = yaml.safe_load((ROOT / "roles/llama_cpp/defaults/main.yml").read_text())["llama_cpp_version"]
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        assert f"upgrade -e llama_cpp_version={default}" not in path.read_text(), path
