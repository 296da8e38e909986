# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of faults behind a gateway: 16 clients ask two groups without a pause, half of them for streams, while
something breaks. No request is lost whose answer has not begun.."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from gateway.door import API_UNIT, BROKE_OFF, UNIT, all_in, client, clients_that_keep_asking, playbook, states
from support.lab import hosts as lab
from support.lab.hosts import at_once, eventually, ssh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

HERE = "two groups behind a gateway, hosts with systemd"
# More than 200 requests over all faults: two groups on the cores of one machine answer one or two in a second.
CLIENTS, REQUESTS, TOKENS = 16, 50, 2
OUT_WITHIN_S, BACK_WITHIN_S = 10, 180
PROGRAM = "llama-server"


@pytest.fixture(scope="module", autouse=True)
def groups() -> None:
    """Make two groups of one, whose API releases a worker."""
    lab.require_lab()
    playbook("site", llama_server_pause=True)


@pytest.fixture(autouse=True)
def both_groups() -> None:
    eventually(all_in, BACK_WITHIN_S, "both groups take requests")


@contextmanager
def killed(unit: str, *hosts: str) -> Iterator[None]:
    at_once(lambda host: ssh(host, "systemctl", "kill", "--signal=SIGKILL", unit), hosts)
    yield


@contextmanager
def program_killed(host: str) -> Iterator[None]:
    ssh(host, "pkill", "--signal=KILL", "--exact", PROGRAM)
    yield


@contextmanager
def program_stopped(host: str, name: str) -> Iterator[None]:
    ssh(host, "pkill", "--signal=STOP", "--exact", name)
    try:
        yield
        time.sleep(20)
    finally:
        ssh(host, "pkill", "--signal=CONT", "--exact", name)


@contextmanager
def restarted(host: str) -> Iterator[None]:
    ssh(host, "systemctl", "restart", "--no-block", API_UNIT)
    yield


@contextmanager
def host_reset(host: str) -> Iterator[None]:
    """Reset a host as its reset button does: no program on it is told."""
    ssh(host, "systemctl", "reboot", "--force", "--force", check=False)
    yield


@contextmanager
def silent(host: str, seconds: int = 40) -> Iterator[None]:
    with lab.unplugged(host):
        yield
        time.sleep(seconds)


