# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests that only trusted addresses reach a worker's RPC port, whatever was there before, and SSH is never cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.lab.hosts import (
    ADDRESS,
    INVENTORY,
    NUMBER,
    PORT,
    WORKERS,
    at_once,
    connect,
    eventually,
    play,
    refusals_in,
    refused,
    ssh,
)

ROLE = "llama_cpp.cluster.rpc_firewall"
ZONE = "llama-rpc"
CONTROLLER = f"10.87.{NUMBER}.1"
ADDRESS6 = {name: f"fd87:0:0:{NUMBER:x}::{address.rpartition('.')[2]}" for name, address in ADDRESS.items()}
OPEN = "connected"

LISTEN = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.create_server((sys.argv[1], int(sys.argv[2])), family=family) as server:
    while True:
        server.accept()[0].close()
"""

Converge = Callable[..., str]


def knock(origin: str, target: str, port: int = PORT, address: str = "") -> str:
    return connect(origin, address or ADDRESS[target], port)


def firewall(host: str, *options: str, check: bool = True) -> str:
    return ssh(host, "firewall-cmd", *options, check=check).stdout.strip()


def settings(host: str, *options: str) -> list[str]:
    """Return the configuration of all zones, without the mark of those in use, which the permanent one lacks."""
    return [line.partition(" (")[0] for line in firewall(host, *options, "--list-all-zones").splitlines()]


def sources(host: str) -> list[str]:
    return firewall(host, f"--zone={ZONE}", "--list-sources").split()


@pytest.fixture(scope="module")
def playbook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a playbook that applies the role alone to the workers."""
    path = tmp_path_factory.mktemp("playbook") / "firewall.yml"
    tasks = [
        {
            "name": "The role",
            "ansible.builtin.include_role": {"name": ROLE, "tasks_from": "{{ entry | default('main') }}"},
        }
    ]
    path.write_text(yaml.safe_dump([{"hosts": "llama_workers", "gather_facts": False, "tasks": tasks}]))
    return path


