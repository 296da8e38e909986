# SPDX-License-Identifier: GPL-3.0-or-later
"""A worker host that both groups share for a while, by an instance for each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import yaml

from gateway.door import GATEWAY, all_in, client, playbook
from support.lab.hosts import ADDRESS, PORT, connect, eventually, module, ssh, words

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MASTERS = {PORT: "master", PORT + 1: "worker3"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Let worker1 serve group b too while these tests run; yield the inventory for that."""
    path = tmp_path_factory.mktemp("shared") / "shared.yml"
    instances = [{"port": PORT, "cpu_affinity": "0"}, {"port": PORT + 1, "group": "b", "cpu_affinity": "1"}]
    path.write_text(yaml.safe_dump({"llama_workers": {"hosts": {"worker1": {"rpc_server_instances": instances}}}}))
    try:
        playbook("site", "-i", str(path), llama_server_pause=True)
        yield path
    finally:
        playbook("site", llama_server_pause=True)
    zone = ssh("worker1", "firewall-cmd", "--info-zone=llama-rpc").stdout
    assert re.search(rf"^\s*ports: {PORT}/tcp$", zone, re.MULTILINE), zone
    assert f'port="{PORT}"' not in zone, "the rules of the ports are gone"
    assert connect("worker3", ADDRESS["worker1"], PORT) != "connected"
    assert ssh("worker1", "systemctl", "cat", f"llama-rpc-server@{PORT + 1}.service", check=False).returncode != 0


@pytest.mark.parametrize("filtering", ["firewall and service", "service alone"])
def test_each_port_is_for_the_master_of_its_group_alone(shared: Path, filtering: str) -> None:
    assert shared.exists()
    if filtering == "service alone":
        ssh("worker1", "systemctl", "stop", "firewalld")
    try:
        for port, own in MASTERS.items():
            for host in (*MASTERS.values(), "outsider"):
                assert (connect(host, ADDRESS["worker1"], port) == "connected") == (host == own), (host, port)
    finally:
        ssh("worker1", "systemctl", "start", "firewalld")


def test_both_groups_serve_over_the_host(shared: Path) -> None:
    eventually(all_in, 120, "both groups take requests")
    assert client().answers()
    for port, master in MASTERS.items():
        (service,) = module(master, "llama_server_info", GATEWAY)["servers"]
        assert (service["state"], f"{ADDRESS['worker1']}:{port}" in service["workers"]) == ("serving", True)
    said = words(playbook("verify", "-i", str(shared)))
    assert all(f"{group} worker1 {ADDRESS['worker1']}:{port} running" in said for group, port in zip("ab", MASTERS))


def test_another_run_changes_nothing(shared: Path) -> None:
    done = playbook("site", "-i", str(shared))
    assert set(re.findall(r"changed=(\d+)", done.stdout)) == {"0"}, done.stdout
