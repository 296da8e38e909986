# SPDX-License-Identifier: GPL-3.0-or-later
"""The address of a host in the tunnel, the state that a host reports, and the messages about a link."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.filter.cluster_problems import cluster_problems
from ansible_collections.llama_cpp.cluster.plugins.filter.rpc_endpoints import rpc_endpoints
from ansible_collections.llama_cpp.cluster.plugins.filter.tunnel_addresses import tunnel_addresses
from ansible_collections.llama_cpp.cluster.plugins.filter.tunnel_peers import tunnel_peers
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host import tunnel
from jinja2 import StrictUndefined, Template

from support.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

ON: dict[str, Any] = {"rpc_tunnel_enabled": True}
LINK = {
    "host": "worker1", "address": "10.213.1.1", "endpoint": "10.0.0.11:51820", "handshake_age_s": 7,
    "received_bytes": 1, "sent_bytes": 1, "round_trip_ms": 0.4, "through_tunnel": True, "connections": 0,
}  # fmt: skip


def test_an_address_stays_and_is_a_hosts_own() -> None:
    # Another address would cut off existing clusters.
    assert tunnel.address_of("worker1") == "10.213.174.239"
    smallest = {tunnel.address_of(f"w{number}", "192.168.7.0/30") for number in range(40)}
    assert smallest == {"192.168.7.1", "192.168.7.2"}
    assert tunnel.address_of("worker1", address="10.213.0.9") == "10.213.0.9"


@pytest.mark.parametrize(
    ("network", "address", "said"),
    [
        *((network, "", "not private") for network in ("8.8.0.0/16", "0.0.0.0/0", "127.0.0.0/16", "10.0.0.0/7")),
        ("10.0.0.0/31", "", "smaller than a /30"),
        ("10.0.0.1/16", "", "is not an IPv4 network"),
        ("10.9.0.0/16", "10.8.0.1", "is not a host address of 10.9.0.0/16"),
        ("10.9.0.0/16", "10.9.255.255", "is not a host address"),
        ("10.9.0.0/16", "node1", "is not an IPv4 address"),
    ],
)
def test_a_wrong_address_is_refused(network: str, address: str, said: str) -> None:
    with pytest.raises(tunnel.TunnelError, match=said):
        tunnel.address_of("worker1", network, address)


def test_workers_with_a_tunnel_are_reached_in_it() -> None:
    hosts = {"a": {**ON, "ansible_host": "10.0.0.1", "rpc_server_bind_address": "10.0.0.1"}, "b": {"ansible_host": "b"}}
    assert rpc_endpoints(hosts, hosts) == [f"{tunnel.address_of('a')}:50052", "b:50052"]
    assert tunnel_addresses(list(hosts), hosts) == {"a": tunnel.address_of("a")}


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ({"address": "10.213.0.9"}, {"address": "10.213.0.9"}, "hosts a and b both have 10.213.0.9"),
        ({"network": "10.9.0.0/16"}, {}, "rpc_tunnel_network of a is 10.9.0.0/16, and that of b is 10.213.0.0/16"),
        ({}, {"network": "10.9.0.0"}, "host b: rpc_tunnel_network 10.9.0.0 is"),
        ({}, {"endpoint": "fd00::1"}, "host b: rpc_tunnel_endpoint fd00::1 is neither an IPv4 address nor a name"),
        ({}, {"endpoint": "b.example:51820"}, "host b: rpc_tunnel_endpoint b.example:51820 is neither an IPv4 addr"),
        ({}, {"endpoint": "10.213.0.7"}, "host b: rpc_tunnel_endpoint 10.213.0.7 is an address of rpc_tunn"),
    ],
)
def test_hosts_that_can_share_no_tunnel_are_named_once(a: dict[str, str], b: dict[str, str], said: str) -> None:
    hosts = {
        name: {**ON, **{f"rpc_tunnel_{key}": value for key, value in given.items()}}
        for name, given in (("a", a), ("b", b))
    }
    (problem,) = [it for it in cluster_problems(["b"], hosts, ["a"]) if "tunnel" in it or "10." in it]
    assert problem.startswith(said)


def test_a_network_is_no_endpoint() -> None:
    hosts = {"a": {**ON, "rpc_firewall_source_addresses": ["10.0.0.0/24", "10.0.0.7"]}, "b": ON}
    (problem,) = [it for it in cluster_problems(["b"], hosts, ["a"]) if "10.0" in it]
    assert problem.startswith("host a: the first of rpc_firewall_source_addresses, 10.0.0.0/24 is neither an IPv4 addr")


def test_hosts_that_can_share_a_tunnel_are_not_refused() -> None:
    hosts = {
        "a": {**ON, "rpc_firewall_source_addresses": ["203.0.113.7", "10.0.0.0/24"]},
        "b": {**ON, "rpc_tunnel_endpoint": "b.example", "rpc_tunnel_port": 51821},
        "c": {**ON, "rpc_tunnel_endpoint": StrictUndefined(name="ansible_facts")},
    }
    assert cluster_problems(["b", "c"], hosts, ["a"]) == []


def test_the_role_and_the_code_mean_the_same_network() -> None:
    defaults = yaml.safe_load((ROOT / "roles/rpc_tunnel/defaults/main.yml").read_text())
    assert defaults["rpc_tunnel_network"] == tunnel.NETWORK


def test_another_way_into_the_network_is_found() -> None:
    routes = (
        "default via 10.0.0.1 dev eth0\n10.0.0.0/24 dev eth0 proto kernel\n10.213.7.0/24 dev eth1 proto kernel\n"
        "10.213.0.0/16 dev llama-tunnel proto kernel\n10.0.0.0/8 via 10.0.0.9 dev eth0\nblackhole 10.213.0.0/16\n"
    )
    # An administrator, twice, once as an IPv6 socket shows it; a worker in the tunnel; two peers elsewhere.
    connections = (
        "0 0 10.0.0.10:22 10.213.4.4:50110\n0 0 [::ffff:10.0.0.10]:22 [::ffff:10.213.4.4]:50111\n"
        "0 0 10.213.1.9:41000 10.213.1.1:50052\n0 0 10.0.0.10:22 10.0.0.1:50112\n0 0 [fe80::1]:22 [fe80::2]:50113\n"
    )
    found = [tunnel.overlapping("10.213.0.0/16", routes), tunnel.overlapping("10.213.0.0/16", "", connections)]
    assert found == [["10.213.7.0/24 dev eth1", "10.0.0.0/8 via 10.0.0.9"], ["a connection with 10.213.4.4"]]


def test_the_kernel_has_wireguard_if_a_list_of_modules_or_the_kernel_says_so(tmp_path: Path) -> None:
    folder = tmp_path / os.uname().release
    folder.mkdir()
    assert not tunnel.has_kernel(tmp_path, tmp_path / "none")
    assert tunnel.has_kernel(tmp_path, tmp_path)
    (folder / "modules.dep").write_text("kernel/drivers/net/wireguard/wireguard.ko.xz: kernel/net/udp_tunnel.ko\n")
    assert tunnel.has_kernel(tmp_path, tmp_path / "none")


# As wireguard-tools 1.0.20210914 prints it.
DUMP = "PRIVATE\tOWN\t51820\toff\nPEER\t(none)\t10.0.0.11:51820\t10.213.1.1/32\t1764038400\t92\t180\t25\n"
CONFIG = (
    "[Interface]\nAddress = 10.213.1.9/16\nListenPort = 51820\n\n# worker1\n[Peer]\nPublicKey = PEER\n"
    f"PresharedKey = {'A' * 43}=\nAllowedIPs = 10.213.1.1/32\nEndpoint = 10.0.0.11:51820\n"
)


@pytest.mark.parametrize(
    ("config", "dump", "found"),
    [
        (CONFIG, DUMP, {}),
        (CONFIG, "", {"state": "down", "port_taken": True}),
        ("", "", {"state": "down", "port_taken": True, "same": []}),
        (CONFIG.replace("1.9/16", "1.8/16"), DUMP, {"state": "down"}),
        # The state after a run was killed between the change of a file and its use.
        (CONFIG.replace("PEER", "NEW"), DUMP, {"state": "outdated"}),
        (CONFIG.replace("= 51820", "= 51821"), DUMP, {"state": "outdated"}),
        (CONFIG, DUMP.replace("OWN", "OLD"), {"state": "outdated", "new_key": True}),
        (CONFIG, DUMP.replace("(none)", "SECRET"), {"state": "outdated", "same": [False]}),
        (CONFIG.replace("A" * 43 + "=", "SECRET"), DUMP, {"state": "outdated", "same": [False]}),
    ],
)
def test_what_runs_is_compared_with_what_was_written(
    config: str, dump: str, found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llama-tunnel.conf").write_text(config)
    (tmp_path / "llama-tunnel.key").write_text("PRIVATE")
    monkeypatch.setattr(tunnel, "FOLDER", tmp_path)

    def run(*command: str, given: str = "") -> str:
        if command[:2] == ("wg", "pubkey"):
            return f"{given.replace('PRIVATE', 'OWN')}\n"
        said = {
            "wg": dump,
            "ip": "5: llama-tunnel inet 10.213.1.9/16 scope global" * ("address" in command and bool(dump)),
        }
        return said.get(command[0], "UNCONN 0 0 0.0.0.0:51820 0.0.0.0:*" * ("-Huln" in command))

    seen = tunnel.look(run, tunnel.NETWORK, port=51820)
    seen["same"] = [peer["same_preshared_key"] for peer in seen["peers"]]
    usual = {"state": "current", "new_key": False, "port_taken": False, "same": [True]}
    assert {**seen, **usual, **found} == {**seen, "public_key": "OWN"}
    assert "SECRET" not in str(seen)
    assert "PRIVATE" not in str(seen)


KEY = "gGgJXSLqk2T1bIlTT3dCzBoVkiY+nSwvbo4JmRyWqHw="
REPORTED = {
    "rpc_tunnel_enabled": True,
    "__rpc_tunnel_public_key": KEY,
    "__rpc_tunnel_own_endpoints": {"master": "10.0.0.11"},
    "common_outer_address": "worker1.example.net",
    "ansible_host": "worker1.example.net",
}
HOOK = "\n[Interface]\nPostUp = touch here"


@pytest.mark.parametrize(
    "report",
    [
        {"__rpc_tunnel_public_key": KEY + HOOK},
        {"__rpc_tunnel_public_key": KEY + "\n"},
        {"__rpc_tunnel_public_key": KEY[:-1]},
        {"__rpc_tunnel_public_key": None},
        {"__rpc_tunnel_own_endpoints": {"master": "10.0.0.11:51820" + HOOK + "\n#"}},
        {"__rpc_tunnel_own_endpoints": {"master": "10.0.0.11\nAllowedIPs = 0.0.0.0/0"}},
        {"__rpc_tunnel_own_endpoints": {"master": "10.213.0.9"}},
        {"__rpc_tunnel_own_endpoints": HOOK, "common_outer_address": "10.0.0.11" + HOOK},
        {"__rpc_tunnel_own_endpoints": {"master": "no-such-host.example.net"}},
        {"rpc_tunnel_port": "51820" + HOOK},
        {"rpc_tunnel_port": "51820\n"},
        {"rpc_tunnel_port": 65536},
    ],
)
def test_what_a_peer_reports_is_checked_before_others_get_it(report: dict[str, Any]) -> None:
    with pytest.raises(AnsibleFilterError, match=r"^host worker1: .*\Z") as error:
        tunnel_peers(["worker1"], {"worker1": {**REPORTED, **report}}, "master")
    assert "\n" not in str(error.value)


def test_a_peer_cannot_take_the_place_of_another_by_its_key() -> None:
    # With two peers of one key, wg leaves the first without an address.
    hosts = {"worker1": REPORTED, "worker2": {**REPORTED, "ansible_host": "10.0.0.12"}, "master": REPORTED}
    with pytest.raises(
        AnsibleFilterError, match=r"^host worker2: it reports the public key of worker1: look into both"
    ):
        tunnel_peers(["worker1", "worker2"], {**hosts, "master": {}}, "master")
    with pytest.raises(AnsibleFilterError, match=r"^host worker1: it reports the public key of master"):
        tunnel_peers(["worker1"], hosts, "master")
    # Another reader than the asked one gets the usual endpoint.
    (peer,) = tunnel_peers(["worker1"], {"worker1": {**REPORTED, "rpc_tunnel_port": 4711}}, "gateway")
    assert peer["endpoint"] == "worker1.example.net:4711"


@pytest.mark.parametrize("key", ["", "mPgJXSLqk2T1bIlTT3dCzBoVkiY+nSwvbo4JmRyWqHw="])
def test_what_the_role_writes_is_read_again(key: str) -> None:
    known = tunnel_peers(["worker1"], {"worker1": REPORTED}, "master")
    kept = {"host": "worker2", "public_key": "K2", "address": "10.213.1.2", "endpoint": "10.0.0.12:51820"}
    templates = sorted((ROOT / "roles/rpc_tunnel/templates").glob("llama-tunnel.*.j2"))
    config, peers = (
        Template(template.read_text(), trim_blocks=True).render(
            rpc_tunnel_network=tunnel.NETWORK,
            rpc_tunnel_port=51821,
            rpc_tunnel_preshared_key=key,
            __rpc_tunnel_key="/key",
            __rpc_tunnel_route_mark=213,
            __rpc_tunnel_peers_file="/peers",
            __rpc_tunnel_own_address="10.213.1.9/16",
            __rpc_tunnel_peers=[kept, *known],
        )
        for template in templates
    )
    # A reload removes a preshared key only if the file has one of zeros.
    assert peers.count(f"PresharedKey = {key or 'A' * 43 + '='}\n") == 2
    assert tunnel.parse_config(config + peers) == {
        "address": "10.213.1.9/16",
        "port": 51821,
        "peers": [
            {
                "host": "worker1",
                "public_key": KEY,
                "preshared_key": key,
                "address": tunnel.address_of("worker1"),
                # The usual port, not that of the host that has this configuration.
                "endpoint": "10.0.0.11:51820",
            },
            {**kept, "preshared_key": key},
        ],
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"round_trip_ms": None}, "is down, the last handshake was 7 s ago"),
        ({"round_trip_ms": None, "handshake_age_s": None}, "is down, there was no handshake yet"),
        ({"through_tunnel": False}, "does not go through the tunnel"),
    ],
)
def test_a_link_that_is_down_is_said_to_be(change: dict[str, Any], said: str) -> None:
    message = tunnel.message({**LINK, **change})
    assert said in message if said else message == ""