@pytest.fixture(scope="module")
def converge(playbook: Path) -> Converge:
    """Return a function that runs the role on one worker with variables, and returns what Ansible prints."""

    def run(host: str, *options: str, fails: bool = False, inventory: Path = INVENTORY, **variables: Any) -> str:
        done = play(
            playbook, "--limit", host, "-e", json.dumps(variables), *options, check=not fails, inventory=inventory
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        # Whatever the role did, a new SSH connection must be possible.
        at_once(lambda name: ssh(name, "true", anew=True), host.split(":"))
        return done.stdout + done.stderr

    return run


@contextmanager
def listener(host: str, address: str, port: int) -> Iterator[None]:
    """Run a program that listens, if nothing does."""
    if knock(host, host, port, address) == OPEN:
        yield
        return
    unit = f"test-listener-{port}"
    ssh(
        host,
        "systemd-run",
        "--quiet",
        "--description=A listener",
        f"--unit={unit}",
        "python3",
        "-c",
        LISTEN,
        address,
        str(port),
    )
    try:
        eventually(lambda: knock(host, host, port, address) == OPEN, 60, f"a listener on {host}")
        yield
    finally:
        ssh(host, "systemctl", "stop", unit)


@pytest.fixture(scope="module", autouse=True)
def converged(converge: Converge) -> Iterator[None]:
    """Apply the role to both workers and let them listen; check that they end with the settings that they began with.

    A stand-in listens: the worker's unit admits only trusted addresses, whatever the firewall lets through.
    """
    converge(":".join(WORKERS))
    before = {host: settings(host, "--permanent") for host in WORKERS}
    unit = f"llama-rpc-server@{PORT}.service"
    for host in WORKERS:
        ssh(host, "systemctl", "stop", unit, check=False)
    with listener(WORKERS[0], ADDRESS[WORKERS[0]], PORT), listener(WORKERS[1], ADDRESS[WORKERS[1]], PORT):
        yield
    for host in WORKERS:
        ssh(host, "systemctl", "start", unit, check=False)
        # firewalld keeps a copy of each zone file that it replaces, here those that these tests have changed.
        ssh(host, "sh", "-c", "rm -f /etc/firewalld/zones/*.xml.old")
    assert {host: settings(host, "--permanent") for host in WORKERS} == before
    assert {host: settings(host) for host in WORKERS} == before


@pytest.fixture
def worker() -> str:
    """Return the worker with the older firewalld, for tests that need not run on both."""
    return WORKERS[1]


@pytest.fixture
def changing(converge: Converge, worker: str) -> Iterator[str]:
    """Yield a worker that the test may leave in another state; the role puts it right afterwards."""
    yield worker
    ssh(worker, "systemctl", "start", "firewalld")
    converge(worker)


# --- access to the port -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", WORKERS)
@pytest.mark.parametrize("after", ["convergence", "reload"])
def test_master_reaches_the_port_and_the_outsider_does_not(host: str, after: str) -> None:
    if after == "reload":
        firewall(host, "--reload")
    assert knock("master", host) == OPEN
    assert knock("outsider", host) != OPEN
    # The outsider was refused as anybody, not by a rule about it.
    assert ADDRESS["outsider"] not in firewall(host, "--list-all-zones")
    assert sources(host) == [f"{ADDRESS['master']}/32"]


@pytest.mark.parametrize("host", WORKERS)
def test_permanent_and_runtime_agree(host: str) -> None:
    assert settings(host) == settings(host, "--permanent")


def test_other_traffic_of_the_master_falls_into_the_zone() -> None:
    assert knock("outsider", WORKERS[0], 22) == OPEN
    assert knock("master", WORKERS[0], 22) != OPEN


@pytest.mark.long
def test_host_that_is_no_longer_a_master_is_shut_out(converge: Converge, worker: str, tmp_path: Path) -> None:
    content = yaml.safe_load(INVENTORY.read_text())
    content["llama_masters"], content["strangers"] = content["strangers"], content["llama_masters"]
    other = tmp_path / "hosts.yml"
    other.write_text(yaml.safe_dump(content))
    converge(worker, inventory=other)
    assert (knock("outsider", worker), sources(worker)) == (OPEN, [f"{ADDRESS['outsider']}/32"])
    assert knock("master", worker) != OPEN
    converge(worker)
    assert (knock("master", worker), sources(worker)) == (OPEN, [f"{ADDRESS['master']}/32"])
    assert knock("outsider", worker) != OPEN
    assert settings(worker) == settings(worker, "--permanent")


@pytest.mark.long
def test_a_worker_lets_in_the_master_of_its_group_alone(converge: Converge, tmp_path: Path) -> None:
    content = yaml.safe_load(INVENTORY.read_text())
    content["llama_masters"]["hosts"]["outsider"] = content.pop("strangers")["hosts"]["outsider"]
    masters = {"worker1": "master", "worker2": "outsider"}
    content.update(
        {worker: {"hosts": {worker: {}, masters[worker]: {}}, "vars": {"llama_group": worker}} for worker in masters}
    )
    other = tmp_path / "hosts.yml"
    other.write_text(yaml.safe_dump(content))
    converge(":".join(WORKERS), inventory=other)
    assert {worker: sources(worker) for worker in WORKERS} == {
        worker: [f"{ADDRESS[master]}/32"] for worker, master in masters.items()
    }
    open_to = {(master, worker) for worker in WORKERS for master in masters.values() if knock(master, worker) == OPEN}
    assert open_to == {(master, worker) for worker, master in masters.items()}
    converge(":".join(WORKERS))
    assert {tuple(sources(worker)) for worker in WORKERS} == {(f"{ADDRESS['master']}/32",)}


@pytest.mark.long
def test_ipv6_is_trusted_where_it_is_named(converge: Converge, worker: str) -> None:
    port = PORT + 900
    trusted = [ADDRESS["master"], ADDRESS6["master"]]
    converge(worker, rpc_firewall_trusted_sources=trusted, rpc_firewall_ports=[PORT, port])
    assert sources(worker) == [f"{ADDRESS['master']}/32", f"{ADDRESS6['master']}/128"]
    with listener(worker, ADDRESS6[worker], port):
        assert knock("master", worker, port, ADDRESS6[worker]) == OPEN
        assert knock("outsider", worker, port, ADDRESS6[worker]) != OPEN
    converge(worker)
    assert str(port) not in firewall(worker, "--list-all-zones")


# --- earlier settings -------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_what_was_opened_by_hand_is_closed_again(converge: Converge, worker: str) -> None:
    firewall(worker, "--zone=public", f"--add-port={PORT}/tcp")
    firewall(worker, "--permanent", "--zone=work", f"--add-port={PORT}/tcp")
    assert knock("outsider", worker) == OPEN
    check = converge(worker, "--check")
    assert f"port {PORT}/tcp removed from zone public" in check
    assert knock("outsider", worker) == OPEN, "check mode has changed something"
    converge(worker)
    assert knock("outsider", worker) != OPEN
    assert "/tcp" not in firewall(worker, "--permanent", "--zone=work", "--list-ports")


@pytest.mark.long
def test_range_is_split_around_the_port(converge: Converge, worker: str) -> None:
    firewall(worker, "--permanent", "--zone=public", "--add-port=50000-50100/tcp")
    firewall(worker, "--reload")
    left = {"50000-50051/tcp", "50053-50100/tcp"}
    try:
        assert knock("outsider", worker) == OPEN
        converge(worker)
        assert knock("outsider", worker) != OPEN
        for options in ([], ["--permanent"]):
            assert set(firewall(worker, *options, "--zone=public", "--list-ports").split()) == left
    finally:
        for port in left:
            firewall(worker, "--permanent", "--zone=public", f"--remove-port={port}")
        firewall(worker, "--reload")


@pytest.mark.long
def test_what_is_not_ours_to_close_is_refused_with_its_remedy(converge: Converge, worker: str) -> None:
    firewall(worker, "--zone=public", f"--add-rich-rule=rule port port={PORT} protocol=tcp accept")
    before = settings(worker), settings(worker, "--permanent")
    said = " ".join(converge(worker, fails=True).split())
    assert f"Zone public lets others reach port {PORT} by the rich rule" in said
    assert "firewall-cmd --reload" in said
    assert (settings(worker), settings(worker, "--permanent")) == before
    firewall(worker, "--reload")


@pytest.mark.long
def test_stopped_firewalld_is_set_up_and_started(converge: Converge, changing: str) -> None:
    ssh(changing, "systemctl", "disable", "--now", "firewalld")
    ssh(changing, "firewall-offline-cmd", "--zone=public", "--add-port=50050-50060/tcp")
    ssh(changing, "firewall-offline-cmd", f"--zone={ZONE}", f"--remove-source={ADDRESS['master']}/32")
    try:
        assert "firewalld started" in converge(changing, "--check")
        assert firewall(changing, "--state", check=False) != "running"
        converge(changing)
        assert ssh(changing, "systemctl", "is-active", "firewalld").stdout.strip() == "active"
        assert ssh(changing, "systemctl", "is-enabled", "firewalld").stdout.strip() == "enabled"
        assert knock("master", changing) == OPEN
        assert knock("outsider", changing) != OPEN
    finally:
        for port in ("50050-50051/tcp", "50053-50060/tcp"):
            firewall(changing, "--permanent", "--zone=public", f"--remove-port={port}")
        firewall(changing, "--reload")


@pytest.mark.long
def test_mask_of_a_run_that_was_killed_while_it_installed_goes(converge: Converge, changing: str) -> None:
    ssh(changing, "systemctl", "stop", "firewalld")
    ssh(changing, "ln", "-sf", "/dev/null", "/run/systemd/system/firewalld.service")
    converge(changing)
    assert ssh(changing, "systemctl", "is-enabled", "firewalld").stdout.strip() == "enabled"
    assert knock("outsider", changing) != OPEN


# Bad variables, and a part of the role's message about them.
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no-address": (
        {"rpc_firewall_trusted_sources": ["10.0.0.300"]},
        "10.0.0.300 is neither an IPv4 or IPv6 address",
    ),
    "host-bits": ({"rpc_firewall_trusted_sources": ["10.0.0.5/24"]}, "write 10.0.0.0/24 or 10.0.0.5"),
    "everyone": ({"rpc_firewall_trusted_sources": ["0.0.0.0/0"]}, "rpc_firewall_allow_any_source"),
    "port": ({"rpc_firewall_ports": [70000]}, "a port is a number from 1 to 65535"),
    "port-of-ssh": ({"rpc_firewall_ports": [22]}, "Port 22 is the one that SSH uses here"),
    "zone-of-others": ({"rpc_firewall_zone": "public"}, "give a name that is not taken"),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the role's message about each bad input, from one play that changes nothing."""
    host = WORKERS[1]
    before = settings(host), settings(host, "--permanent")
    path = tmp_path_factory.mktemp("refusals") / "refusals.yml"
    tasks = refused({name: (ROLE, variables) for name, (variables, _said) in BAD.items()})
    path.write_text(yaml.safe_dump([{"hosts": host, "gather_facts": False, "tasks": tasks}]))
    done = play(path)
    assert "changed=0" in done.stdout
    assert (settings(host), settings(host, "--permanent")) == before
    return refusals_in(done.stdout)


