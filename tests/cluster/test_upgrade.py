# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of an upgrade that compares answers: it takes every step, and every host goes back if they differ.

More tests of it are in tests/upgrade.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.lab.hosts import ADDRESS, PORT, WORKERS, as_artifacts, ask, at_once, play, ssh

HOSTS = ("master", *WORKERS)


def in_use() -> dict[str, str]:
    """Return the release that each host's link names, with any note and anything half made beside it."""
    look = "cd /opt/llama_cpp && basename $(readlink current); ls -dA upgrade.json .[!.]* releases/.[!.]* 2>/dev/null"
    return at_once(lambda host: ssh(host, "sh", "-c", look, check=False).stdout.strip(), HOSTS)


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    """Pack the very same programs as artifacts, which are other releases; return their inventory."""
    return as_artifacts(in_use(), tmp_path)


def all_ready() -> None:
    endpoints = [f"{ADDRESS[worker]}:{PORT}" for worker in WORKERS]
    assert ask("master", *endpoints) == dict.fromkeys(endpoints, "ready")


@pytest.mark.long
def test_a_new_release_that_answers_otherwise_leaves_every_host_with_what_it_had(artifacts: Path) -> None:
    before = in_use()
    # The prompt differs each time, as if the model answered otherwise.
    prompt = '{"inference_prompt": "{{ 9999999999 | random }}"}'
    run = play("upgrade", "-i", str(artifacts), "-e", prompt, check=False)
    said = re.sub(r"\s+", " ", run.stdout)
    assert run.returncode != 0
    assert "With the new release the prompt is continued with" in said
    for host in HOSTS:
        assert f"{host} is back at llama.cpp" in said
    assert in_use() == before
    all_ready()


@pytest.mark.long
def test_a_new_release_that_answers_the_same_is_kept_until_it_is_rolled_back(artifacts: Path) -> None:
    before = in_use()
    # The speed of a run depends on what else the machine does. Its text does not.
    compared = ("-e", "upgrade_canary_text=same", "-e", "upgrade_canary_tolerance_percent=99")
    try:
        run = play("upgrade", "-i", str(artifacts), *compared)
        said = re.sub(r"\s+", " ", run.stdout)
        there = in_use()
        for host in HOSTS:
            assert f"{host} has llama.cpp" in said
            # The release is of the same commit. No note and nothing half made is beside the link.
            commit = before[host].split("-")[1]
            assert re.fullmatch(rf"artifact-{commit}-\w+", there[host])
        all_ready()
    finally:
        run = play("upgrade", *compared, "-e", "rollback=true", check=False)
    assert run.returncode == 0, run.stdout
    assert in_use() == before
    all_ready()
