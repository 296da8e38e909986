# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the endpoints of the RPC workers that an inventory describes."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, Mapping

from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.endpoint import (
    DEFAULT_PORT,
    EndpointError,
    parse_endpoint,
)
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._inventory import (
    Host,
    instances_of,
    known_groups,
    own_group,
    tunnel_address,
)

DOCUMENTATION = r"""
name: rpc_endpoints
short_description: List the endpoints of the RPC workers in an inventory
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Turns hosts of the inventory and their variables into the list of C(host:port) that llama.cpp and the modules of
    this collection take.
  - The address of a host with C(rpc_tunnel_enabled) is that of the tunnel.
  - The address of any other host is the first of these that is set, C(rpc_server_address), what the entry point
    C(address) of the role P(llama_cpp.cluster.common#role) has found, C(rpc_server_bind_address) unless it is a
    wildcard such as C(0.0.0.0), C(ansible_host), and the name of the host in the inventory.
  - Its port is C(rpc_server_port), by default 50052.
  - A host that runs several RPC servers has C(rpc_server_instances) instead of C(rpc_server_port). Each entry of the
    list has a C(port) and, if they differ from those of the host, an C(address) and a C(group).
  - The filter fails with the host and the variable if an address or a port is wrong, or if two workers have the
    same endpoint.
positional: _input, hostvars
options:
  _input:
    description: Names of inventory hosts, in the order of the result.
    type: list
    elements: str
    required: true
  group:
    description:
      - Return only the workers of this group, which C(group) of their instance or C(llama_group) of their host names.
        An empty string means the workers that have neither.
      - Without this option, the workers of all groups.
    type: str
  details:
    description: Whether to return a dictionary for each worker, with its C(host), C(endpoint), C(address), C(port) and
      C(group).
    type: bool
    default: false
notes:
  - llama.cpp's RPC does not support IPv6. Addresses are IPv4 addresses or names.
seealso:
  - module: llama_cpp.cluster.rpc_worker_info
extends_documentation_fragment:
  - llama_cpp.cluster.inventory_hosts
"""

EXAMPLES = r"""
# With host node1 (rpc_server_address: 10.0.0.11) and host node2 (ansible_host: 10.0.0.12, rpc_server_port: 50060)
- name: Show the workers' endpoints, here 10.0.0.11:50052 and 10.0.0.12:50060
  ansible.builtin.debug:
    msg: "{{ groups['llama_workers'] | llama_cpp.cluster.rpc_endpoints(hostvars) }}"
"""

RETURN = r"""
_value:
  description:
    - The endpoints, each as C(host:port), in the order of the hosts and, on a host, of its instances.
    - With O(details), dictionaries instead.
  type: list
  elements: raw
"""

_WILDCARDS = ("0.0.0.0", "*", "::", "[::]")  # noqa: S104 - recognised, not bound


def rpc_endpoints(hosts: object, hostvars: object, details: bool = False, group: str | None = None) -> list[Any]:
    """Return `host:port` of each worker on these inventory hosts, or with `details` a dictionary of its parts."""
    if isinstance(hosts, str) or not isinstance(hosts, Iterable):
        raise AnsibleFilterError("rpc_endpoints needs a list of inventory hosts, such as groups['llama_workers']")
    if not isinstance(hostvars, Mapping):
        raise AnsibleFilterError("rpc_endpoints needs the variables of the hosts: write rpc_endpoints(hostvars)")
    owners: dict[str, str] = {}
    found: list[Any] = []
    names = list(hosts)
    known = {} if group is None else known_groups([name for name in names if name in hostvars], hostvars)
    for name in names:
        if group not in known.get(name, [group]):
            continue  # the tasks that found the groups have checked that no two workers share an endpoint
        if name not in hostvars:
            raise AnsibleFilterError(f"host {name} is not in the inventory: add it or take it off the list of workers")
        host = Host(name, hostvars[name])
        for endpoint, variable, of_group in _endpoints(host):
            if endpoint.lower() in owners:
                raise AnsibleFilterError(
                    f"host {name}, {variable}: endpoint {endpoint} is already a worker of host "
                    f"{owners[endpoint.lower()]}, give each worker an address or port of its own"
                )
            owners[endpoint.lower()] = name
            address, _colon, port = endpoint.rpartition(":")
            worker = {"host": name, "endpoint": endpoint, "address": address, "port": int(port), "group": of_group}
            if group in (None, of_group):
                found.append(worker if details else endpoint)
    return found


def _endpoints(host: Host) -> Iterator[tuple[str, str, str]]:
    """Yield each endpoint of a host, the variable that an error about it should name, and its group."""
    address, source = _address(host)
    instances = list(instances_of(host))
    if not instances:
        port = host.get("rpc_server_port")
        wanted = _endpoint(host, address, DEFAULT_PORT if port is None else port, source, "rpc_server_port")
        yield wanted, source if port is None else "rpc_server_port", own_group(host)
    for instance, variable, group in instances:
        own = instance.get("address")
        chosen = address if own is None or own == "" or own in _WILDCARDS else own
        yield _endpoint(host, chosen, instance["port"], variable, variable), variable, group


def _address(host: Host) -> tuple[object, str]:
    """Return the address under which other hosts reach the workers of this host, and the source of the address."""
    inside = tunnel_address(host)
    if inside is not None:
        return inside, "rpc_tunnel_address"
    for variable in ("rpc_server_address", "common_worker_address", "rpc_server_bind_address", "ansible_host"):
        value = host.get(variable)
        if value is not None and not (variable == "rpc_server_bind_address" and value in _WILDCARDS):
            return value, variable
    return host.name, "inventory name"


def _endpoint(host: Host, address: object, port: object, address_from: str, port_from: str) -> str:
    if isinstance(port, bool) or not str(port).isdecimal() or not 1 <= int(str(port)) <= 65535:
        raise host.error(port_from, f"port {port!r} is not a number from 1 to 65535")
    text = str(address)
    if ":" in text:
        raise host.error(address_from, f"address {text!r} is neither a host name nor IPv4, llama.cpp RPC has no IPv6")
    try:
        return str(parse_endpoint(f"{text}:{int(str(port))}"))
    except EndpointError as error:
        raise host.error(address_from, error) from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"rpc_endpoints": rpc_endpoints}