@pytest.mark.parametrize(("case", "said"), [(case, said) for case, (_variables, said) in BAD.items()], ids=BAD.keys())
def test_bad_input_is_named_and_changes_nothing(refusals: dict[str, str], case: str, said: str) -> None:
    assert said in refusals[case]


# --- other managers ---------------------------------------------------------------------------------------------------


@contextmanager
def package(host: str, name: str) -> Iterator[None]:
    """Install a package of Debian, and remove it afterwards."""
    apt = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qqy", "-o", "DPkg::Lock::Timeout=120")
    # As a rule, the package lists from the installation of firewalld are enough.
    if ssh(host, *apt, "install", "--no-install-recommends", name, timeout=300, check=False).returncode:
        ssh(host, *apt, "update", timeout=300)
        ssh(host, *apt, "install", "--no-install-recommends", name, timeout=300)
    try:
        yield
    finally:
        # Packages that firewalld recommends may have come with this one. They are removed, too.
        ssh(host, *apt, "-o", "APT::AutoRemove::RecommendsImportant=0", "purge", "--auto-remove", name, timeout=300)


def assert_refused(converge: Converge, host: str, manager: str) -> None:
    def found() -> str:
        # A unit that ends the other starts before the other has ended.
        settled = "timeout 30 sh -c 'while systemctl is-active firewalld | grep -q ing$; do sleep 0.2; done'"
        look = f"{settled}; cat /etc/firewalld/zones/*.xml; systemctl is-active firewalld"
        return ssh(host, "sh", "-c", look, check=False).stdout

    before = found()
    said = " ".join(converge(host, fails=True).split())
    assert f"The firewall of {host} is managed by {manager} already" in said
    assert "set rpc_firewall_enabled to false" in said
    assert "changed=0" in converge(host, rpc_firewall_enabled=False)
    assert found() == before


