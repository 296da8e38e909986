# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook size: whether a model fits on hosts that do not exist yet, and how many hosts it takes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.harness import run_module
from support.synthetic_models import write_synthetic
from support.tree import ROOT

MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("model") / "model.gguf", "dense", layers=12)


def size(**variables: object) -> subprocess.CompletedProcess[str]:
    """Run the playbook, without an inventory."""
    given = [word for name, value in variables.items() for word in ("-e", f"size_{name}={value}")]
    return subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), ROOT / "playbooks/size.yml", *given],
        cwd=ROOT, env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "NO_COLOR": "1"},
        capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def planned(model: Path, count: int, memory_mib: int) -> dict[str, Any]:
    """Return the planner's result for the same hosts."""
    workers = [{"endpoint": f"host{i + 1}", "memory_available_bytes": memory_mib * MIB} for i in range(count)]
    arguments = {"model": str(model), "workers": workers, "ctx_size": 4 * 4096, "parallel": 4}
    return dict(run_module("split_plan_info", arguments))


def test_it_finds_the_fewest_hosts_and_says_what_each_gets(model: Path) -> None:
    done = size(model=model, host_memory="360MiB", master_memory="2GiB")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [planned(model, count, 360)["fits"] for count in (2, 3)] == [False, True]
    assert "At least 3 hosts with 360MiB available are needed, and a master with 2GiB." in done.stdout
    assert "3 hosts with 360MiB available: It fits" in done.stdout
    assert "4 slots of 4096 tokens take 192.00 MiB on all hosts together (12.00 KiB for each token, f16)" in done.stdout
    layers = [worker["layers"] for worker in planned(model, 3, 360)["workers"]]
    assert [int(count) for count in re.findall(r"host\d: (\d+) layers?, .* left$", done.stdout, re.M)] == layers
    assert "changed=0" in done.stdout


def test_hosts_that_are_too_few_are_an_answer_that_says_what_is_missing(model: Path) -> None:
    done = size(model=model, host_memory="360MiB", master_memory="2GiB", hosts=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 hosts with 360MiB available: It does not fit, host1 lacks" in done.stdout
    assert "for all slots together fits" in done.stdout
    assert "At least 3 hosts with 360MiB" in done.stdout


def test_one_run_on_hosts_of_which_one_is_the_master(model: Path) -> None:
    done = size(model=model, host_memory="2G", hosts=2, master_is_worker="true", parallel=0, cache_type="q8_0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Context: 4096 tokens take 25.50 MiB" in done.stdout
    assert "At least 1 host with 2G available is needed, of which the first is also the master." in done.stdout


def test_a_master_that_is_too_small_is_named(model: Path) -> None:
    done = size(model=model, host_memory="1GiB", master_memory="200MiB")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No number of hosts is enough while the master has 200MiB available." in done.stdout


@pytest.mark.parametrize(
    ("variables", "sentences"),
    [
        ({}, ["size_model is empty; give the absolute path of a GGUF file."]),
        (
            {"model": "model.gguf", "host_memory": 32, "hosts": 16, "parallel": "x", "ctx_size": 0, "cache_type": "f8"},
            [
                "size_model is model.gguf; give the absolute path of a GGUF file.",
                "size_host_memory is 32; give what a host has available, with its unit, such as 32GiB.",
                "size_hosts is 16; give a number from 1 to 15, or 0 for as few as possible.",
                "size_parallel is x; give a number of slots, or 0 for a single run.",
                "size_ctx_size is 0; give a number of tokens from 1 to 9999999.",
                "size_cache_type is f8; give one of f32, f16,",
            ],
        ),
        (
            {"model": "/nowhere/model.gguf", "host_memory": "32GiB"},
            ["is not a complete GGUF model: there is no such file"],
        ),
    ],
    ids=["nothing", "all-of-it", "no-such-file"],
)
def test_wrong_variables_are_refused_in_a_sentence(variables: dict[str, Any], sentences: list[str]) -> None:
    done = size(**variables)
    assert done.returncode == 2
    assert "Traceback" not in done.stdout + done.stderr
    said = re.sub(r"\s+", " ", done.stdout + done.stderr)
    assert [sentence for sentence in sentences if sentence not in said] == []
