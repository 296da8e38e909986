# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the addresses that hosts have in the tunnel between masters and workers."""

from __future__ import annotations

DOCUMENTATION = r"""
name: tunnel_addresses
short_description: Find the addresses of hosts in the tunnel between masters and workers
version_added: 0.2.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - The address of a host is C(rpc_tunnel_address). Without it, the filter derives an address of
    C(rpc_tunnel_network) from the host's inventory name. So the address stays when you add or remove other hosts.
  - The filter fails with the names of two hosts that have the same address or different networks.
  - It also fails if C(rpc_tunnel_endpoint) of a host is not an address, or is an address in the tunnel. The same
    applies to the first of its C(rpc_firewall_source_addresses).
  - The result does not contain hosts without C(rpc_tunnel_enabled).
positional: _input, hostvars
extends_documentation_fragment:
  - llama_cpp.cluster.inventory_hosts
"""

EXAMPLES = r"""
- name: Show the tunnel addresses of all hosts
  ansible.builtin.debug:
    msg: "{{ groups['all'] | llama_cpp.cluster.tunnel_addresses(hostvars) }}"
"""

RETURN = r"""
_value:
  description: The address of each host, by its name, in the same order.
  type: dict
"""

from typing import Any, Callable, Mapping, Sequence

from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.tunnel import NETWORK, TunnelError, check_outer
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._inventory import Host, tunnel_address


def tunnel_addresses(hosts: Sequence[str], hostvars: Mapping[str, Any]) -> dict[str, str]:
    """Return the tunnel address of each host that has one."""
    found: dict[str, str] = {}
    networks: dict[str, str] = {}
    for name in dict.fromkeys(hosts):
        host = Host(name, hostvars[name])
        address = tunnel_address(host)
        if address is None:
            continue
        twin = next((other for other, taken in found.items() if taken == address), None)
        if twin is not None:
            raise AnsibleFilterError(
                f"hosts {twin} and {name} both have {address} in the tunnel: give one of them a free address of "
                "rpc_tunnel_network with rpc_tunnel_address"
            )
        network = str(host.get("rpc_tunnel_network") or NETWORK)
        networks.setdefault(network, name)
        if len(networks) > 1:
            first, other = list(networks.items())
            raise AnsibleFilterError(
                f"rpc_tunnel_network of {first[1]} is {first[0]}, and that of {other[1]} is {other[0]}: set it alike "
                "for all hosts of a group, and for gateways"
            )
        _check_outer(host, network)
        found[name] = address
    return found


def _check_outer(host: Host, network: str) -> None:
    """Raise AnsibleFilterError if the tunnel cannot send packets to the address that the host gives."""
    try:
        endpoint, sources = host.get("rpc_tunnel_endpoint"), host.get("rpc_firewall_source_addresses")
    except AnsibleFilterError:
        return  # the value uses facts that are not there yet
    try:
        if endpoint is not None:
            check_outer("rpc_tunnel_endpoint", endpoint, network)
        elif isinstance(sources, (list, tuple)) and sources:
            check_outer("the first of rpc_firewall_source_addresses,", sources[0], network)
    except TunnelError as error:
        raise AnsibleFilterError(f"host {host.name}: {error}") from None


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"tunnel_addresses": tunnel_addresses}
