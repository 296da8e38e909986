# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of an address that moves between two gateways, as seen by a client that asks all the time."""

from __future__ import annotations

import http.client
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from gateway.door import KEY, PORT, UNIT, playbook
from support.api_client import Client
from support.api_service import connects
from support.lab import hosts as lab
from support.lab.hosts import ROOT, connect, eventually, ssh, words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OWN = {"worker4": f"10.87.{lab.NUMBER}.14", "worker5": f"10.87.{lab.NUMBER}.15"}
VIRTUAL = f"10.87.{lab.NUMBER}.100"
ADDRESS_UNIT = "llama-gateway-address.service"
LEFT = "/etc/systemd/system/llama-gateway-address.service /etc/llama_gateway/keepalived.conf "
LEFT += "/etc/llama_gateway/address.sh /etc/firewalld/policies/llama-vrrp.xml"


def two(name: str, *options: str, check: bool = True, **variables: Any) -> subprocess.CompletedProcess[str]:
    """Run a playbook over the lab with both gateways."""
    overlay = ROOT / "inventories/lab/two_gateways.yml"
    return playbook(name, "-i", str(overlay), *options, check=check, timeout=1800, **variables)


def holders() -> list[str]:
    """Return the gateways that have the address."""
    said = lab.at_once(lambda host: ssh(host, "ip", "-4", "-oneline", "address").stdout, OWN)
    return [host for host, text in said.items() if f" {VIRTUAL}/" in text]


@pytest.fixture(scope="module", autouse=True)
def _both_gateways() -> Iterator[None]:
    two("serve")
    yield
    # This inventory does not have the address.
    playbook("gateway")
    left = ssh(
        "worker4", "sh", "-c", f"ls {LEFT} 2>/dev/null; ip -4 -o address; firewall-cmd --get-policies", check=False
    )
    assert VIRTUAL not in left.stdout, left.stdout
    assert "llama" not in left.stdout, left.stdout
    assert Client(OWN["worker4"], PORT, KEY).answers()
    two("reset", "--limit", "worker5")


@pytest.fixture
def holder() -> str:
    (found,) = eventually(lambda: len(found := holders()) == 1 and found, 15, "one gateway has the address")
    return str(found)


@contextmanager
def stream_that_goes_on(address: str) -> Iterator[None]:
    """Read a stream from a gateway; check in the end that it still comes or has ended properly."""
    over, lines = threading.Event(), [b""]
    with Client(address, PORT, KEY).stream(900) as stream:

        def read() -> None:
            with suppress(OSError, http.client.HTTPException):
                while not over.is_set() and (line := stream.readline()):
                    lines.append(line.strip())

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield
            count = len(lines)
            eventually(lambda: len(lines) > count or b"data: [DONE]" in lines, 30, "the stream goes on")
        finally:
            over.set()
            reader.join()


@contextmanager
def asked_all_the_time(limit_s: float) -> Iterator[list[float]]:
    """Ask the virtual address over new connections; check that it is silent no longer than the limit."""
    moments: list[float] = []
    over = threading.Event()

    def ask() -> None:
        client = Client(VIRTUAL, PORT, KEY)
        while not over.wait(0.02):
            with suppress(OSError, http.client.HTTPException):
                if connects(PORT, 0.2, VIRTUAL) and client.request("/health", limit_s=0.5)[0] == 200:
                    moments.append(time.monotonic())

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        eventually(lambda: moments, 5, "the virtual address answers")
        yield moments
        end = time.monotonic()
        eventually(lambda: moments[-1] > end, 10, "the virtual address answers")
    finally:
        over.set()
        thread.join()
    gap_s = max(later - earlier for earlier, later in zip(moments, moments[1:]))
    print(f"{gap_s:.2f} s without an answer.")
    assert gap_s <= limit_s


def test_clients_reach_one_of_them_through_the_address_and_both_by_their_own(holder: str) -> None:
    for address in (VIRTUAL, *OWN.values()):
        assert Client(address, PORT, KEY).answers(), address
        assert connect("outsider", address, PORT) != "connected"
    assert f"{VIRTUAL}: {holder}" in words(two("verify"))
    for host in OWN:
        said = ssh(host, "systemd-analyze", "security", "--no-pager", ADDRESS_UNIT).stdout
        assert float(said.rpartition(": ")[2].split()[0]) <= 2.0, said
        assert ssh(host, "ps", "-C", "keepalived", "-o", "user:32=").stdout.split() == ["llama-gateway"] * 2
        assert ssh(host, "systemctl", "is-enabled", "keepalived", check=False).stdout.strip() == "disabled"


