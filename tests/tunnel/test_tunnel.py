# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster whose traffic goes through a tunnel: who reaches it, who can read it, and what it survives."""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING

import pytest

from support.lab.hosts import (
    ADDRESS,
    LAB,
    PORT,
    WORKERS,
    as_artifacts,
    ask,
    connect,
    eventually,
    releases_of,
    ssh,
    words,
)
from tunnel.ends import HOSTS, INSIDE, UNIT, captured, playbook, restart, weights_in

if TYPE_CHECKING:
    from pathlib import Path

ENDPOINTS = [f"{INSIDE[worker]}:{PORT}" for worker in WORKERS]


def peers(host: str) -> list[str]:
    return ssh(host, "wg", "show", "llama-tunnel", "peers").stdout.split()


def all_ready() -> bool:
    return set(ask("master", *ENDPOINTS).values()) == {"ready"}


def test_inference_goes_through_the_tunnel() -> None:
    playbook("infer")
    report = json.loads((LAB / "report.json").read_text())
    assert [worker["endpoint"] for worker in report["workers"]] == ENDPOINTS
    for worker in WORKERS:
        listens = ssh(worker, "ss", "-tlnH", f"sport = :{PORT}").stdout.split()
        assert f"{INSIDE[worker]}:{PORT}" in listens
        key = ssh(worker, "stat", "--format=%a %U", "/etc/wireguard/llama-tunnel.key").stdout.split()
        assert key == ["600", "root"]


def test_strangers_and_other_workers_reach_no_worker() -> None:
    assert all_ready()
    # As from a neighbour that knows the address in the tunnel, and sends to it past the tunnel.
    for host in ("outsider", "worker2"):
        ssh(host, "ip", "route", "add", f"{INSIDE['worker1']}/32", "via", ADDRESS["worker1"])
    try:
        for firewalld in ("start", "stop"):
            ssh("worker1", "systemctl", firewalld, "firewalld")
            for host in ("outsider", "worker2"):
                for address in (INSIDE["worker1"], ADDRESS["worker1"]):
                    assert connect(host, address) != "connected", f"{host} to {address}, firewalld: {firewalld}"
            assert connect("master", ADDRESS["worker1"]) != "connected", "past the tunnel"
    finally:
        ssh("worker1", "systemctl", "start", "firewalld")
        for host in ("outsider", "worker2"):
            ssh(host, "ip", "route", "del", f"{INSIDE['worker1']}/32")
    assert connect("worker2", INSIDE["worker1"]) != "connected", "in the tunnel"
    assert len(peers("master")) == len(WORKERS)
    assert len(peers("worker1")) == 1


def test_a_second_run_changes_nothing() -> None:
    done = playbook("site")
    assert set(re.findall(r"changed=(\d+)", done.stdout)) == {"0"}, done.stdout


def test_the_unit_is_confined() -> None:
    for host in HOSTS:
        said = ssh(host, "systemd-analyze", "security", "--no-pager", UNIT).stdout
        assert float(said.rpartition(": ")[2].split()[0]) <= 2.0, said


def test_verify_shows_the_links_and_names_a_tunnel_that_is_down(tmp_path: Path) -> None:
    said = words(playbook("verify"))
    for worker in WORKERS:
        assert re.search(rf"master +{worker} +\d+ s ago +[0-9.]+ MiB +[0-9.]+ MiB +[0-9.]+ ms +through it", said), said
    ssh("worker1", "systemctl", "stop", UNIT)
    try:
        done = playbook("verify", check=False, verify_report_path=str(tmp_path / "status.json"))
    finally:
        ssh("worker1", "systemctl", "start", UNIT)
    assert done.returncode != 0
    problems = json.loads((tmp_path / "status.json").read_text())["problems"]
    assert any("The tunnel to worker1" in problem and "is down" in problem for problem in problems), problems
    assert "check that the host is up" not in words(done)
    eventually(all_ready, 40, "the link is up again")


