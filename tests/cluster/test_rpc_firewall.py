# SPDX-License-Identifier: GPL-3.0-or-later
"""Trusted addresses reach the RPC port of a worker and nobody else does, whatever was there before; SSH is never cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import ADDRESS, INVENTORY, NUMBER, PORT, WORKERS, play, ssh

ROLE = "llama_cpp.cluster.rpc_firewall"
ZONE = "llama-rpc"
CONTROLLER = f"10.87.{NUMBER}.1"
ADDRESS6 = {name: f"fd87:0:0:{NUMBER}::{address.rpartition('.')[2]}" for name, address in ADDRESS.items()}
OPEN = "open"

# Whether a connection comes about; what firewalld rejects is an unreachable host or a refused connection to who asks. The
# connection is reset, so that a worker that it reaches is not kept waiting.
KNOCK = """
import errno, socket, struct, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    print("open")
except socket.timeout:
    print("timeout")
except OSError as error:
    print(errno.errorcode.get(error.errno, error))
"""
LISTEN = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.create_server((sys.argv[1], int(sys.argv[2])), family=family) as server:
    while True:
        server.accept()[0].close()
"""

Converge = Callable[..., str]


def knock(origin: str, target: str, port: int = PORT, address: str = "") -> str:
    return ssh(origin, "python3", "-c", KNOCK, address or ADDRESS[target], str(port)).stdout.strip()


def firewall(host: str, *options: str, check: bool = True) -> str:
    return ssh(host, "firewall-cmd", *options, check=check).stdout.strip()


def settings(host: str, *options: str) -> list[str]:
    """Return a configuration; which zones are in use is not part of the permanent one."""
    return [line.partition(" (")[0] for line in firewall(host, *options, "--list-all-zones").splitlines()]


def sources(host: str) -> list[str]:
    return firewall(host, f"--zone={ZONE}", "--list-sources").split()


