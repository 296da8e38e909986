# SPDX-License-Identifier: GPL-3.0-or-later
"""The obstacles to RPC servers on a host, and the servers that it should have with their state."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.filter.rpc_server_plan import rpc_server_plan

NAME = "llama-rpc-server@50052.service"
WANTED = {"port": 50052, "address": "192.0.2.1", "threads": "auto"}
OWN = ["192.0.2.1", "192.0.2.2"]


def look(*listeners: list[Any], **changes: Any) -> dict[str, Any]:
    """Return the state of a host, with the listeners on the port of each server."""
    return {
        "servers": [{"listeners": found, "clients": ["192.0.2.9:1"], "state": "ready"} for found in listeners],
        "cores": [{"problem": None, "usable_cores": 4, "cpus": "0-3"} for _found in listeners],
        "units": [],
        **changes,
    }


def planned(*wanted: dict[str, Any], **changes: Any) -> dict[str, list[Any]]:
    servers = [{**WANTED, **changes} for changes in wanted]
    return rpc_server_plan(servers, look(*[[] for _server in servers], **changes), host="w", addresses=OWN)


@pytest.mark.parametrize(
    ("units", "state"),
    [
        ([], {"sha256": None, "enabled": False, "running": False}),
        ([{"name": NAME, "port": 50052, "sha256": "5891", "enabled": True, "running": True}],
         {"sha256": "5891", "enabled": True, "running": True}),
    ],
    ids=["clean-host", "with-its-unit"],
)  # fmt: skip
def test_a_server_has_the_state_of_its_unit(units: list[Any], state: dict[str, Any]) -> None:
    found = {**WANTED, "name": NAME, "threads": 4, "cpus": "", "clients": ["192.0.2.9:1"], "state": "ready", **state}
    assert planned({}, units=units) == {"addresses": [], "ports": [], "cores": [], "servers": [found]}


@pytest.mark.parametrize(
    ("wanted", "threads", "cpus"),
    [
        ([{}], [4], [""]),
        ([{"threads": 3}], [3], [""]),
        ([{}, {"port": 50053}], [2, 2], ["", ""]),
        ([{}] * 5, [1] * 5, [""] * 5),
        ([{}, {"port": 50053, "numa_node": 0}], [4, 4], ["", "0-3"]),
        ([{"cpu_affinity": "0-3"}], [4], ["0-3"]),
    ],
    ids=["auto", "given", "shared", "more-servers-than-cores", "one-is-pinned", "pinned"],
)
def test_servers_that_are_not_pinned_share_the_cores(
    wanted: list[dict[str, Any]], threads: list[int], cpus: list[str]
) -> None:
    servers = planned(*wanted)["servers"]
    assert [server["threads"] for server in servers] == threads
    assert [server["cpus"] for server in servers] == cpus


@pytest.mark.parametrize("address", ["192.0.2.2", "0.0.0.0", "127.0.0.1"])
def test_a_server_listens_on_an_address_of_the_host(address: str) -> None:
    assert planned({"address": address})["addresses"] == []


def test_an_address_that_the_host_does_not_have_is_named_once() -> None:
    assert planned({"address": "192.0.2.3"}, {"address": "192.0.2.3"})["addresses"] == [
        "rpc_server_bind_address 192.0.2.3 is not an address of w, which has 192.0.2.1, 192.0.2.2."
    ]


TAKEN = "Port 50052 of w is taken by {} (pid {}, {}): stop it, or give rpc_server_port another number."


def stranger(
    unit: str | None, address: str = "192.0.2.1", pid: int | None = 7, program: str | None = "/usr/bin/nc"
) -> Any:
    return {"unit": unit, "address": address, "pid": pid, "program": program}


def problems(address: str = "192.0.2.1", threads: Any = "auto", found: Any = (), **cores: Any) -> dict[str, list[str]]:
    wanted = [{"port": 50052, "address": address, "threads": threads}]
    there = look(list(found), cores=[{"problem": None, "usable_cores": 4, "cpus": "0-3", **cores}])
    return rpc_server_plan(wanted, there, host="w", addresses=OWN)


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
    plan = problems(address, found=found)
    assert (plan["ports"], plan["cores"]) == (sentences, [])


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
    plan = rpc_server_plan(wanted, look([], [stranger(None)]), host="w", setting="rpc_server_instances, ")
    (sentence,) = plan["ports"]
    assert sentence.startswith("Port 50053 of w ")
    assert "give rpc_server_instances, port another" in sentence


def test_something_else_than_servers_is_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="needs a list of servers"):
        rpc_server_plan([], [], host="w")  # type: ignore[arg-type]
