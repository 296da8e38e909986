# SPDX-License-Identifier: GPL-3.0-or-later
"""The arguments of split_plan_info for an inventory, or the reason why there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.filter.split_plan_arguments import FilterModule

if TYPE_CHECKING:
    from collections.abc import Sequence

split_plan_arguments = FilterModule().filters()["split_plan_arguments"]

GIB = 1 << 30
MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1000000 kB\nMemAvailable:    8388608 kB\n"
HOSTS: dict[str, dict[str, Any]] = {
    "w1": {"ansible_host": "192.0.2.1"},
    "w2": {"ansible_host": "192.0.2.2", "rpc_server_memory_max": "4G"},
    "w3": {
        "ansible_host": "192.0.2.3",
        "rpc_server_memory_max": "50%",
        "rpc_server_instances": [{"port": 1}, {"port": 2, "memory_max": "1.5G"}],
    },
}
OPTIONS = ("batch_size", "ubatch_size", "cache_type_k", "cache_type_v", "flash_attn", "split_mode")
ENDPOINTS = ("192.0.2.1:50052", "192.0.2.2:50052", "192.0.2.3:1", "192.0.2.3:2")


def asked(endpoints: Sequence[str] = ENDPOINTS, **given: Any) -> dict[str, Any]:
    usual = {"hosts": list(HOSTS), "meminfo": dict.fromkeys([*HOSTS, "m"], MEMINFO), "master": "m"}
    result: dict[str, Any] = split_plan_arguments(endpoints, HOSTS, **{**usual, **given})
    return result


def test_hosts_share_their_memory_and_limits_are_the_workers() -> None:
    result = asked()
    assert result["skipped"] == ""
    assert [(it["endpoint"], it["host"], it["memory_max_bytes"]) for it in result["workers"]] == [
        ("192.0.2.1:50052", "w1", None),
        ("192.0.2.2:50052", "w2", 4 * GIB),
        ("192.0.2.3:1", "w3", 8 * GIB),
        ("192.0.2.3:2", "w3", GIB * 3 // 2),
    ]
    assert {it["memory_available_bytes"] for it in result["workers"]} == {8 * GIB}
    assert (result["master_memory_available_bytes"], result["master_host"]) == (8 * GIB, "m")


def test_the_order_is_that_of_the_endpoints() -> None:
    assert [it["endpoint"] for it in asked(ENDPOINTS[::-1])["workers"]] == list(ENDPOINTS[::-1])


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("", None), ("infinity", None), ("1024", 1024), ("512M", 512 << 20), ("2t", 2 << 40), ("90%", 16 * GIB * 9 // 10)],
)
def test_limits_are_read_as_systemd_reads_them(limit: str, expected: int | None) -> None:
    hosts = {"w": {"rpc_server_memory_max": limit}}
    result = split_plan_arguments(["w:50052"], hosts, hosts=["w"], meminfo={"w": MEMINFO})
    assert result["workers"][0]["memory_max_bytes"] == expected


def shared(held: dict[int, int], available: int, group: str, limits: dict[int, str] | None = None) -> dict[str, Any]:
    """Return the arguments for a group's worker on a host of two groups; `held` and `available` are GiB."""
    instances = [{"port": 1, "group": "a"}, {"port": 2, "group": "b"}]
    hosts = {
        "w": {"rpc_server_instances": [{**it, "memory_max": (limits or {}).get(it["port"], "")} for it in instances]}
    }
    lines = "".join(f"llama-rpc-server@{port}:   {size << 20} kB\n" for port, size in held.items())
    text = f"MemTotal: {16 << 20} kB\nMemAvailable: {available << 20} kB\n{lines}"
    endpoint = {"a": "w:1", "b": "w:2"}[group]
    result: dict[str, Any] = split_plan_arguments([endpoint], hosts, hosts=["w"], meminfo={"w": text})
    return result