@pytest.mark.long
def test_nftables_with_rules_of_its_own_is_refused(converge: Converge, changing: str) -> None:
    with package(changing, "nftables"):
        own = "table inet own {\n chain input {\n type filter hook input priority 0\n tcp dport 25 drop\n }\n}"
        ssh(changing, "sh", "-c", f"echo '{own}' > /etc/nftables.conf")
        # On Debian 12, nftables and firewalld end each other.
        ssh(changing, "systemctl", "start", "nftables")
        try:
            assert_refused(converge, changing, "nftables")
        finally:
            ssh(changing, "systemctl", "stop", "nftables")
    ssh(changing, "systemctl", "restart", "firewalld")


@pytest.mark.long
def test_ufw_is_refused(converge: Converge, worker: str) -> None:
    with package(worker, "ufw"):
        assert "changed=0" in converge(worker)
        ssh(worker, "sed", "-i", "s/^ENABLED=.*/ENABLED=yes/", "/etc/ufw/ufw.conf")
        assert_refused(converge, worker, "ufw")


# --- SSH --------------------------------------------------------------------------------------------------------------

# Each task opens a new connection: an existing one would outlive a closed port.
ANEW = {
    "ansible_ssh_common_args": (
        "-o ControlMaster=no -o ControlPath=none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    )
}


@pytest.mark.long
def test_ssh_on_another_port_stays_open_when_firewalld_starts(
    converge: Converge, changing: str, tmp_path: Path
) -> None:
    content = yaml.safe_load(INVENTORY.read_text())
    content["llama_workers"]["hosts"][changing]["ansible_port"] = 2222
    by_2222 = tmp_path / "hosts.yml"
    by_2222.write_text(yaml.safe_dump(content))
    converge(changing, entry="remove")
    ssh(changing, "systemctl", "stop", "firewalld")
    ssh(changing, "sh", "-c", "printf 'Port 22\nPort 2222\n' > /etc/ssh/sshd_config.d/test.conf; systemctl restart ssh")
    try:
        converge(changing, **ANEW, inventory=by_2222)
        assert firewall(changing, "--state") == "running"
        assert knock("outsider", changing, 2222) == OPEN
        assert knock("outsider", changing) != OPEN
        # The port stays open if the role connects by another port, and if the zone is removed.
        converge(changing)
        converge(changing, entry="remove")
        assert knock("outsider", changing, 2222) == OPEN
    finally:
        ssh(changing, "sh", "-c", "rm /etc/ssh/sshd_config.d/test.conf; systemctl restart ssh")
        ssh(changing, "systemctl", "start", "firewalld")
        firewall(changing, "--permanent", "--zone=public", "--remove-port=2222/tcp")
        firewall(changing, "--reload")


@pytest.mark.long
def test_controller_that_is_trusted_keeps_ssh(converge: Converge, worker: str) -> None:
    trusted = [ADDRESS["master"], CONTROLLER]
    rule = f'rule family="ipv4" source address="{CONTROLLER}" port port="22" protocol="tcp" accept'
    converge(worker, **ANEW, rpc_firewall_trusted_sources=trusted)
    assert set(sources(worker)) == {f"{address}/32" for address in trusted}
    # The controller may use SSH through the zone, and nobody else may.
    assert firewall(worker, f"--zone={ZONE}", "--list-rich-rules") == rule
    assert knock("master", worker, 22) != OPEN
    assert "changed=0" in converge(worker, rpc_firewall_trusted_sources=trusted)
    # If the controller is no longer trusted, the rule goes, but the session stays.
    converge(worker, **ANEW)
    assert firewall(worker, f"--zone={ZONE}", "--list-rich-rules") == ""
    assert settings(worker) == settings(worker, "--permanent")


@pytest.mark.long
def test_removal_of_the_zone_of_a_trusted_controller_keeps_ssh(converge: Converge, changing: str) -> None:
    converge(changing, **ANEW, rpc_firewall_trusted_sources=[CONTROLLER])
    assert "zone llama-rpc removed" in converge(changing, "--check", entry="remove")
    assert ZONE in firewall(changing, "--get-zones").split()
    converge(changing, **ANEW, entry="remove")
    assert "changed=0" in converge(changing, entry="remove")
    for options in ([], ["--permanent"]):
        assert ZONE not in firewall(changing, *options, "--get-zones").split()
    assert ZONE not in ssh(changing, "ls", "/etc/firewalld/zones").stdout
    assert knock("master", changing) != OPEN
    assert ssh(changing, "systemctl", "is-active", "firewalld").stdout.strip() == "active"
