# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter that finds the links between the two workers of groups."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.filter.rpc_links import FilterModule

rpc_links = FilterModule().filters()["rpc_links"]

LINKED = {"rpc_server_link": True}
A = {**LINKED, "rpc_server_address": "10.0.0.1"}
B = {**LINKED, "rpc_server_address": "10.0.0.2", "rpc_server_port": 50060}


def test_each_worker_has_the_other_one_at_the_other_end() -> None:
    (link,) = rpc_links(["a", "b"], {"a": A, "b": B}, "a")
    assert link == {
        "worker_port": 50052, "port": 51052, "own": "10.0.0.1:51052", "other": "10.0.0.2:51060",
        "peer": "b", "address": "10.0.0.2",
    }  # fmt: skip
    (back,) = rpc_links(["a", "b"], {"a": A, "b": B}, "b")
    assert (back["own"], back["other"]) == (link["other"], link["own"])


def test_each_group_of_a_host_has_its_own() -> None:
    two = [{"port": 50052, "group": "x"}, {"port": 50053, "group": "y"}]
    hosts = {
        name: {**A, "rpc_server_address": f"10.0.0.{n}", "rpc_server_instances": two} for n, name in enumerate("ab")
    }
    assert [(each["own"], each["other"]) for each in rpc_links(["a", "b"], hosts, "b")] == [
        ("10.0.0.1:51052", "10.0.0.0:51052"),
        ("10.0.0.1:51053", "10.0.0.0:51053"),
    ]


@pytest.mark.parametrize("host", ["a", "no-worker"])
def test_without_the_variable_there_is_none(host: str) -> None:
    assert rpc_links(["a", "b"], {"a": {}, "b": B, "no-worker": LINKED}, host) == []


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "one worker": ({"a": A}, "host a, rpc_server_link: a link joins the two workers of a group, and this one has 1"),
    "three": ({"a": A, "b": B, "c": {**A, "rpc_server_address": "10.0.0.3"}}, "and this one has 3: unset it"),
    "one side": ({"a": A, "b": {**B, "rpc_server_link": "no"}}, "host b has no rpc_server_link, and a of the same"),
    "not a bool": ({"a": {**A, "rpc_server_link": "maybe"}, "b": B}, "host a, rpc_server_link: is neither true nor"),
    "no port left": ({"a": A, "b": {**B, "rpc_server_port": 65000}}, "it would use 10.0.0.1:51052 and 10.0.0.2:66000"),
    "a worker's port": (
        {
            "a": {**A, "llama_group": "x"},
            "b": {**B, "llama_group": "x"},
            "c": {"rpc_server_address": "10.0.0.2", "rpc_server_port": 51060},
        },
        "it would use 10.0.0.1:51052 and 10.0.0.2:51060, 1000 above the workers' ports: give them other ports",
    ),
}


@pytest.mark.parametrize(("hosts", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_linked_is_named(hosts: dict[str, Any], said: str) -> None:
    with pytest.raises(AnsibleFilterError, match=said):
        rpc_links([*hosts], hosts, "a")
