# SPDX-License-Identifier: GPL-3.0-or-later
"""The description of its groups that a gateway gets."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.filter.gateway_groups import gateway_groups
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.tunnel import address_of

FAR: dict[str, Any] = {"llama_server_bind_address": "10.0.0.1", "llama_server_alias": "noise"}


def test_a_master_is_described_by_what_its_role_takes() -> None:
    hosts = {
        "m1": {**FAR, "llama_group": "a", "llama_server_parallel": 8},
        "m2": {
            "llama_server_bind_address": "0.0.0.0",
            "ansible_host": "10.0.0.2",
            "llama_server_port": "9000",
            "llama_server_ready_port": 9100,
            "gguf_model_path": "/srv/models/big-00001-of-00003.gguf",
        },
        "m3": {"gguf_model_path": "/srv/models/small.gguf"},
    }
    assert gateway_groups(["m1", "m2", "m3"], hosts, "m3") == [
        {"name": "a", "model": "noise", "address": "10.0.0.1", "port": 8080, "ready_port": 8081, "slots": 8},
        {"name": "m2", "model": "big", "address": "10.0.0.2", "port": 9000, "ready_port": 9100, "slots": 4},
        {"name": "m3", "model": "small", "address": "127.0.0.1", "port": 8080, "ready_port": 8081, "slots": 4},
    ]


ON: dict[str, Any] = {"rpc_tunnel_enabled": True, "llama_server_alias": "noise"}


def addresses(hosts: dict[str, Any], gateway: str, gateways: list[str]) -> list[str]:
    masters = [name for name in hosts if name.startswith("m")]
    return [group["address"] for group in gateway_groups(masters, hosts, gateway, gateways)]


def test_gateways_in_the_tunnel_reach_masters_there_and_others_as_before() -> None:
    hosts = {"m1": ON, "m2": FAR, "g": {"rpc_tunnel_enabled": True}}
    assert addresses(hosts, "g", ["g"]) == [address_of("m1"), "10.0.0.1"]
    hosts = {"m1": {**ON, **FAR}, "g": {}}
    assert addresses(hosts, "g", ["g"]) == ["10.0.0.1"], "this gateway has no tunnel"
    hosts = {"m1": ON, "m2": ON}
    assert addresses(hosts, "m1", ["m1"]) == ["127.0.0.1", address_of("m2")], "m1 is the only gateway, and needs none"
    assert addresses(hosts, "m1", ["m1", "m2"]) == [address_of("m1"), address_of("m2")]


@pytest.mark.parametrize(
    ("hosts", "sentence"),
    [
        (
            {"m": {"llama_server_alias": "a"}},
            "host m, llama_server_bind_address: 127.0.0.1 is out of reach for gateway g",
        ),
        ({"m": {"llama_server_bind_address": "10.0.0.1"}}, "host m, llama_server_alias: is not set, nor is"),
        (
            {"m": {**FAR, "llama_server_bind_address": "0.0.0.0", "ansible_host": "m.example.com"}},
            "host m, llama_server_bind_address: gateway g would ask it at m.example.com, which is not an IPv4 address",
        ),
        ({"m": {**FAR, "llama_server_bind_address": "fd00::1"}}, "ask it at fd00::1, which is not an IPv4 address"),
        ({"m": {**FAR, "llama_server_port": "x"}}, "host m, llama_server_port: 'x' is not a number"),
        ({"m": FAR, "n": FAR}, "host n, llama_server_port: 10.0.0.1:8080 is the API of m, give each its own port"),
        (
            {"m": {**ON, "llama_server_bind_address": "0.0.0.0"}, "g": ON, "h": ON},
            "host m, llama_server_bind_address: 0.0.0.0 is not where gateways in the tunnel reach it, which is ",
        ),
        (
            {"m": ON, "g": {}, "h": ON},
            "host g, rpc_tunnel_enabled: other gateways have it, and m listens in the tunnel alone",
        ),
    ],
)
def test_what_cannot_be_is_said(hosts: dict[str, Any], sentence: str) -> None:
    masters = [name for name in hosts if name in ("m", "n")]
    with pytest.raises(AnsibleFilterError) as raised:
        gateway_groups(masters, hosts, "g", ["g", "h"] if "h" in hosts else [])
    assert sentence in str(raised.value)
