# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: what the peers of a host in the tunnel have reported, checked."""

from __future__ import annotations

DOCUMENTATION = r"""
name: tunnel_peers
short_description: Check what hosts have reported for the files of their peers in the tunnel
version_added: 0.4.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - For the role P(llama_cpp.cluster.rpc_tunnel#role). A host that somebody has taken over can report anything, and root
    reads on its peers what it has reported. So this filter fails, with the host's name, unless the public key is a
    WireGuard key that no other host has, the endpoint is an IPv4 address or a name of the inventory, and the port is a
    port. C(wg) refuses all peers if it cannot resolve the name of one, and of two peers with one key it keeps the last.
positional: _input, hostvars, reader
options:
  reader:
    description: The inventory name of the host that gets the peers. Others may reach a peer at another endpoint.
    type: str
    required: true
extends_documentation_fragment:
  - llama_cpp.cluster.inventory_hosts
"""

EXAMPLES = r"""
- name: Show the peers of this host
  ansible.builtin.debug:
    msg: "{{ groups['llama_workers'] | llama_cpp.cluster.tunnel_peers(hostvars, inventory_hostname) }}"
"""

RETURN = r"""
_value:
  description: The name of each C(host), its C(public_key), its C(address) in the tunnel and its C(endpoint), in the
    same order.
  type: list
  elements: dict
"""

from typing import Any, Callable, Mapping, Sequence

from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.tunnel import PORT, TunnelError, check_peer
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.endpoint import is_ipv4
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._inventory import Host, tunnel_address


def tunnel_peers(hosts: Sequence[str], hostvars: Mapping[str, Any], reader: str) -> list[dict[str, str]]:
    """Return the checked peers of the host `reader`."""
    found: list[dict[str, str]] = []
    owners = {str(Host(reader, hostvars.get(reader, {})).get("__rpc_tunnel_public_key")): reader}
    for name in hosts:
        host = Host(name, hostvars[name])
        endpoints = host.get("__rpc_tunnel_own_endpoints")
        own = endpoints.get(reader) if isinstance(endpoints, Mapping) else None
        outer = str(own or host.get("common_outer_address"))
        peer = {
            "host": name,
            "public_key": str(host.get("__rpc_tunnel_public_key")),
            "address": str(tunnel_address(host)),
            "endpoint": f"{outer}:{host.get('rpc_tunnel_port') or PORT}",
        }
        try:
            check_peer(peer["public_key"], peer["endpoint"], host.get("rpc_tunnel_network"))
        except TunnelError as error:
            raise AnsibleFilterError(f"host {name}: {error}") from None
        if not is_ipv4(outer) and outer not in _names(host):
            raise AnsibleFilterError(
                f"host {name}: the endpoint that it reports, {outer}, is no address: look into that host."
            )
        owner = owners.setdefault(peer["public_key"], name)
        if owner != name:
            raise AnsibleFilterError(
                f"host {name}: it reports the public key of {owner}: look into both hosts; if one is a copy of the "
                "other, remove /etc/wireguard/llama-tunnel.key there."
            )
        found.append(peer)
    return found


def _names(host: Host) -> set[str]:
    """Return the names that the inventory gives for a host; what the host itself reports is an address."""
    sources = host.get("rpc_firewall_source_addresses")
    first = sources[0] if isinstance(sources, (list, tuple)) and sources else None
    return {str(name) for name in (host.get("rpc_tunnel_endpoint"), first, host.get("ansible_host"), host.name) if name}


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"tunnel_peers": tunnel_peers}