@pytest.mark.parametrize(
    ("fault", "strike"),
    [
        ("worker killed", lambda: killed(lab.UNIT, "worker1")),
        ("workers of both groups killed", lambda: killed(lab.UNIT, "worker1", "worker2")),
        ("llama-server killed", lambda: program_killed("worker3")),
        ("llama-server frozen for 20 s", lambda: program_stopped("worker3", PROGRAM)),
        ("service of a master killed", lambda: killed(API_UNIT, "master")),
        ("service of a master restarted", lambda: restarted("worker3")),
        ("worker's host reset", lambda: host_reset("worker1")),
        ("master's host reset", lambda: host_reset("worker3")),
        ("worker's host cut off for 40 s", lambda: silent("worker2")),
        ("master's host cut off for 40 s", lambda: silent("master")),
    ],
)
def test_no_request_that_has_not_begun_is_lost(
    fault: str, strike: Callable[[], AbstractContextManager[None]], saw: Callable[..., None]
) -> None:
    with clients_that_keep_asking(CLIENTS, tokens=TOKENS, streams=CLIENTS // 2) as seen:
        eventually(lambda: seen.outcomes.total() >= CLIENTS, 120, "each client has asked")
        struck = time.monotonic()
        with strike():
            eventually(lambda: not all_in(), OUT_WITHIN_S, "the group is out")
            out_s = time.monotonic() - struck
        mended = time.monotonic()
        eventually(all_in, BACK_WITHIN_S, "both groups take requests again")
        back_s = time.monotonic() - mended
        eventually(lambda: seen.outcomes.total() >= REQUESTS, BACK_WITHIN_S, f"{REQUESTS} requests have ended")
    saw(fault, HERE, str(seen), out_s, back_s)
    assert not seen.lost, seen.outcomes


def test_a_frozen_worker_is_waited_for(saw: Callable[..., None]) -> None:
    with clients_that_keep_asking(CLIENTS, tokens=TOKENS, streams=CLIENTS // 2) as seen:
        eventually(lambda: seen.outcomes.total() >= CLIENTS, 120, "each client has asked")
        ssh("worker1", "systemctl", "kill", "--signal=SIGSTOP", lab.UNIT)
        struck = time.monotonic()
        eventually(lambda: not stopped("worker1"), 60, "the timer of its host lets it go on")
        back_s = time.monotonic() - struck
        eventually(lambda: seen.outcomes.total() >= REQUESTS, BACK_WITHIN_S, f"{REQUESTS} requests have ended")
    saw("worker frozen", HERE, str(seen), None, back_s)
    assert set(seen.outcomes) == {"200"}, seen.outcomes


def stopped(worker: str) -> bool:
    pid = ssh(worker, "systemctl", "show", "--property=MainPID", "--value", lab.UNIT).stdout.strip()
    return "T (stopped)" in ssh(worker, "cat", f"/proc/{pid}/status", check=False).stdout


@pytest.mark.parametrize(
    ("fault", "strike", "ended"),
    [
        ("gateway frozen for 20 s", lambda: program_stopped("worker4", "haproxy"), {"200"}),
        # The gateway reaches no group either, so it takes all groups for lost, and ends the answers that they had
        # begun.
        ("gateway's host cut off for 20 s", lambda: silent("worker4", 20), {"200", BROKE_OFF}),
    ],
)
def test_a_gateway_that_says_nothing_loses_no_request(
    fault: str, strike: Callable[[], AbstractContextManager[None]], ended: set[str], saw: Callable[..., None]
) -> None:
    with clients_that_keep_asking(CLIENTS, tokens=TOKENS, streams=CLIENTS // 2) as seen:
        eventually(lambda: seen.outcomes.total() >= CLIENTS, 120, "each client has asked")
        with strike():
            pass
        mended = time.monotonic()
        eventually(client().answers, BACK_WITHIN_S, "the gateway answers")
        back_s = time.monotonic() - mended
        eventually(lambda: seen.outcomes.total() >= REQUESTS, BACK_WITHIN_S, f"{REQUESTS} requests have ended")
    saw(fault, HERE, str(seen), None, back_s)
    assert set(seen.outcomes) <= ended, seen.outcomes


def test_clients_of_a_killed_gateway_notice_at_once(saw: Callable[..., None]) -> None:
    """Requests under way end with the gateway. A client that asks again gets an answer."""
    with clients_that_keep_asking(CLIENTS, tokens=TOKENS, streams=CLIENTS // 2) as seen:
        eventually(lambda: seen.outcomes.total() >= CLIENTS, 120, "each client has asked")
        ssh("worker4", "systemctl", "kill", "--signal=SIGKILL", UNIT)
        struck = time.monotonic()
        eventually(lambda: bool(seen.lost or seen.outcomes[BROKE_OFF]), 5, "clients notice it")
        noticed_s = time.monotonic() - struck
        eventually(client().answers, 20, "the gateway answers")
        back_s = time.monotonic() - struck
        eventually(lambda: seen.outcomes["200"] >= REQUESTS, BACK_WITHIN_S, f"{REQUESTS} requests are answered")
    errors = {ended.partition(" at ")[0] for ended in seen.lost}
    saw("gateway killed", HERE, f"{seen} ({', '.join(sorted(errors))})", noticed_s, back_s)
    assert errors <= {"RemoteDisconnected", "ConnectionRefusedError", "ConnectionResetError"}, seen.outcomes


def test_a_group_that_is_lost_leaves_within_three_seconds() -> None:
    ssh("worker3", "systemctl", "kill", "--signal=SIGKILL", API_UNIT)
    eventually(lambda: states().get("b", "UP") != "UP", 3, "the group is out")