@pytest.fixture(scope="module")
def playbook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The role alone, on the workers."""
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
    """Run the role on one worker with these variables, and return what Ansible prints."""

    def run(host: str, *options: str, fails: bool = False, inventory: Path = INVENTORY, **variables: Any) -> str:
        done = play(
            playbook, "--limit", host, "-e", json.dumps(variables), *options, check=not fails, inventory=inventory
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@contextmanager
def listener(host: str, address: str, port: int) -> Iterator[None]:
    """Something that listens, where nothing does."""
    if knock(host, host, port, address) == OPEN:
        yield
        return
    unit = f"test-listener-{port}"
    ssh(
        host,
        "systemd-run",
        "--quiet",
        f"--unit={unit}",
        "--property=Restart=always",
        "python3",
        "-c",
        LISTEN,
        address,
        str(port),
    )
    try:
        ssh(host, "python3", "-c", f"import time\nwhile {port:#06x} not in [int(l.split()[1][-4:], 16) for f in ('tcp', 'tcp6') "
            "for l in list(open('/proc/net/' + f))[1:]]: time.sleep(0.1)", timeout=20)  # fmt: skip
        yield
    finally:
        ssh(host, "systemctl", "stop", unit)


@pytest.fixture(scope="module", autouse=True)
def converged(converge: Converge) -> Iterator[None]:
    """Both workers have the role and listen; in the end they have what they had in the beginning."""
    converge(":".join(WORKERS))
    before = {host: settings(host, "--permanent") for host in WORKERS}
    with listener(WORKERS[0], ADDRESS[WORKERS[0]], PORT), listener(WORKERS[1], ADDRESS[WORKERS[1]], PORT):
        yield
    assert {host: settings(host, "--permanent") for host in WORKERS} == before
    assert {host: settings(host) for host in WORKERS} == before


@pytest.fixture
def worker(converge: Converge) -> Iterator[str]:
    """A worker whose firewall a test may change, and which the role then puts right again. The older firewalld of the two."""
    yield WORKERS[1]
    converge(WORKERS[1])


# --- who reaches the port ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", WORKERS)
@pytest.mark.parametrize("after", ["convergence", "reload"])
def test_master_reaches_the_port_and_the_outsider_does_not(host: str, after: str) -> None:
    if after == "reload":
        firewall(host, "--reload")
    assert knock("master", host) == OPEN
    assert knock("outsider", host) in {"EHOSTUNREACH", "ECONNREFUSED", "timeout"}
    # It was turned away as anybody, not by a rule about it.
    assert ADDRESS["outsider"] not in firewall(host, "--list-all-zones")
    assert sources(host) == [f"{ADDRESS['master']}/32"]


@pytest.mark.parametrize("host", WORKERS)
def test_permanent_and_runtime_agree(host: str) -> None:
    assert settings(host) == settings(host, "--permanent")


def test_second_run_changes_nothing(converge: Converge) -> None:
    for options in ([], ["--check"]):
        assert converge(":".join(WORKERS), *options).count("changed=0") == len(WORKERS)


def test_other_traffic_of_the_master_falls_into_the_zone() -> None:
    assert knock("outsider", WORKERS[0], 22) == OPEN
    assert knock("master", WORKERS[0], 22) != OPEN


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


# --- what was there before --------------------------------------------------------------------------------------------


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


def test_what_is_not_ours_to_close_is_refused_with_its_remedy(converge: Converge, worker: str) -> None:
    firewall(worker, "--zone=public", f"--add-rich-rule=rule port port={PORT} protocol=tcp accept")
    before = settings(worker), settings(worker, "--permanent")
    said = " ".join(converge(worker, fails=True).split())
    assert f"Zone public lets others reach port {PORT} by the rich rule" in said
    assert "firewall-cmd --reload" in said
    assert (settings(worker), settings(worker, "--permanent")) == before
    firewall(worker, "--reload")


def test_stopped_firewalld_is_set_up_and_started(converge: Converge, worker: str) -> None:
    ssh(worker, "systemctl", "disable", "--now", "firewalld")
    ssh(worker, "firewall-offline-cmd", "--zone=public", "--add-port=50050-50060/tcp")
    ssh(worker, "firewall-offline-cmd", f"--zone={ZONE}", f"--remove-source={ADDRESS['master']}/32")
    try:
        assert "firewalld started" in converge(worker, "--check")
        assert firewall(worker, "--state", check=False) != "running"
        converge(worker)
        assert ssh(worker, "systemctl", "is-active", "firewalld").stdout.strip() == "active"
        assert ssh(worker, "systemctl", "is-enabled", "firewalld").stdout.strip() == "enabled"
        assert knock("master", worker) == OPEN
        assert knock("outsider", worker) != OPEN
    finally:
        for port in ("50050-50051/tcp", "50053-50060/tcp"):
            firewall(worker, "--permanent", "--zone=public", f"--remove-port={port}")
        firewall(worker, "--reload")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        pytest.param(
            {"rpc_firewall_trusted_sources": ["10.0.0.300"]},
            "10.0.0.300 is neither an IPv4 or IPv6 address",
            id="no-address",
        ),
        pytest.param(
            {"rpc_firewall_trusted_sources": ["10.0.0.5/24"]}, "write 10.0.0.0/24 or 10.0.0.5", id="host-bits"
        ),
        pytest.param({"rpc_firewall_trusted_sources": ["0.0.0.0/0"]}, "rpc_firewall_allow_any_source", id="everyone"),
        pytest.param({"rpc_firewall_ports": [70000]}, "a port is a number from 1 to 65535", id="port"),
        pytest.param({"rpc_firewall_ports": [22]}, "Port 22 is the one that SSH uses here", id="port-of-ssh"),
        pytest.param({"rpc_firewall_zone": "public"}, "give a name that is not taken", id="zone-of-others"),
        pytest.param({"rpc_firewall_master_group": "nobody"}, "would trust nobody", id="no-masters"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(converge: Converge, variables: dict[str, Any], said: str) -> None:
    before = settings(WORKERS[1]), settings(WORKERS[1], "--permanent")
    output = " ".join(converge(WORKERS[1], fails=True, **variables).split())
    assert said in output
    assert "changed=0" in output
    assert (settings(WORKERS[1]), settings(WORKERS[1], "--permanent")) == before


# --- other managers ---------------------------------------------------------------------------------------------------


@contextmanager
def package(host: str, name: str) -> Iterator[None]:
    """A package of Debian, which is gone afterwards."""
    apt = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qqy", "-o", "DPkg::Lock::Timeout=120")
    ssh(host, *apt, "update", timeout=300)
    ssh(host, *apt, "install", "--no-install-recommends", name, timeout=300)
    try:
        yield
    finally:
        ssh(host, *apt, "purge", "--auto-remove", name, timeout=300)


def refused(converge: Converge, host: str, manager: str) -> None:
    before = settings(host, "--permanent")
    said = " ".join(converge(host, fails=True).split())
    assert f"The firewall of {host} is managed by {manager} already" in said
    assert "set rpc_firewall_enabled to false" in said
    assert settings(host, "--permanent") == before
    assert "changed=0" in converge(host, rpc_firewall_enabled=False)


def test_nftables_with_rules_of_its_own_is_refused(converge: Converge, worker: str) -> None:
    with package(worker, "nftables"):
        # Debian's own settings begin with the removal of all rules, firewalld's too.
        ssh(
            worker,
            "sh",
            "-c",
            "echo 'table inet own { chain input { type filter hook input priority 0; } }' > /etc/nftables.conf",
        )
        ssh(worker, "systemctl", "start", "nftables")
        try:
            # Active, but without a rule.
            assert "changed=0" in converge(worker)
            ssh(worker, "nft", "add", "rule", "inet", "own", "input", "tcp", "dport", "25", "drop")
            refused(converge, worker, "nftables")
        finally:
            # Which ends all rules.
            ssh(worker, "systemctl", "stop", "nftables")
            ssh(worker, "systemctl", "restart", "firewalld")


def test_ufw_is_refused(converge: Converge, worker: str) -> None:
    with package(worker, "ufw"):
        assert "changed=0" in converge(worker)
        ssh(worker, "sed", "-i", "s/^ENABLED=.*/ENABLED=yes/", "/etc/ufw/ufw.conf")
        refused(converge, worker, "ufw")


def test_disabled_role_leaves_the_host_alone(converge: Converge, worker: str) -> None:
    ssh(worker, "systemctl", "stop", "firewalld")
    assert "changed=0" in converge(worker, rpc_firewall_enabled=False)
    assert firewall(worker, "--state", check=False) != "running"


# --- SSH --------------------------------------------------------------------------------------------------------------

# Each task connects anew: a connection that is there already would outlive a closed port.
ANEW = {
    "ansible_ssh_common_args": "-o ControlMaster=no -o ControlPath=none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
}


def test_ssh_on_another_port_stays_open_when_firewalld_starts(converge: Converge, worker: str) -> None:
    converge(worker, entry="remove")
    ssh(worker, "systemctl", "stop", "firewalld")
    ssh(worker, "sh", "-c", "printf 'Port 22\\nPort 2222\\n' > /etc/ssh/sshd_config.d/test.conf; systemctl restart ssh")
    try:
        converge(worker, **ANEW, ansible_port="{{ 2222 if inventory_hostname != 'master' else 22 }}")
        assert firewall(worker, "--state") == "running"
        assert knock("outsider", worker, 2222) == OPEN
        assert knock("outsider", worker) != OPEN
        # It stays so when the role comes by another way, and when the zone goes.
        converge(worker)
        converge(worker, entry="remove")
        assert knock("outsider", worker, 2222) == OPEN
    finally:
        ssh(worker, "sh", "-c", "rm /etc/ssh/sshd_config.d/test.conf; systemctl restart ssh")
        firewall(worker, "--permanent", "--zone=public", "--remove-port=2222/tcp")
        firewall(worker, "--reload")


def test_controller_that_is_trusted_keeps_ssh(converge: Converge, worker: str) -> None:
    trusted = [ADDRESS["master"], CONTROLLER]
    rule = f'rule family="ipv4" source address="{CONTROLLER}" port port="22" protocol="tcp" accept'
    converge(worker, **ANEW, rpc_firewall_trusted_sources=trusted)
    assert set(sources(worker)) == {f"{address}/32" for address in trusted}
    # From here, through the zone; and nobody else through it.
    assert firewall(worker, f"--zone={ZONE}", "--list-rich-rules") == rule
    assert knock("master", worker, 22) != OPEN
    assert "changed=0" in converge(worker, **ANEW, rpc_firewall_trusted_sources=trusted)
    # No longer trusted: the rule goes, the session does not.
    converge(worker, **ANEW)
    assert firewall(worker, f"--zone={ZONE}", "--list-rich-rules") == ""
    assert settings(worker) == settings(worker, "--permanent")


def test_removal_of_the_zone_of_a_trusted_controller_keeps_ssh(converge: Converge, worker: str) -> None:
    converge(worker, **ANEW, rpc_firewall_trusted_sources=[CONTROLLER])
    assert "zone llama-rpc removed" in converge(worker, "--check", entry="remove")
    assert ZONE in firewall(worker, "--get-zones").split()
    converge(worker, **ANEW, entry="remove")
    assert "changed=0" in converge(worker, **ANEW, entry="remove")
    for options in ([], ["--permanent"]):
        assert ZONE not in firewall(worker, *options, "--get-zones").split()
    assert ZONE not in ssh(worker, "ls", "/etc/firewalld/zones").stdout
    assert knock("master", worker) != OPEN
    assert ssh(worker, "systemctl", "is-active", "firewalld").stdout.strip() == "active"
