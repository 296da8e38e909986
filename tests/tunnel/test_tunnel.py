# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster whose traffic goes through a tunnel: who reaches it, who can read it, and what it survives."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

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
    inventory_of,
    play,
    releases_of,
    ssh,
    words,
)
from tunnel.ends import HOSTS, INSIDE, TUNNEL, UNIT, captured, let_in, playbook, restart, weights_in

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
    # This is how a neighbour acts that knows the address in the tunnel, and sends to it past the tunnel.
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
    # This is how root on a worker sends by way of a master that forwards packets.
    before = ssh("master", "sysctl", "net.ipv4.ip_forward").stdout.replace(" ", "").strip()
    ssh("master", "sysctl", "-qw", "net.ipv4.ip_forward=1")
    inner = f"{INSIDE['master']}/32,{INSIDE['worker1']}/32"
    ssh("worker2", "wg", "set", "llama-tunnel", "peer", *peers("worker2"), "allowed-ips", inner)
    try:
        assert connect("worker2", INSIDE["worker1"]) != "connected", "by way of the master"
    finally:
        ssh("master", "sysctl", "-qw", before)
        ssh("worker2", "systemctl", "reload", UNIT)
    assert all_ready()
    assert len(peers("master")) == len(WORKERS)
    assert len(peers("worker1")) == 1


def test_a_second_run_changes_nothing() -> None:
    done = playbook("site")
    assert set(re.findall(r"changed=(\d+)", done.stdout)) == {"0"}, done.stdout


def test_a_link_between_workers_goes_through_it() -> None:
    given = {"rpc_server_link": True, "inference_extra_args": ["-sm", "tensor"]}
    playbook("site", **given)
    try:
        for worker in WORKERS:
            said = ssh(worker, "journalctl", "--unit", f"llama-rpc-server@{PORT}", "--boot", "--no-pager").stdout
            assert "joined pairwise comm as rank" in said
            assert len(peers(worker)) == 2
        assert connect("worker2", INSIDE["worker1"]) != "connected", "the worker itself"
        done = playbook("site", **given)
        assert set(re.findall(r"changed=(\d+)", done.stdout)) == {"0"}, done.stdout
    finally:
        playbook("site")
    assert [len(peers(worker)) for worker in WORKERS] == [1, 1]


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


RUN, TEXT = "llama-long-run", "/var/tmp/llama-long-run"
# A run that lasts longer than any rotation.
LONG = (
    f"/opt/llama_cpp/current/bin/llama-completion --rpc {','.join(ENDPOINTS)} --device RPC0,RPC1 -ngl 99 -fit off "
    "-m /srv/models/random-weights.gguf -no-cnv --no-warmup --ignore-eos -c 32768 -n 32000 -p Once"
)


def written() -> int:
    return int(ssh("master", "stat", "--format=%s", TEXT).stdout)


def test_keys_are_rotated_while_a_run_goes_on() -> None:
    before = {host: peers(host) for host in HOSTS}
    kept = (f"--property=StandardOutput=file:{TEXT}", "--property=RemainAfterExit=yes")
    ssh("master", "systemd-run", f"--unit={RUN}", *kept, *LONG.split())
    try:
        eventually(lambda: written() > 100, 120, "the run generates")
        playbook("site", "--tags", "rpc_tunnel", rpc_tunnel_rotate=True)
        state = ssh("master", "systemctl", "show", "--property=SubState", "--value", RUN).stdout.strip()
        size = written()
        assert state == "running", f"{state} after {size} bytes, and it was to go on for longer than the rotation"
        eventually(lambda: written() > size + 100, 60, "the run goes on")
    finally:
        ssh("master", "systemctl", "stop", RUN, check=False)
        ssh("master", "systemctl", "reset-failed", RUN, check=False)
        ssh("master", "rm", "-f", TEXT)
    for host in HOSTS:
        assert not set(before[host]) & set(peers(host))
    eventually(all_ready, 60, "the workers serve nobody")


