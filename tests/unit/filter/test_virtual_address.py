# SPDX-License-Identifier: GPL-3.0-or-later
"""An address that moves among gateways: its settings, and the problems with it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.filter.virtual_address import virtual_address

BOTH = ["g1", "g2"]


def hosts(**changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return two gateways and another host; `changes` take precedence."""
    ipv4 = {"address": "10.0.0.9", "netmask": "255.255.255.0"}
    second = {"address": "10.0.1.1", "netmask": "255.255.254.0"}
    facts = {
        "eth_0": {"device": "eth-0", "ipv4": ipv4, "ipv4_secondaries": [second]},
        "all_ipv4_addresses": ["10.0.1.1"],
    }
    found: dict[str, dict[str, Any]] = {
        "g1": {"llama_gateway_bind_address": "10.0.1.1", "ansible_facts": facts},
        "g2": {"llama_gateway_bind_address": "10.0.1.2", "llama_gateway_virtual_address": "10.0.1.0"},
        "master": {"ansible_host": "10.0.1.10", "ansible_facts": {"all_ipv4_addresses": ["10.0.1.11"]}},
    }
    return {name: {**variables, **changes.get(name, {})} for name, variables in found.items()}


def test_it_is_in_the_network_of_the_gateways_own_address() -> None:
    expected = {"address": "10.0.1.0", "interface": "eth-0", "peers": ["10.0.1.2"], "router_id": 255, "problems": []}
    assert virtual_address("10.0.1.0", hosts(), "g1", BOTH) == expected
    assert virtual_address("10.0.1.0/23", hosts(), "g1", BOTH) == expected
    # Before the first look at the host there are no facts.
    assert virtual_address("10.0.1.0", hosts(g1={"ansible_facts": {}}), "g1", BOTH) == {**expected, "interface": ""}
    assert virtual_address("", {}, "g1", [])["problems"] == []


@pytest.mark.parametrize(
    ("value", "changes", "gateways", "sentence"),
    [
        ("fd00::1", {}, BOTH, "give an IPv4 address that no host has"),
        ("10.0.1.0", {}, ["g1"], "put two or more hosts into llama_gateways"),
        ("10.0.2.4", {}, BOTH, "not an address of a host in 10.0.0.0/23, the network of g1's eth-0"),
        ("10.0.1.255", {}, BOTH, "not an address of a host in 10.0.0.0/23"),
        ("10.0.1.0/24", {}, BOTH, "has /24, and the network of g1's eth-0 is 10.0.0.0/23: leave the prefix out"),
        ("10.0.1.2", {}, BOTH, "an address of g2: give one that no host has"),
        ("10.0.1.10", {}, BOTH, "an address of master"),
        ("10.0.1.11", {}, BOTH, "an address of master"),
        ("10.0.1.4", {}, BOTH, "10.0.1.4 for g1 and 10.0.1.0 for g2: give all gateways the same"),
        ("10.0.1.0", {"g2": {"llama_gateway_virtual_address": ""}}, BOTH, "for g1 and empty for g2"),
        ("10.0.1.0", {"g2": {"llama_gateway_bind_address": "0.0.0.0"}}, BOTH, "g2 has no llama_gateway_bind_address"),
        ("10.0.1.0", {"g2": {"llama_gateway_bind_address": "10.0.1.1"}}, BOTH, "g2 has no llama_gateway_bind_address"),
        ("10.0.1.0", {"g1": {"llama_gateway_bind_address": ""}}, BOTH, "g1 has no llama_gateway_bind_address"),
    ],
)
def test_what_speaks_against_it_is_said(
    value: str, changes: dict[str, dict[str, Any]], gateways: list[str], sentence: str
) -> None:
    assert sentence in " ".join(virtual_address(value, hosts(**changes), "g1", gateways)["problems"])
