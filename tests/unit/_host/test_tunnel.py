# SPDX-License-Identifier: GPL-3.0-or-later
"""Which address a host has in the tunnel, what a host says of it, and what is said of a link."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.filter.rpc_endpoints import rpc_endpoints
from ansible_collections.llama_cpp.cluster.plugins.filter.tunnel_addresses import tunnel_addresses
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host import tunnel
from jinja2 import Template

from support.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

ON: dict[str, Any] = {"rpc_tunnel_enabled": True}
LINK = {
    "host": "worker1", "address": "10.213.1.1", "endpoint": "10.0.0.11:51820", "handshake_age_s": 7,
    "received_bytes": 1, "sent_bytes": 1, "round_trip_ms": 0.4, "through_tunnel": True, "connections": 0,
}  # fmt: skip


def test_an_address_stays_and_is_a_hosts_own() -> None:
    # Another one would cut off clusters that have it.
    assert tunnel.address_of("worker1") == "10.213.174.239"
    smallest = {tunnel.address_of(f"w{number}", "192.168.7.0/30") for number in range(40)}
    assert smallest == {"192.168.7.1", "192.168.7.2"}
    assert tunnel.address_of("worker1", address="10.213.0.9") == "10.213.0.9"


@pytest.mark.parametrize(
    ("network", "address", "said"),
    [
        ("8.8.0.0/16", "", "not private"),
        ("10.0.0.0/31", "", "smaller than a /30"),
        ("10.0.0.1/16", "", "is no IPv4 network"),
        ("10.9.0.0/16", "10.8.0.1", "no host's address in 10.9.0.0/16"),
        ("10.9.0.0/16", "10.9.255.255", "no host's address"),
        ("10.9.0.0/16", "node1", "is no IPv4 address"),
    ],
)
def test_a_wrong_address_is_refused(network: str, address: str, said: str) -> None:
    with pytest.raises(tunnel.TunnelError, match=said):
        tunnel.address_of("worker1", network, address)


def test_workers_with_a_tunnel_are_reached_in_it() -> None:
    hosts = {"a": {**ON, "ansible_host": "10.0.0.1", "rpc_server_bind_address": "10.0.0.1"}, "b": {"ansible_host": "b"}}
    assert rpc_endpoints(hosts, hosts) == [f"{tunnel.address_of('a')}:50052", "b:50052"]
    assert tunnel_addresses(list(hosts), hosts) == {"a": tunnel.address_of("a")}


def test_two_hosts_with_one_address_are_named() -> None:
    hosts = {name: {**ON, "rpc_tunnel_address": "10.213.0.9"} for name in ("a", "b")}
    with pytest.raises(AnsibleFilterError, match=r"hosts a and b both have 10\.213\.0\.9"):
        tunnel_addresses(list(hosts), hosts)


def test_the_role_and_the_code_mean_the_same_network() -> None:
    defaults = yaml.safe_load((ROOT / "roles/rpc_tunnel/defaults/main.yml").read_text())
    assert defaults["rpc_tunnel_network"] == tunnel.NETWORK


def test_another_way_into_the_network_is_found() -> None:
    routes = (
        "default via 10.0.0.1 dev eth0\n10.0.0.0/24 dev eth0 proto kernel\n10.213.7.0/24 dev eth1 proto kernel\n"
        "10.213.0.0/16 dev llama-tunnel proto kernel\n10.0.0.0/8 via 10.0.0.9 dev eth0\nblackhole 10.213.0.0/16\n"
    )
    assert tunnel.overlapping("10.213.0.0/16", routes) == ["10.213.7.0/24 dev eth1", "10.0.0.0/8 via 10.0.0.9"]


def test_the_kernel_has_wireguard_if_a_list_of_modules_or_the_kernel_says_so(tmp_path: Path) -> None:
    folder = tmp_path / os.uname().release
    folder.mkdir()
    assert not tunnel.has_kernel(tmp_path, tmp_path / "none")
    assert tunnel.has_kernel(tmp_path, tmp_path)
    (folder / "modules.dep").write_text("kernel/drivers/net/wireguard/wireguard.ko.xz: kernel/net/udp_tunnel.ko\n")
    assert tunnel.has_kernel(tmp_path, tmp_path / "none")


def test_what_wg_prints_is_read_without_the_private_key() -> None:
    # As wireguard-tools 1.0.20210914 prints it.
    text = "PRIVATE\tOWN\t51820\toff\nPEER\t(none)\t10.0.0.11:51820\t10.213.1.1/32\t1764038400\t92\t180\t25\n"
    assert tunnel.parse_dump(text) == {"PEER": {"handshake": 1764038400, "received": 92, "sent": 180}}


@pytest.mark.parametrize("key", ["", "mPgJXSLqk2T1bIlTT3dCzBoVkiY+nSwvbo4JmRyWqHw="])
def test_what_the_role_writes_is_read_again_without_the_preshared_key(key: str) -> None:
    kept = {"host": "worker2", "public_key": "K2", "address": "10.213.1.2", "endpoint": "10.0.0.12:51820"}
    known = {"__rpc_tunnel_public_key": "K1", "__rpc_tunnel_own_endpoints": {"master": "10.0.0.11"}}
    template = ROOT / "roles/rpc_tunnel/templates/llama-tunnel.conf.j2"
    text = Template(template.read_text(), trim_blocks=True).render(
        inventory_hostname="master",
        hostvars={"worker1": known},
        rpc_tunnel_network=tunnel.NETWORK,
        rpc_tunnel_port=51820,
        rpc_tunnel_preshared_key=key,
        __rpc_tunnel_key="/key",
        __rpc_tunnel_route_mark=213,
        __rpc_tunnel_addresses={"master": "10.213.1.9", "worker1": "10.213.1.1"},
        __rpc_tunnel_present=["worker1"],
        __rpc_tunnel_kept=[kept],
    )
    # A reload takes a key away by one of zeros alone.
    assert text.count(f"PresharedKey = {key or 'A' * 43 + '='}\n") == 2
    assert tunnel.parse_config(text) == {
        "address": "10.213.1.9/16",
        "peers": [
            {"host": "worker1", "public_key": "K1", "address": "10.213.1.1", "endpoint": "10.0.0.11:51820"},
            kept,
        ],
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"round_trip_ms": None}, "is down, the last handshake was 7 s ago"),
        ({"round_trip_ms": None, "handshake_age_s": None}, "is down, there was no handshake yet"),
        ({"through_tunnel": False}, "does not lead into the tunnel"),
    ],
)
def test_a_link_that_is_down_is_said_to_be(change: dict[str, Any], said: str) -> None:
    message = tunnel.message({**LINK, **change})
    assert said in message if said else message == ""
