# SPDX-License-Identifier: GPL-3.0-or-later
"""The obstacles to RPC servers on a host, and the parts of their units that are as wanted."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.filter.rpc_server_comparison import rpc_server_comparison

NAME = "llama-rpc-server@50052.service"
TEXT = "[Service]\nEnvironment=UNIT=@digest@\n"
DIGEST = hashlib.sha256(TEXT.strip().encode()).hexdigest()[:16]
FILE = f"[Service]\nEnvironment=UNIT={DIGEST}\n"
TIMER = "llama-rpc-cache@50052.timer"


def unit(name: str = NAME, text: str = FILE, **changes: Any) -> dict[str, Any]:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {
        "name": name,
        "sha256": digest,
        "mode": "0644",
        "uid": 0,
        "gid": 0,
        "enabled": True,
        "active": True,
        **changes,
    }


def listener(**changes: Any) -> dict[str, Any]:
    program = "/opt/llama_cpp/releases/new/bin/rpc-server"
    return {"unit": NAME, "unit_digest": DIGEST, "program": program, "address": "192.0.2.1", "pid": 7, **changes}


def look(*listeners: list[Any], **changes: Any) -> dict[str, Any]:
    """Return the state of a host, with the listeners on the port of each server."""
    return {
        "servers": [{"listeners": found, "clients": ["192.0.2.9:1"], "state": "ready"} for found in listeners],
        "cores": [{"problem": None, "usable_cores": 4} for _found in listeners],
        "units": [],
        "timed_units": [],
        "release": {"id": "new"},
        **changes,
    }


def compared(
    units: list[Any], listeners: list[Any], timed_units: list[Any] | None = None, **timed: str
) -> dict[str, Any]:
    wanted = [{"port": 50052, "address": "192.0.2.1", "threads": "auto"}]
    found = look(listeners, units=units, timed_units=timed_units or [])
    return rpc_server_comparison(wanted, found, host="w", texts=[TEXT], timed=timed)


@pytest.mark.parametrize(
    ("units", "listeners", "there", "enabled", "running"),
    [
        pytest.param([], [], False, False, False, id="clean-host"),
        pytest.param([unit()], [listener()], True, True, True, id="as-wanted"),
        pytest.param([unit(enabled=False)], [listener()], True, False, True, id="not-enabled"),
        pytest.param([unit()], [], True, True, False, id="stopped"),
        pytest.param([unit(text="other")], [listener()], False, True, False, id="another-text"),
        pytest.param([unit(mode="0666")], [listener()], False, True, True, id="others-may-write-it"),
        pytest.param([unit(uid=1000)], [listener()], False, True, True, id="not-of-root"),
        pytest.param([unit()], [listener(unit_digest="0" * 16)], True, True, False, id="started-from-another-unit"),
        pytest.param(
            [unit()], [listener(program="/srv/releases/old/bin/rpc-server")], True, True, False, id="old-release"
        ),
        pytest.param(
            [unit()], [listener(program="/srv/bin/rpc-server")], True, True, True, id="no-release-in-its-path"
        ),
        pytest.param([unit()], [listener(program=None)], True, True, True, id="program-not-seen"),
        pytest.param([unit()], [listener(unit="nc.service")], True, True, False, id="something-else-listens"),
    ],
)
def test_a_server_runs_from_its_unit(
    units: list[Any], listeners: list[Any], there: bool, enabled: bool, running: bool
) -> None:
    assert compared(units, listeners)["servers"] == [
        {
            "name": NAME, "port": 50052, "address": "192.0.2.1", "text": FILE, "there": there, "enabled": enabled,
            "running": running, "clients": ["192.0.2.9:1"], "state": "ready",
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("units", "there", "active"),
    [
        pytest.param([], False, False, id="clean-host"),
        pytest.param([unit(TIMER, "[Timer]\n")], True, True, id="as-wanted"),
        pytest.param([unit(TIMER, "[Timer]\n", active=False)], True, False, id="stopped"),
        pytest.param([unit(TIMER, "other\n")], False, False, id="another-text"),
    ],
)
def test_a_timer_that_differs_counts_as_stopped(units: list[Any], there: bool, active: bool) -> None:
    found = compared([], [], units, **{TIMER: "\n[Timer]\n"})["timed"]
    assert found == [{"name": TIMER, "timer": TIMER, "text": "[Timer]\n", "there": there, "active": active}]


def test_a_service_has_the_timer_of_its_name() -> None:
    (service,) = compared([], [], **{"llama-rpc-cache@50052.service": "[Service]"})["timed"]
    assert service["timer"] == TIMER


TAKEN = "Port 50052 of w is taken by {} (pid {}, {}): stop it, or give rpc_server_port another number."


def stranger(
    unit: str | None, address: str = "192.0.2.1", pid: int | None = 7, program: str | None = "/usr/bin/nc"
) -> Any:
    return {"unit": unit, "address": address, "pid": pid, "program": program}


def problems(address: str = "192.0.2.1", threads: Any = "auto", found: Any = (), **cores: Any) -> dict[str, list[str]]:
    wanted = [{"port": 50052, "address": address, "threads": threads}]
    there = look(list(found), cores=[{"problem": None, "usable_cores": 4, **cores}])
    return rpc_server_comparison(wanted, there, host="w")


@pytest.mark.parametrize(
    ("address", "found", "sentences"),
    [
        pytest.param("192.0.2.1", [], [], id="free"),
        pytest.param("192.0.2.1", [stranger(NAME)], [], id="its-own"),
        pytest.param("192.0.2.1", [stranger("nc.service")], [TAKEN.format("/usr/bin/nc", 7, "nc.service")], id="taken"),
        pytest.param("192.0.2.1", [stranger(None, "192.0.2.9")], [], id="at-another-address"),
        pytest.param(
            "192.0.2.1",
            [stranger(None, "::", None, None)],
            [TAKEN.format("a program that cannot be seen", "unknown", "no service")],
            id="everywhere",
        ),
        pytest.param(
            "0.0.0.0", [stranger(None, "127.0.0.1")], [TAKEN.format("/usr/bin/nc", 7, "no service")], id="any-address"
        ),
    ],
)
def test_a_port_that_something_else_has_is_named(address: str, found: list[Any], sentences: list[str]) -> None:
    assert problems(address, found=found) == {"ports": sentences, "cores": [], "servers": [], "timed": []}


@pytest.mark.parametrize(
    ("threads", "cores", "begin"),
    [
        pytest.param("auto", {}, "", id="auto"),
        pytest.param("4", {}, "", id="all-cores"),
        pytest.param(5, {}, "rpc_server_threads 5: w has 4 usable cores for it, and more threads", id="too-many"),
        pytest.param(
            "auto", {"problem": "there is no core 9"}, "rpc_server_instances, port 50052: there is no core 9.", id="set"
        ),
    ],
)
def test_threads_without_cores_are_named(threads: Any, cores: dict[str, Any], begin: str) -> None:
    found = problems(threads=threads, **cores)
    assert found["ports"] == []
    assert len(found["cores"]) == bool(begin)
    assert "".join(found["cores"]).startswith(begin)


def test_several_servers_have_their_settings_in_one_variable() -> None:
    wanted = [{"port": port, "address": "192.0.2.1", "threads": 1} for port in (50052, 50053)]
    (sentence,) = rpc_server_comparison(wanted, look([], [stranger(None)]), host="w", setting="rpc_server_instances, ")[
        "ports"
    ]
    assert sentence.startswith("Port 50053 of w ")
    assert "give rpc_server_instances, port another" in sentence


def test_something_else_than_servers_is_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="needs lists of servers"):
        rpc_server_comparison([], [], host="w")  # type: ignore[arg-type]
