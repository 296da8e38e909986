# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of a link between two workers: it is used, nobody else gets through its port, and it goes again."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from cluster.test_rpc_firewall import listener
from support.lab.hosts import ADDRESS, PORT, ROOT, UNIT, WORKERS, connect, play, ssh, words

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = pytest.mark.long

SITE = ROOT / "playbooks/site.yml"
LINK = PORT + 1000
JOINED = "joined pairwise comm as rank"
TAGS = ("--tags", "rpc_firewall,rpc_server,inference")
WITH_LINK = {"rpc_server_link": True, "inference_extra_args": ["-sm", "tensor"]}


def site(*options: str, **given: Any) -> subprocess.CompletedProcess[str]:
    return play(SITE, *TAGS, "-e", json.dumps(given), *options, check=False)


def unit(worker: str) -> str:
    return ssh(worker, "sha256sum", f"/etc/systemd/system/{UNIT}").stdout


@pytest.fixture(scope="module")
def linked() -> Iterator[subprocess.CompletedProcess[str]]:
    before = [unit(worker) for worker in WORKERS]
    yield site(**WITH_LINK)
    assert site().returncode == 0
    assert [unit(worker) for worker in WORKERS] == before
    for worker in WORKERS:
        assert str(LINK) not in ssh(worker, "firewall-cmd", "--zone=llama-rpc", "--list-all").stdout


def test_a_run_uses_the_link(linked: subprocess.CompletedProcess[str]) -> None:
    assert linked.returncode == 0, linked.stdout + linked.stderr
    for worker in WORKERS:
        assert JOINED in ssh(worker, "journalctl", "--unit", UNIT, "--boot", "--no-pager").stdout
    assert set(re.findall(r"changed=(\d+)", site(**WITH_LINK).stdout)) == {"0"}


@pytest.mark.usefixtures("linked")
def test_only_the_other_worker_reaches_it_and_it_reaches_nothing_else() -> None:
    with listener("worker1", ADDRESS["worker1"], LINK):
        found = {host: connect(host, ADDRESS["worker1"], LINK) for host in ("worker2", "master", "outsider")}
        assert found.pop("worker2") == "connected"
        assert "connected" not in found.values(), found
    assert connect("worker2", ADDRESS["worker1"]) != "connected"
    assert connect("master", ADDRESS["worker1"]) == "connected"


@pytest.mark.usefixtures("linked")
def test_more_than_two_workers_are_refused_before_anything_changes() -> None:
    before = unit("worker1")
    four = site(**{**WITH_LINK, "rpc_server_instances": [{"port": PORT}, {"port": PORT + 1}]})
    assert four.returncode != 0
    assert "a link joins the two workers of a group, and this one has 4: unset it" in words(four)
    assert unit("worker1") == before