LISTEN = """
import socket, sys, time
sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, 112)
sock.settimeout(4)
end, heard = time.monotonic() + 4, set()
while time.monotonic() < end:
    heard.add(sock.recvfrom(100)[1][0])
print(*heard)
"""
SPEAK = """
import socket, sys, time
sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, 112)
for _number in range(60):
    sock.sendto(b"nothing", (sys.argv[1], 0))
    time.sleep(0.1)
"""


def test_a_gateway_hears_the_others_alone(holder: str) -> None:
    (other,) = set(OWN) - {holder}
    speaker = threading.Thread(target=ssh, args=("outsider", "python3", "-", OWN[other]), kwargs={"text_in": SPEAK})
    speaker.start()
    heard = ssh(other, "python3", "-", text_in=LISTEN).stdout.split()
    speaker.join()
    assert heard == [OWN[holder]]


def test_a_reload_leaves_the_address_where_it_is(holder: str) -> None:
    keys = [{"name": "first", "key": KEY}, {"name": "other", "key": "key-of-another-client"}]
    with asked_all_the_time(0.6):
        two("gateway", llama_gateway_api_keys=keys)
        two("gateway")
    assert holders() == [holder]


def kill_haproxy(host: str) -> Callable[[], None]:
    ssh(host, "systemctl", "kill", "--signal=SIGKILL", UNIT)
    return lambda: None


def stop_haproxy(host: str) -> Callable[[], None]:
    stopping = threading.Thread(target=ssh, args=(host, "systemctl", "stop", UNIT))
    stopping.start()

    def start() -> None:
        stopping.join()
        ssh(host, "systemctl", "start", UNIT)

    return start


def freeze_haproxy(host: str) -> Callable[[], None]:
    ssh(host, "systemctl", "kill", "--signal=SIGSTOP", UNIT)
    return lambda: ssh(host, "systemctl", "kill", "--signal=SIGCONT", UNIT) and None


def kill_keepalived(host: str) -> Callable[[], None]:
    ssh(host, "systemctl", "kill", "--signal=SIGKILL", ADDRESS_UNIT)
    return lambda: None


def cut_off(host: str) -> Callable[[], None]:
    cable = lab.cable(host)
    subprocess.run(["ip", "link", "set", cable, "down"], check=True)
    return lambda: subprocess.run(["ip", "link", "set", cable, "up"], check=True) and None


@pytest.mark.parametrize(
    ("fault", "limit_s"),
    [(kill_haproxy, 3), (stop_haproxy, 3), (freeze_haproxy, 4), (kill_keepalived, 3), (cut_off, 3)],
)
def test_the_address_moves_and_stays_and_the_other_gateway_notices_nothing(
    fault: Callable[[str], Callable[[], None]], limit_s: float, holder: str
) -> None:
    (other,) = set(OWN) - {holder}
    with stream_that_goes_on(OWN[other]):
        with asked_all_the_time(limit_s):
            heal = fault(holder)
            try:
                time.sleep(5)
                assert f" {VIRTUAL}/" in ssh(other, "ip", "-4", "-oneline", "address").stdout
            finally:
                heal()
            eventually(lambda: ssh(holder, "true", check=False).returncode == 0, 60, "the host is back")
            time.sleep(4)
        assert holders() == [other], "who comes back takes nothing"


def test_verify_says_when_none_has_the_address_and_when_two_have(holder: str) -> None:
    (other,) = set(OWN) - {holder}
    added = (f"{VIRTUAL}/32", "dev", "host0")
    ssh(other, "ip", "address", "add", *added)
    try:
        assert "both have" in words(two("verify", check=False))
    finally:
        ssh(other, "ip", "address", "del", *added)
    for host in OWN:
        ssh(host, "systemctl", "stop", ADDRESS_UNIT)
    try:
        said = words(two("verify", check=False))
    finally:
        for host in OWN:
            ssh(host, "systemctl", "start", ADDRESS_UNIT)
    assert f"{VIRTUAL}: no gateway that answers" in said
    assert "does not run, so this gateway cannot have the virtual address" in said