def test_a_rotation_that_was_killed_is_mended_by_the_next_run() -> None:
    """Simulate its last step but one: the files are new, and one of both ends has read them."""
    new = "umask 077; wg genkey >/etc/wireguard/llama-tunnel.key; wg pubkey </etc/wireguard/llama-tunnel.key"
    old = ssh("worker1", "wg", "show", "llama-tunnel", "public-key").stdout.strip()
    key = ssh("worker1", "sh", "-c", new).stdout.strip()
    ssh("master", "sed", "-i", f"s|^PublicKey = {old}$|PublicKey = {key}|", "/etc/wireguard/llama-tunnel.peers")
    done = playbook("site", "--limit", "worker1", check=False)
    assert "worker1 changes its key, as a run was killed, and master would not learn of it" in words(done)
    assert all_ready()
    ssh("worker1", "systemctl", "reload", UNIT)
    playbook("site", "--tags", "rpc_tunnel")
    assert key in peers("master")
    assert all_ready()


def test_what_a_worker_reports_as_its_key_runs_nothing_on_its_master() -> None:
    """Simulate a worker that somebody is root on: its `wg pubkey` prints a hook for wg-quick after the key."""
    mark = "/run/hook"
    hook = f'printf "[Interface]\\nPostUp = touch {mark}\\n"'
    lies = f'[ "$1" = pubkey ] || exec /usr/bin/wg "$@"\n/usr/bin/wg pubkey\n{hook}\n'
    ssh(
        "worker2", "sh", "-c", 'printf "#!/bin/sh\n%s" "$1" >/usr/local/bin/wg; chmod 755 /usr/local/bin/wg', "sh", lies
    )
    try:
        assert (
            "PostUp" in ssh("worker2", "sh", "-c", "/usr/local/bin/wg pubkey </etc/wireguard/llama-tunnel.key").stdout
        )
        for given in {}, {"rpc_tunnel_rotate": True}:
            done = playbook("site", "--tags", "rpc_tunnel", check=False, **given)
            assert "llama-tunnel.key of worker2 is not a WireGuard key" in words(done)
            ssh("master", "systemctl", "restart", UNIT)
            assert "PostUp" not in ssh("master", "sh", "-c", "cat /etc/wireguard/llama-tunnel.peers").stdout
            assert ssh("master", "test", "-e", mark, check=False).returncode == 1
    finally:
        ssh("worker2", "rm", "/usr/local/bin/wg")
        playbook("site", "--tags", "rpc_tunnel")
    eventually(all_ready, 60, "the workers serve nobody")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rpc_tunnel_preshared_key": "mPgJXSLqk2T1bIlTT3dCzBoVkiY+nSwvbo4JmRyWqHw="}, "rpc_tunnel_preshared_key"),
        ({"rpc_tunnel_port": 51821}, "rpc_tunnel_port"),
        ({"rpc_tunnel_network": "10.214.0.0/16"}, "the address in the tunnel"),
    ],
)
def test_what_a_host_that_is_left_out_would_not_learn_of_is_refused(given: dict[str, Any], said: str) -> None:
    done = playbook("site", "--limit", "master,worker1", check=False, **given)
    assert done.returncode != 0
    assert f"master changes {said}" in words(done)
    assert "and worker2 would not learn of it: name it in --limit too" in words(done)
    assert set(re.findall(r"changed=(\d+)", done.stdout)) == {"0"}
    assert all_ready()


def test_a_host_that_leaves_is_a_peer_no_more(tmp_path: Path) -> None:
    play("site", "-i", str(TUNNEL), inventory=inventory_of(tmp_path / "fewer.yml", "worker1"))
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
    """Simulate a worker behind a router: nobody answers at its endpoint, and its packets come from another address."""
    behind = tmp_path / "behind.yml"
    nobody = f"{ADDRESS['worker1'].rpartition('.')[0]}.250"
    behind.write_text(f"llama_workers: {{hosts: {{worker1: {{rpc_tunnel_endpoint: {nobody}}}}}}}\n")
    try:
        with let_in(51820):
            playbook("site", "-i", str(behind), "--tags", "rpc_tunnel")
            assert f"Endpoint = {nobody}:" in ssh("master", "cat", "/etc/wireguard/llama-tunnel.peers").stdout
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
