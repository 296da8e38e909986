# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of an upgrade under an API with a client that keeps asking: the API makes way, and then answers as before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from serve.api import API_UNIT, client_that_keeps_asking, journal, key, playbook, serves, text_of
from support.lab.hosts import WORKERS, as_artifacts, releases_of, ssh, words

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = ("master", *WORKERS)
# The speed of a run depends on what else the machine does.
COMPARED = ("-e", "upgrade_canary_tolerance_percent=99")
# A client may see an answer, a port that refuses it or does not answer, or a model that is being loaded.
UNHARMED = {"200", "503", "not connected: ConnectionRefusedError", "not connected: TimeoutError"}


@pytest.fixture
def bearer() -> str:
    """Return a key of the API, once the API serves."""
    found = key()
    serves(found, 120)
    return found


def in_use() -> dict[str, str]:
    return releases_of(*HOSTS)


def runs() -> str:
    """Return the release whose llama-server runs."""
    main = ssh("master", "systemctl", "show", "--property=MainPID", "--value", API_UNIT).stdout.strip()
    (program,) = ssh("master", "cat", f"/proc/{main}/task/{main}/children").stdout.split()
    return ssh("master", "readlink", f"/proc/{program}/exe").stdout.split("/")[-3]


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    """Pack the very same programs as artifacts, which are other releases; return their inventory."""
    return as_artifacts(in_use(), tmp_path)


def test_no_request_of_a_client_is_cut_off(bearer: str, artifacts: Path) -> None:
    before, text = in_use(), text_of(bearer)
    try:
        with client_that_keeps_asking(bearer) as seen:
            done = playbook("upgrade", "-i", str(artifacts), *COMPARED)
            serves(bearer, 60)
        print(f"The client saw: {dict(seen)}.")
        assert set(seen) <= UNHARMED, journal()
        assert seen["200"] >= 2
        assert all(f"{host} has llama.cpp" in words(done) for host in HOSTS)
        assert runs() == in_use()["master"] != before["master"]
        assert text_of(bearer) == text
    finally:
        done = playbook("upgrade", *COMPARED, check=False, rollback=True)
    assert done.returncode == 0, done.stdout
    serves(bearer, 60)
    assert in_use() == before
    assert runs() == before["master"]


def test_an_api_that_answers_otherwise_takes_all_hosts_back_and_serves(bearer: str, artifacts: Path) -> None:
    before, text = in_use(), text_of(bearer)
    # Once the API is back, it is asked something else, as if it answered otherwise than llama-completion.
    prompt = "{{ 'the river' if __upgrade_apis_before is not defined else 'a lake' }}"
    with client_that_keeps_asking(bearer) as seen:
        done = playbook("upgrade", "-i", str(artifacts), *COMPARED, check=False, inference_prompt=prompt)
        serves(bearer, 60)
    print(f"The client saw: {dict(seen)}.")
    assert done.returncode != 0
    assert f"Through the API of {API_UNIT} the prompt is continued with" in words(done), words(done)[-3000:]
    assert all(f"{host} is back at llama.cpp" in words(done) for host in HOSTS)
    assert set(seen) <= UNHARMED, journal()
    assert in_use() == before
    assert runs() == before["master"]
    assert text_of(bearer) == text
