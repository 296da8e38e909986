# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of a gateway that reaches its group through the tunnel, and of links that also have a preshared key."""

from __future__ import annotations

import base64
import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.tunnel import address_of

from support.api_client import Client
from support.api_service import connects
from support.lab import hosts as lab
from support.lab.hosts import ADDRESS, NUMBER, ROOT, connect, eventually, ssh, words
from tunnel import ends
from tunnel.ends import INSIDE, UNIT

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

OVERLAY = ROOT / "inventories/lab/tunnel_gateway.yml"
GATEWAY, DOOR, DOOR_PORT, API_PORT = "worker4", f"10.87.{NUMBER}.14", 8000, 8080
API_UNIT = f"llama-server@{API_PORT}.service"
MASTER = INSIDE["master"]
CLIENT = Client(DOOR, DOOR_PORT, "key-of-the-first-client")
PRESHARED = base64.b64encode(os.urandom(32)).decode()


def playbook(name: str, *options: str, **given: Any) -> subprocess.CompletedProcess[str]:
    return ends.playbook(name, "-i", str(OVERLAY), *options, **given)


def peers(host: str) -> int:
    return len(ssh(host, "wg", "show", "llama-tunnel", "peers").stdout.split())


@pytest.fixture(scope="module", autouse=True)
def gateway() -> Iterator[None]:
    playbook("site", timeout=3600)
    yield
    playbook("reset", "--limit", GATEWAY)
    playbook("reset", "--tags", "llama_server")
    assert ssh(GATEWAY, "ls", "-A", "/etc/wireguard", check=False).stdout == "", "nothing of the tunnel is left"
    # The group goes on without a gateway, and forgets this one.
    ends.playbook("site")
    assert peers("master") == len(lab.WORKERS)


def test_the_gateway_reaches_the_group_through_the_tunnel_alone() -> None:
    assert CLIENT.answers()
    for port in (API_PORT, API_PORT + 1):
        heard = ssh("master", "ss", "-tlnH", f"sport = :{port}").stdout.split("\n")
        assert [row.split()[3] for row in heard if row] == [f"{MASTER}:{port}"]
        assert connect(GATEWAY, MASTER, port) == "connected"
        assert connect(GATEWAY, ADDRESS["master"], port) != "connected", "past the tunnel"
    assert peers("master") == len(lab.WORKERS) + 1
    assert peers(GATEWAY) == peers("worker1") == 1
    zone = ssh("master", "firewall-cmd", "--zone=llama-server", "--list-all").stdout
    assert re.search(r"^  ports: 51820/udp$", zone, re.MULTILINE), zone
    assert set(re.search(r"^  sources: (.*)$", zone, re.MULTILINE)[1].split()) == {  # type: ignore[index]
        f"{DOOR}/32",
        f"{address_of(GATEWAY)}/32",
    }


def test_a_prompt_is_readable_before_the_gateway_and_not_behind_it() -> None:
    prompt = "a ferry that nobody has heard of"
    with ends.captured(GATEWAY) as before, ends.captured("master") as behind:
        asked = {"prompt": prompt, "max_tokens": 4, "temperature": 0}
        status, answer = CLIENT.request("/v1/completions", asked)
    assert status == 200, answer
    assert prompt.encode() in b"".join(before), "the capture shows what passes in the clear"
    assert sum(map(len, behind)) > 1000, "something has passed"
    assert prompt.encode() not in b"".join(behind)


def test_strangers_and_workers_reach_neither_group_nor_gateway() -> None:
    # This is how a neighbour acts that knows the address in the tunnel, and sends to it past the tunnel.
    ssh("outsider", "ip", "route", "add", f"{MASTER}/32", "via", ADDRESS["master"])
    try:
        # Without firewalld only the service's own filter is left, which admits the workers that the service connects
        # to.
        for firewalld, hosts in (("start", ("outsider", "worker1")), ("stop", ("outsider",))):
            ssh("master", "systemctl", firewalld, "firewalld")
            for host in hosts:
                for place in ((MASTER, API_PORT), (ADDRESS["master"], API_PORT), (DOOR, DOOR_PORT)):
                    assert connect(host, *place) != "connected", f"{host} to {place}, firewalld: {firewalld}"
            assert not connects(API_PORT, 3, ADDRESS["master"]), "this machine may ask the gateway alone"
    finally:
        ssh("master", "systemctl", "start", "firewalld")
        ssh("outsider", "ip", "route", "del", f"{MASTER}/32")
    for address in (INSIDE["worker1"], ADDRESS["worker1"]):
        assert connect(GATEWAY, address) != "connected", "a gateway sees no worker"
    assert CLIENT.answers()


@pytest.mark.parametrize("run", [("site",), ("serve",), ("site", "--limit", "master,worker1,worker2")])
def test_a_second_run_changes_nothing(run: tuple[str, ...]) -> None:
    done = playbook(*run)
    assert set(re.findall(r"changed=(\d+)", done.stdout)) == {"0"}, done.stdout
    assert peers("master") == len(lab.WORKERS) + 1
    assert CLIENT.answers()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rpc_tunnel_preshared_key": "c2VjcmV0IHdvcmQ="}, "is not a key of 32 bytes in base64"),
        (
            {"llama_server_bind_address": ADDRESS["master"]},
            "and with rpc_tunnel_enabled it listens only in the tunnel",
        ),
    ],
)
def test_what_cannot_be_is_said_before_anything_changes(given: dict[str, str], said: str) -> None:
    done = playbook("site", "--diff", check=False, **given)
    assert done.returncode != 0
    assert said in words(done)
    assert "c2VjcmV0" not in done.stdout + done.stderr
    assert set(re.findall(r"changed=(\d+)", done.stdout)) == {"0"}