def test_a_tunnel_whose_program_is_killed_is_back() -> None:
    if ssh("worker1", "pgrep", "-x", "wireguard-go", check=False).returncode:
        pytest.skip("the kernel has WireGuard, and there is no program")
    ssh("worker1", "pkill", "-KILL", "-x", "wireguard-go")
    eventually(all_ready, 60, "the link is up again")


def test_it_is_all_back_after_a_restart_of_the_hosts() -> None:
    restart(*HOSTS)
    eventually(all_ready, 90, "the workers answer through the tunnel")
    playbook("verify")


def test_keys_are_rotated_while_a_run_goes_on() -> None:
    before = {host: peers(host) for host in HOSTS}
    runs = []
    longer = {"inference_n_predict": 1800, "inference_ctx_size": 2048}
    thread = threading.Thread(target=lambda: runs.append(playbook("infer", check=False, **longer)))
    thread.start()
    open_ones = ["ss", "-tnH", "state", "established", "dst", INSIDE["worker1"]]
    eventually(lambda: ssh("master", *open_ones).stdout, 120, "the run has its workers")
    playbook("site", "--tags", "rpc_tunnel", rpc_tunnel_rotate=True)
    assert not runs, "the run was to go on for longer than the rotation"
    thread.join()
    assert runs[0].returncode == 0, words(runs[0])
    for host in HOSTS:
        assert not set(before[host]) & set(peers(host))
    assert all_ready()


def test_a_host_that_leaves_is_a_peer_no_more(tmp_path: Path) -> None:
    fewer = tmp_path / "fewer.yml"
    fewer.write_text("fewer: {hosts: {worker1: {}}}\n")
    playbook("site", "-i", str(fewer), llama_cpp_worker_group="fewer")
    assert len(peers("master")) == 1
    assert ask("master", *ENDPOINTS) == {ENDPOINTS[0]: "ready", ENDPOINTS[1]: "unreachable"}
    playbook("site")
    assert all_ready()


def test_an_upgrade_goes_through_the_tunnel(tmp_path: Path) -> None:
    before = releases_of(*HOSTS)
    compared = {"upgrade_canary_tolerance_percent": 99}
    try:
        playbook("upgrade", "-i", str(as_artifacts(before, tmp_path)), **compared)
        assert all(release != before[host] for host, release in releases_of(*HOSTS).items())
        assert all_ready()
    finally:
        playbook("upgrade", **compared, rollback=True)
    assert releases_of(*HOSTS) == before


def test_a_worker_that_nobody_can_call_calls_its_master(tmp_path: Path) -> None:
    """As one behind a router: its packets come from an address to which none of its own lead."""
    behind = tmp_path / "behind.yml"
    nobody = f"{ADDRESS['worker1'].rpartition('.')[0]}.250"
    behind.write_text(f"llama_workers: {{hosts: {{worker1: {{rpc_tunnel_endpoint: {nobody}}}}}}}\n")
    try:
        playbook("site", "-i", str(behind), "--tags", "rpc_tunnel")
        assert f"Endpoint = {nobody}:" in ssh("master", "cat", "/etc/wireguard/llama-tunnel.conf").stdout
        eventually(all_ready, 60, "the worker has called")
        assert ADDRESS["worker1"] in ssh("master", "wg", "show", "llama-tunnel", "endpoints").stdout
    finally:
        playbook("site", "--tags", "rpc_tunnel")


def test_a_capture_holds_weights_without_the_tunnel_and_none_with_it() -> None:
    with captured("master") as frames:
        playbook("infer")
    sent = sum(map(len, frames))
    assert sent > 10 << 20, "the run was captured"
    assert weights_in(frames) == 0
    playbook("site", rpc_tunnel_enabled=False)
    for host in HOSTS:
        assert ssh(host, "ls", "-A", "/etc/wireguard").stdout == "", "nothing of the tunnel is left"
    with captured("master") as frames:
        playbook("infer", rpc_tunnel_enabled=False)
    found = weights_in(frames)
    clear = sum(map(len, frames))
    print(
        f"With the tunnel {sent >> 20} MiB and no weights; without it {clear >> 20} MiB and {found} pieces of weights."
    )
    assert found > 20
    playbook("site")
    assert all_ready()
