# SPDX-License-Identifier: GPL-3.0-or-later
"""Workers in a WireGuard network that somebody else keeps listen there alone (docs/explanation/security.md)."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
import yaml

from support.lab.hosts import ADDRESS, LAB, PORT, WORKERS, at_once, connect, eventually, ssh
from tunnel.ends import HOSTS, let_in, playbook

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OWN = {host: f"10.99.0.{ADDRESS[host].rpartition('.')[2]}" for host in HOSTS}
ENDPOINTS = [f"{OWN[worker]}:{PORT}" for worker in WORKERS]
UNIT, FILE, KEPT = "wg-quick@own.service", "/etc/wireguard/own.conf", 51999


def make(host: str, keys: dict[str, str], public: dict[str, str]) -> None:
    """Set up WireGuard as a worker behind NAT needs it: the workers call the master, and keep their way open."""
    text = f"[Interface]\nAddress = {OWN[host]}/24\nPrivateKey = {keys[host]}\n"
    text += f"ListenPort = {KEPT}\n" if host == "master" else ""
    for other in WORKERS if host == "master" else ("master",):
        text += f"[Peer]\nPublicKey = {public[other]}\nAllowedIPs = {OWN[other]}/32\n"
        if other == "master":
            text += f"Endpoint = {ADDRESS['master']}:{KEPT}\nPersistentKeepalive = 5\n"
    ssh(host, "sh", "-c", f"umask 077; mkdir -p /etc/wireguard; cat >{FILE}", text_in=text)
    ssh(host, "systemctl", "enable", "--now", UNIT)


@pytest.fixture(scope="module")
def own_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make that network, and yield an inventory that names the workers in it; the lab's tunnel is gone meanwhile."""
    inventory = tmp_path_factory.mktemp("own") / "own.yml"
    named = {worker: {"rpc_server_bind_address": OWN[worker]} for worker in WORKERS}
    inventory.write_text(yaml.safe_dump({"llama_workers": {"hosts": named}}))
    playbook("site", rpc_tunnel_enabled=False)
    keys = {host: ssh(host, "wg", "genkey").stdout.strip() for host in HOSTS}
    public = {host: ssh(host, "sh", "-c", f"echo {key} | wg pubkey").stdout.strip() for host, key in keys.items()}
    try:
        with let_in(KEPT):
            at_once(lambda host: make(host, keys, public), HOSTS)
            playbook("site", "-i", str(inventory), rpc_tunnel_enabled=False)
            yield inventory
    finally:
        for host in HOSTS:
            ssh(host, "systemctl", "disable", "--now", UNIT, check=False)
            ssh(host, "rm", "-f", FILE)
        playbook("site")


def test_workers_listen_there_alone_and_serve_the_master(own_network: Path) -> None:
    playbook("infer", "-i", str(own_network), rpc_tunnel_enabled=False)
    report = json.loads((LAB / "report.json").read_text())
    assert [worker["endpoint"] for worker in report["workers"]] == ENDPOINTS
    received = [int(line.split()[1]) for line in ssh("master", "wg", "show", "own", "transfer").stdout.splitlines()]
    assert len(received) == len(WORKERS)
    assert all(received)
    for worker in WORKERS:
        assert connect("master", OWN[worker]) == "connected"
        assert connect("master", ADDRESS[worker]) != "connected", "past that network"
        assert connect("outsider", ADDRESS[worker]) != "connected"


def test_another_run_changes_nothing(own_network: Path) -> None:
    done = playbook("site", "-i", str(own_network), rpc_tunnel_enabled=False)
    assert set(re.findall(r"changed=(\d+)", done.stdout)) == {"0"}, done.stdout


def test_a_worker_waits_for_that_network_and_serves(own_network: Path) -> None:
    assert own_network.exists()
    ssh("worker1", "systemctl", "stop", UNIT)
    ssh("worker1", "systemctl", "restart", "--no-block", f"llama-rpc-server@{PORT}.service")
    ssh("worker1", "systemctl", "start", UNIT)
    eventually(lambda: connect("master", OWN["worker1"]) == "connected", 60, "the worker listens again")