@pytest.mark.parametrize(
    ("held", "available", "limits", "expected"),
    [
        ({}, 12, {}, 6),
        ({1: 0}, 12, {}, 6),
        # It makes no difference how much of its share the neighbour holds.
        ({1: 4}, 8, {}, 6),
        ({1: 6}, 6, {}, 6),
        # Without a limit, the neighbour may have taken more.
        ({1: 8}, 4, {}, 4),
        ({}, 12, {1: "8G"}, 4),
        ({1: 5}, 7, {1: "8G"}, 4),
        ({}, 12, {1: "8G", 2: "1G"}, 4),
        ({}, 12, {2: "2G"}, 2),
        ({}, 12, {1: "16G"}, 0),
    ],
)
def test_a_plan_leaves_the_other_group_its_share_of_the_host(
    held: dict[int, int], available: int, limits: dict[int, str], expected: int
) -> None:
    result = shared(held, available, "b", limits)
    assert result["skipped"] == ""
    assert result["workers"][0]["memory_available_bytes"] == expected * GIB


@pytest.mark.parametrize("available", [0, 3, 12])
def test_two_plans_never_count_on_more_than_there_is(available: int) -> None:
    counted = [shared({}, available, group)["workers"][0]["memory_available_bytes"] for group in "ab"]
    assert sum(counted) == available * GIB


def test_what_is_left_to_the_other_group_is_said() -> None:
    (said,) = shared({1: 2}, 10, "b")["left"]
    assert said.startswith("On w the plan leaves 4.0 GiB to group a, which shares that host: memory_max in rpc_server_")
    assert asked()["left"] == []


def test_memory_that_is_told_goes_before_what_is_read() -> None:
    told = {"192.0.2.1:50052": GIB, "198.51.100.1:50052": "2048"}
    result = asked(["192.0.2.1:50052", "198.51.100.1:50052"], given=told)
    assert result["skipped"] == ""
    assert result["workers"] == [
        {"endpoint": "192.0.2.1:50052", "memory_available_bytes": GIB},
        {"endpoint": "198.51.100.1:50052", "memory_available_bytes": 2048},
    ]


def test_options_are_told_with_and_without_workers() -> None:
    # playbooks/tasks/benchmark/measure_cluster.yml calls it in the first way.
    words = ["-sm", "tensor", "--flash-attn", "off", "-ub", "64", "-b", "many", "-nkvo", "-ctk"]
    for result in (split_plan_arguments([], {}, extra_args=words), asked(extra_args=words)):
        told = {"split_mode": "tensor", "flash_attn": "off", "ubatch_size": 64}
        assert {name: result[name] for name in OPTIONS if result[name] is not None} == told
        assert result["skipped"] == ""


def test_the_devices_of_a_worker_count() -> None:
    statuses = [
        {"endpoint": "192.0.2.1:50052", "devices": [{}, {}]},
        {"endpoint": "192.0.2.2:50052", "devices": [{}]},
        {"endpoint": "192.0.2.3:1", "devices": None},
        {"endpoint": "198.51.100.1:50052", "devices": [{}, {}, {}]},
    ]
    assert [it.get("devices") for it in asked(statuses=statuses)["workers"]] == [2, None, None, None]


SKIPPED: dict[str, tuple[dict[str, Any], str]] = {
    "known by its endpoint": (
        {"endpoints": ["198.51.100.1:50052"]},
        "198.51.100.1:50052 is not a host of the inventory",
    ),
    "a host that cannot be asked": ({"meminfo": {"w1": MEMINFO}}, "the memory of host w2 could not be read"),
    "no Linux": ({"meminfo": dict.fromkeys(HOSTS, "")}, "no MemAvailable"),
}


@pytest.mark.parametrize(("given", "said"), SKIPPED.values(), ids=SKIPPED)
def test_it_is_said_why_there_is_no_plan(given: dict[str, Any], said: str) -> None:
    sentence = asked(**given)["skipped"]
    assert said in sentence
    assert sentence.startswith("The model is not planned before it is loaded, since ")
    assert sentence.endswith(".")


def test_a_limit_that_is_no_size_is_said() -> None:
    hosts = {"w": {"rpc_server_memory_max": "lots"}}
    result = split_plan_arguments(["w:50052"], hosts, hosts=["w"], meminfo={"w": MEMINFO})
    assert "rpc_server_memory_max lots is not a size" in result["skipped"]