def problems(folder: Path, **given: str) -> list[str]:
    path = folder / "status.json"
    playbook("verify", check=False, verify_report_path=str(path), **given)
    return list(json.loads(path.read_text())["problems"])


def test_verify_shows_the_link_of_the_gateway_and_names_it_when_it_is_down(tmp_path: Path) -> None:
    said = words(playbook("verify"))
    assert re.search(r"master +worker4 +\d+ s ago +[0-9.]+ MiB +[0-9.]+ MiB +[0-9.]+ ms +through it", said), said
    assert "is readable on its way" not in said
    ssh(GATEWAY, "systemctl", "stop", UNIT)
    try:
        way = ssh(GATEWAY, "ip", "route", "get", MASTER, check=False)
        assert way.returncode != 0, "nobody else is asked in the master's place"
        (problem,) = problems(tmp_path)
    finally:
        ssh(GATEWAY, "systemctl", "start", UNIT)
    assert "The tunnel to worker4" in problem
    assert "is down" in problem
    eventually(CLIENT.answers, 60, "the group is in again")


def test_the_group_serves_without_a_worker_whose_tunnel_is_down() -> None:
    before = CLIENT.text()

    def over_workers(count: str) -> bool:
        status = ("systemctl", "show", "--property=StatusText", API_UNIT)
        return f"over {count} workers" in ssh("master", *status).stdout and CLIENT.answers()

    ssh("worker2", "systemctl", "stop", UNIT)
    try:
        eventually(lambda: over_workers("1 of 2"), 180, "the other worker serves")
        assert CLIENT.text() == before
    finally:
        ssh("worker2", "systemctl", "start", UNIT)
    ssh("master", "systemctl", "restart", API_UNIT)
    eventually(lambda: over_workers("2"), 180, "both serve")


def invocations() -> list[str]:
    hosts = (*ends.HOSTS, GATEWAY)
    return [ssh(host, "systemctl", "show", "--property=InvocationID", UNIT).stdout for host in hosts]


def test_a_preshared_key_comes_and_goes_without_a_restart_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    before = invocations()
    given = {"rpc_tunnel_preshared_key": PRESHARED}
    done = playbook("site", "--diff", "-vvv", **given)
    assert PRESHARED not in done.stdout + done.stderr
    for host in (*ends.HOSTS, GATEWAY):
        rows = ssh(host, "wg", "show", "llama-tunnel", "preshared-keys").stdout.splitlines()
        assert {row.split()[1] for row in rows} == {PRESHARED}, host
        assert ssh(host, "stat", "--format=%a", "/etc/wireguard/llama-tunnel.peers").stdout.strip() == "600"
        assert PRESHARED not in ssh(host, "journalctl", "--no-pager").stdout, host
    assert invocations() == before
    assert CLIENT.answers()
    assert set(re.findall(r"changed=(\d+)", playbook("site", **given).stdout)) == {"0"}

    # A link that begins anew needs the same key at both ends.
    ssh(GATEWAY, "systemctl", "restart", UNIT)
    eventually(CLIENT.answers, 60, "the link has the key")
    other = base64.b64encode(os.urandom(32)).decode()
    file = "/etc/wireguard/llama-tunnel.peers"
    ssh(GATEWAY, "sed", "-i", f"s|^PresharedKey = .*|PresharedKey = {other}|", file)
    ssh(GATEWAY, "systemctl", "restart", UNIT)
    (problem,) = problems(tmp_path, **given)
    assert "The tunnel to worker4" in problem

    playbook("site")
    for host in (*ends.HOSTS, GATEWAY):
        rows = ssh(host, "wg", "show", "llama-tunnel", "preshared-keys").stdout.splitlines()
        assert {row.split()[1] for row in rows} == {"(none)"}, host
    ssh(GATEWAY, "systemctl", "restart", UNIT)
    eventually(CLIENT.answers, 60, "the link needs no such key any more")


def test_the_keys_of_a_gateway_are_rotated_too() -> None:
    own = ("wg", "show", "llama-tunnel", "public-key")
    before = ssh(GATEWAY, *own).stdout
    playbook("site", "--tags", "rpc_tunnel", rpc_tunnel_rotate=True)
    assert ssh(GATEWAY, *own).stdout != before
    # The gateway may have taken the group out for the seconds in which its link changed.
    eventually(CLIENT.answers, 60, "the group is in again")


def test_it_is_all_back_after_a_restart_of_master_and_gateway() -> None:
    ends.restart("master", GATEWAY)
    eventually(CLIENT.answers, 180, "the group serves behind the gateway")


def test_a_master_and_a_worker_can_be_gateways_too(tmp_path: Path) -> None:
    more = tmp_path / "more.json"
    more.write_text(json.dumps({"llama_gateways": {"hosts": {"master": {}, "worker1": {}}}}))
    playbook("site", "-i", str(more))
    try:
        for address in (DOOR, ADDRESS["master"], ADDRESS["worker1"]):
            assert Client(address, DOOR_PORT, CLIENT.key).answers(), address
        assert (peers("master"), peers("worker1"), peers("worker2")) == (len(lab.WORKERS) + 1, 1, 1)
        done = playbook("site", "-i", str(more))
        assert set(re.findall(r"changed=(\d+)", done.stdout)) == {"0"}, done.stdout
    finally:
        playbook("reset", "-i", str(more), "--tags", "llama_gateway")
