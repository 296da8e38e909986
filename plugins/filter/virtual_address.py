# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the settings of an address that moves among gateways, and its problems."""

from __future__ import annotations

DOCUMENTATION = r"""
name: virtual_address
short_description: Check a virtual address of several gateways
version_added: 0.2.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Checks an address that moves among the gateways of an inventory. It returns what the role
    P(llama_cpp.cluster.llama_gateway#role) needs for it, and what prevents it.
  - It checks the network only if the host's facts are known.
positional: _input, hostvars, gateway, gateways
options:
  _input:
    description: The address, with or without the length of its network's prefix; empty for none.
    type: str
    required: true
  hostvars:
    description: The variables of the hosts by name, Ansible's C(hostvars).
    type: dict
    required: true
  gateway:
    description: The name of the gateway to check.
    type: str
    required: true
  gateways:
    description: The names of all gateways.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Show what the address needs, and what prevents it
  ansible.builtin.debug:
    msg: >-
      {{ '10.0.0.4'
         | llama_cpp.cluster.virtual_address(hostvars, inventory_hostname, groups['llama_gateways'] | default([])) }}
"""

RETURN = r"""
_value:
  description: The C(address) without prefix, the C(interface) of this host for it (empty if the facts are missing), the
    addresses of the other gateways as C(peers), a C(router_id) for VRRP, and C(problems), one sentence each.
  type: dict
"""

from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Any, Callable, Iterator, Mapping, Sequence

from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._inventory import Host

NAME = "llama_gateway_virtual_address"
OWN = "llama_gateway_bind_address"


def virtual_address(
    value: object, hostvars: Mapping[str, Any], gateway: str, gateways: Sequence[str]
) -> dict[str, Any]:
    """Return the settings that the role needs for an address, and the problems that prevent it."""
    found: dict[str, Any] = {"address": "", "interface": "", "peers": [], "router_id": 0, "problems": []}
    if not value:
        return found
    try:
        wanted = IPv4Interface(str(value))
    except ValueError:
        problem = f"{NAME} is {value}: give an IPv4 address that no host has, such as 10.0.0.4."
        return {**found, "problems": [problem]}
    hosts = {name: Host(name, hostvars[name]) for name in gateways}
    own = str(hosts[gateway].get(OWN) or "") if gateway in hosts else ""
    interface, network = _place(hostvars[gateway], own) if own else ("", None)
    length = wanted.network.prefixlen if "/" in str(value) else None
    problems = [*_unfit_gateways(hosts, wanted, gateway), *_owners(hostvars, hosts, wanted.ip)]
    if network is not None:
        problems += _unfit_network(wanted.ip, length, network, f"{gateway}'s {interface}")
    return {
        "address": str(wanted.ip),
        "interface": interface,
        "peers": [str(host.get(OWN)) for host in hosts.values() if host.name != gateway],
        # With unicast, the only requirement is that all gateways have the same ID.
        "router_id": int(wanted.ip) % 256 or 255,
        "problems": problems,
    }


def _unfit_gateways(hosts: Mapping[str, Host], wanted: IPv4Interface, gateway: str) -> Iterator[str]:
    """Yield a sentence for each problem of the gateways."""
    if len(hosts) < 2 or gateway not in hosts:
        yield f"{NAME} is {wanted.ip} for one gateway: put two or more hosts into llama_gateways or leave it out."
    seen: dict[IPv4Address, str] = {}
    for host in hosts.values():
        try:
            address = IPv4Address(str(host.get(OWN)))
        except ValueError:
            address = IPv4Address("0.0.0.0")  # noqa: S104 - recognised, not bound
        if address.is_loopback or address.is_unspecified or address in seen:
            yield (
                f"{host.name} has no {OWN} of its own in the inventory, by which the other gateways know it: "
                f"{NAME} needs one of each gateway."
            )
        seen[address] = host.name
        other = host.get(NAME)
        if host.name != gateway and str(other or "").partition("/")[0] != str(wanted.ip):
            theirs = f"{other or 'empty'} for {host.name}"
            yield f"{NAME} is {wanted.ip} for {gateway} and {theirs}: give all gateways the same."


def _owners(hostvars: Mapping[str, Any], gateways: Mapping[str, Host], address: IPv4Address) -> Iterator[str]:
    """Yield a sentence for each host that already has the address; a gateway may have it from this role."""
    for name in hostvars:
        host = Host(name, hostvars[name])
        own = {str(host.get("ansible_host") or ""), str(host.get(OWN) or "") if name in gateways else ""}
        if name not in gateways:
            own.update((hostvars[name].get("ansible_facts") or {}).get("all_ipv4_addresses") or [])
        if str(address) in own:
            yield f"{NAME} is {address}, which is an address of {name}: give one that no host has."


def _place(variables: Mapping[str, Any], address: str) -> tuple[str, IPv4Network | None]:
    """Return the interface that has an address, and its network, from the facts."""
    for facts in (variables.get("ansible_facts") or {}).values():
        if not isinstance(facts, Mapping) or "device" not in facts:
            continue
        for entry in [facts.get("ipv4") or {}, *(facts.get("ipv4_secondaries") or [])]:
            if entry.get("address") == address:
                return str(facts["device"]), IPv4Interface(f"{address}/{entry['netmask']}").network
    return "", None


def _unfit_network(address: IPv4Address, length: int | None, network: IPv4Network, where: str) -> Iterator[str]:
    if address not in network or address in (network.network_address, network.broadcast_address):
        yield f"{NAME} is {address}, which is not an address of a host in {network}, the network of {where}."
    elif length not in (None, network.prefixlen):
        yield f"{NAME} has /{length}, and the network of {where} is {network}: leave the prefix out."


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"virtual_address": virtual_address}
