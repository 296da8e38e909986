# SPDX-License-Identifier: GPL-3.0-or-later
"""An upgrade whose answers are compared: every step is taken, and every host goes back if they differ. More of it:
tests/upgrade."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.lab.hosts import ADDRESS, PORT, WORKERS, as_artifacts, ask, at_once, play, ssh

HOSTS = ("master", *WORKERS)


def in_use() -> dict[str, str]:
    """Return the release of each host, as the link says; a note, and what is half made, would stand beside it."""
    look = "cd /opt/llama_cpp && basename $(readlink current); ls -dA upgrade.json .[!.]* releases/.[!.]* 2>/dev/null"
    return at_once(lambda host: ssh(host, "sh", "-c", look, check=False).stdout.strip(), HOSTS)


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    """The very same programs as artifacts, which are other releases."""
    return as_artifacts(in_use(), tmp_path)


def all_ready() -> None:
    endpoints = [f"{ADDRESS[worker]}:{PORT}" for worker in WORKERS]
    assert ask("master", *endpoints) == dict.fromkeys(endpoints, "ready")


@pytest.mark.long
def test_a_new_release_that_answers_otherwise_leaves_every_host_with_what_it_had(artifacts: Path) -> None:
    before = in_use()
    # A prompt that is another one each time, as if the model had another opinion.
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
    # How quick a run is depends on what else the machine does. Its text does not.
    compared = ("-e", "upgrade_canary_text=same", "-e", "upgrade_canary_tolerance_percent=99")
    try:
        run = play("upgrade", "-i", str(artifacts), *compared)
        said = re.sub(r"\s+", " ", run.stdout)
        there = in_use()
        for host in HOSTS:
            assert f"{host} has llama.cpp" in said
            # Of the same commit; no note and nothing half made is beside the link.
            commit = before[host].split("-")[1]
            assert re.fullmatch(rf"artifact-{commit}-\w+", there[host])
        all_ready()
    finally:
        run = play("upgrade", *compared, "-e", "rollback=true", check=False)
    assert run.returncode == 0, run.stdout
    assert in_use() == before
    all_ready()
