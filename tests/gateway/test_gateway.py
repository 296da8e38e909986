# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of two groups behind a gateway on test hosts: who reaches them, and how requests end if something breaks."""

from __future__ import annotations

import http.client
import re
from typing import TYPE_CHECKING

import pytest

from gateway.door import (
    ADDRESS,
    API_PORT,
    API_UNIT,
    KEY,
    PORT,
    UNIT,
    all_in,
    client,
    clients_that_keep_asking,
    playbook,
)
from support.api_service import connects
from support.lab import hosts as lab
from support.lab.hosts import as_artifacts, connect, eventually, releases_of, ssh, words

if TYPE_CHECKING:
    from pathlib import Path

MASTERS = {"a": "master", "b": "worker3"}
WORKER_UNIT = lab.UNIT
OTHER_KEY = "key-of-another-client"


def test_clients_reach_the_gateway_alone_and_it_alone_the_groups() -> None:
    assert client().answers()
    assert [entry["id"] for entry in client().request("/v1/models")[1]["data"]] == ["noise"]
    assert client("key-of-the-gateway-of-the-lab").request("/v1/models")[0] == 401, "the groups' key is for them"
    for host in ("outsider", "worker1"):
        assert connect(host, ADDRESS, PORT) != "connected"
    for master in (lab.ADDRESS["master"], f"10.87.{lab.NUMBER}.13"):
        for port in (API_PORT, API_PORT + 1):
            assert connect("outsider", master, port) != "connected"
            assert not connects(port, 3, master), "this machine may ask the gateway alone"
            assert connect("worker4", master, port) == "connected"
    # The services' own filters hold when somebody opens the firewall.
    ssh("worker4", "systemctl", "stop", "firewalld")
    try:
        assert connect("outsider", ADDRESS, PORT) != "connected"
        assert client().answers()
    finally:
        ssh("worker4", "systemctl", "start", "firewalld")


def test_the_gateway_is_confined_and_keeps_its_keys() -> None:
    said = ssh("worker4", "systemd-analyze", "security", "--no-pager", UNIT).stdout
    assert float(said.rpartition(": ")[2].split()[0]) <= 2.0, said
    for name in ("haproxy.cfg", "keys.map"):
        assert ssh("worker4", "stat", "--format=%a %U %G", f"/etc/llama_gateway/{name}").stdout.split() == [
            "640",
            "root",
            "llama-gateway",
        ]
    assert ssh("worker4", "systemctl", "is-enabled", "haproxy", check=False).stdout.strip() == "disabled"
    journal = ssh("worker4", "journalctl", "--no-pager", f"--unit={UNIT}").stdout
    assert " first noise " in journal
    assert KEY not in journal


def test_a_second_run_changes_nothing() -> None:
    before = ssh("worker4", "systemctl", "show", "--property=InvocationID", UNIT).stdout
    done = playbook("site")
    assert set(re.findall(r"changed=(\d+)", done.stdout)) == {"0"}, done.stdout
    assert ssh("worker4", "systemctl", "show", "--property=InvocationID", UNIT).stdout == before


def test_verify_names_a_group_that_takes_no_requests_and_why() -> None:
    assert "worker4: All 2 groups take requests." in words(playbook("verify"))
    ssh("worker3", "systemctl", "stop", API_UNIT)
    try:
        eventually(lambda: not all_in(), 10, "the group is out")
        assert client().answers(), "the other one serves"
        done = playbook("verify", check=False)
        assert done.returncode != 0
        assert "Group b (noise) is out: its master does not answer" in words(done)
    finally:
        ssh("worker3", "systemctl", "start", API_UNIT)


def test_a_key_is_added_and_removed_while_clients_ask() -> None:
    before = ssh("worker4", "systemctl", "show", "--property=InvocationID", UNIT).stdout
    keys = [{"name": "first", "key": KEY}, {"name": "other", "key": OTHER_KEY}]
    with clients_that_keep_asking() as seen:
        done = playbook("gateway", "-vvv", "--diff", llama_gateway_api_keys=keys)
        assert client(OTHER_KEY).answers()
        playbook("gateway")
        eventually(lambda: client(OTHER_KEY).request("/v1/models")[0] == 401, 10, "the key is refused")
    for key in (KEY, OTHER_KEY, "key-of-the-gateway-of-the-lab"):
        assert key not in done.stdout + done.stderr
        assert key not in ssh("worker4", "journalctl", "--no-pager").stdout
    assert set(seen.outcomes) == {"200"}, seen.outcomes
    assert ssh("worker4", "systemctl", "show", "--property=InvocationID", UNIT).stdout == before, "reloaded"


def test_what_a_run_has_written_that_ended_before_the_reload_is_read_by_the_next_one() -> None:
    keys = ssh("worker4", "cat", "/etc/llama_gateway/keys.map").stdout
    # The limit is that of the inventory, so that keys.map alone differs.
    both = [{"name": "first", "key": KEY, "requests": 32}, {"name": "other", "key": OTHER_KEY}]
    playbook("gateway", llama_gateway_api_keys=both)
    assert client(OTHER_KEY).answers()
    ssh("worker4", "sh", "-c", "cat >/etc/llama_gateway/keys.map", text_in=keys)
    playbook("gateway")
    eventually(lambda: client(OTHER_KEY).request("/v1/models")[0] == 401, 10, "the key is refused")


def test_a_stream_that_breaks_off_ends_with_an_error() -> None:
    # Both groups are asked, so that one of the two streams is of the group whose worker is killed.
    with client().stream(900) as first, client().stream(900, "a lake") as second:
        assert {answer.getheader("X-Llama-Group") for answer in (first, second)} == {"a", "b"}
        hit = next(answer for answer in (first, second) if answer.getheader("X-Llama-Group") == "a")
        ssh("worker1", "systemctl", "kill", "--signal=SIGKILL", lab.UNIT)
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            hit.read()


def in_use() -> dict[str, str]:
    return releases_of("master", "worker1", "worker2", "worker3")


def test_an_upgrade_of_two_groups_loses_no_request(tmp_path: Path) -> None:
    before = in_use()
    artifacts = as_artifacts(before, tmp_path)
    compared = ("-e", "upgrade_canary_tolerance_percent=99")
    # Once both groups have changed, b asks a something else, as if a answered otherwise than b.
    asked = "{{ 'a lake' if inventory_hostname == 'worker3' and __upgrade_replica is defined else 'the river' }}"
    try:
        with clients_that_keep_asking(number=3) as seen:
            done = playbook("upgrade", "-i", str(artifacts), "--check")
            assert words(done).count("All hosts would go from llama.cpp") == 2
            assert in_use() == before
            done = playbook("upgrade", "-i", str(artifacts), *compared, check=False, inference_prompt=asked)
            assert done.returncode != 0
            assert "master answers as worker3 does" in words(done)
            assert "before the upgrade they answered alike" in words(done)
            assert {host for host in before if in_use()[host] == before[host]} == {"worker2", "worker3"}
            done = playbook("upgrade", "-i", str(artifacts), *compared)
            eventually(all_in, 120, "both groups take requests")
        print(f"Upgrade of two groups: {seen}.")
        assert set(seen.outcomes) == {"200"}, seen.outcomes
        assert "worker3 answers as master does" in words(done)
        assert all(in_use()[host] != before[host] for host in before)
    finally:
        done = playbook("upgrade", *compared, check=False, rollback=True)
    assert done.returncode == 0, done.stdout
    assert in_use() == before
