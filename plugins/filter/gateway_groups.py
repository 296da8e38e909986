# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the groups of a master and its workers that a gateway stands in front of."""

from __future__ import annotations

DOCUMENTATION = r"""
name: gateway_groups
short_description: List the groups behind a gateway
version_added: 0.2.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Turns masters of the inventory into the groups that the role P(llama_cpp.cluster.llama_gateway#role) takes. It
    reads each master's variables of the role P(llama_cpp.cluster.llama_server#role).
  - If a master and another host of O(gateways) both have C(rpc_tunnel_enabled), gateways reach the master at its
    address in the tunnel.
  - The filter fails with the name of the host if gateways cannot reach a master, or if two masters have the same
    address and port.
positional: _input, hostvars, gateway, gateways
options:
  gateway:
    description: The name of the gateway's host. A master on the same host may listen only on its loopback network.
    type: str
    required: true
  gateways:
    description: The names of all gateways' hosts.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - llama_cpp.cluster.inventory_hosts
"""

EXAMPLES = r"""
- name: Show the groups behind this gateway
  ansible.builtin.debug:
    msg: >-
      {{ groups['llama_masters'] | default([])
         | llama_cpp.cluster.gateway_groups(hostvars, inventory_hostname, groups['llama_gateways'] | default([])) }}
"""

RETURN = r"""
_value:
  description: The groups, each with its C(name) (C(llama_group), or else the name of the master's host), the C(model)
    that it serves, C(address) and C(port) of its API, the C(ready_port), and its C(slots).
  type: list
  elements: dict
"""

import re
from ipaddress import IPv4Address
from typing import Any, Callable, Mapping, Sequence

from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._inventory import (
    Host,
    own_group,
    tunnel_address,
)

# The defaults of role llama_server.
ADDRESS = "127.0.0.1"
PORT = 8080
SLOTS = 4


def gateway_groups(
    masters: Sequence[str], hostvars: Mapping[str, Any], gateway: str, gateways: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the settings of role llama_gateway for each master."""
    found: list[dict[str, Any]] = []
    owners: dict[tuple[str, int], str] = {}
    inside = {name for name in gateways if tunnel_address(Host(name, hostvars[name]))}
    for name in masters:
        host = Host(name, hostvars[name])
        group = _group(host, _address(host, gateway, inside))
        place = (group["address"], group["port"])
        if place in owners:
            raise host.error(
                "llama_server_port", f"{place[0]}:{place[1]} is the API of {owners[place]}, give each its own port"
            )
        owners[place] = name
        found.append(group)
    return found


def _address(host: Host, gateway: str, inside: set[str]) -> str:
    """Return the address of a master's API for a gateway; `inside` has the gateways that are in the tunnel."""
    given = host.get("llama_server_bind_address")
    tunnelled = tunnel_address(host)
    if tunnelled and inside - {host.name}:
        if gateway not in inside:
            raise AnsibleFilterError(
                f"host {gateway}, rpc_tunnel_enabled: other gateways have it, and {host.name} listens in the tunnel "
                "alone, set it for all gateways or for none"
            )
        if given not in (None, tunnelled):
            raise host.error(
                "llama_server_bind_address",
                f"{given} is not where gateways in the tunnel reach it, which is {tunnelled}, take it out",
            )
        return tunnelled
    address = str(given or ADDRESS)
    if address == "0.0.0.0":  # noqa: S104 - recognised, not bound
        address = "127.0.0.1" if host.name == gateway else str(host.get("ansible_host") or host.name)
    if address.startswith("127.") and host.name != gateway:
        raise host.error(
            "llama_server_bind_address", f"{address} is out of reach for gateway {gateway}, give an address of its own"
        )
    try:
        IPv4Address(address)
    except ValueError:
        raise host.error(
            "llama_server_bind_address",
            f"gateway {gateway} would ask it at {address}, which is not an IPv4 address, give one of this host",
        ) from None
    return address


def _group(host: Host, address: str) -> dict[str, Any]:
    port = _number(host, "llama_server_port", PORT)
    return {
        "name": own_group(host) or host.name,
        "model": _model(host),
        "address": address,
        "port": port,
        "ready_port": _number(host, "llama_server_ready_port", 0) or port + 1,
        "slots": _number(host, "llama_server_parallel", SLOTS),
    }


def _number(host: Host, variable: str, default: int) -> int:
    value = host.get(variable)
    if value is None:
        return default
    if isinstance(value, bool) or not str(value).isdecimal():
        raise host.error(variable, f"{value!r} is not a number")
    return int(str(value))


def _model(host: Host) -> str:
    """Return the name that role llama_server gives the model."""
    alias = host.get("llama_server_alias")
    if alias is not None:
        return str(alias)
    path = host.get("gguf_model_path")
    if path is None:
        raise host.error("llama_server_alias", "is not set, nor is gguf_model_path: name the model that it serves")
    return re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", str(path).rsplit("/", 1)[-1])


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"gateway_groups": gateway_groups}
