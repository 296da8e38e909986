# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the links over which the two workers of a group add up partial results by themselves."""

from __future__ import annotations

DOCUMENTATION = r"""
name: rpc_links
short_description: Find the links between the two workers of groups
version_added: 0.4.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Returns a link for each worker of a host with C(rpc_server_link), see the role P(llama_cpp.cluster.rpc_server#role).
  - The filter fails with the host and the remedy if the worker's group has not exactly two workers, or if the other one
    has no C(rpc_server_link).
positional: _input, hostvars, host
options:
  _input:
    description: The names of all worker hosts.
    type: list
    elements: str
    required: true
  host:
    description: The host whose links are wanted.
    type: str
    required: true
extends_documentation_fragment:
  - llama_cpp.cluster.inventory_hosts
"""

EXAMPLES = r"""
- name: Show at which address and port the worker waits for the other one
  ansible.builtin.debug:
    msg: "{{ links | map(attribute='own') }}"
  vars:
    links: "{{ groups['llama_workers'] | llama_cpp.cluster.rpc_links(hostvars, inventory_hostname) }}"
"""

RETURN = r"""
_value:
  description: For each worker its C(worker_port), the C(port) of its end of the link, both ends as C(own) and C(other)
    (C(address:port)), and C(peer) and C(address), the host of the other worker and its address.
  type: list
  elements: dict
"""

from typing import Any, Callable, Mapping, Sequence

from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.filter.rpc_endpoints import rpc_endpoints
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._inventory import Host

# Upstream's master names the port of a link: that of the worker and this.
_ABOVE_WORKER = 1000


def rpc_links(hosts: Sequence[str], hostvars: Mapping[str, Any], host: str) -> list[dict[str, Any]]:
    """Return the links of the workers of a host."""
    own = Host(host, hostvars[host])
    if not own.is_true("rpc_server_link"):
        return []
    links = []
    workers = rpc_endpoints(hosts, hostvars, details=True)
    for worker in (each for each in workers if each["host"] == host):
        group = [each for each in workers if each["group"] == worker["group"]]
        if len(group) != 2:
            raise own.error(
                "rpc_server_link", f"a link joins the two workers of a group, and this one has {len(group)}: unset it"
            )
        other = group[0] if group[1] is worker else group[1]
        if not Host(other["host"], hostvars[other["host"]]).is_true("rpc_server_link"):
            raise AnsibleFilterError(
                f"host {other['host']} has no rpc_server_link, and {host} of the same group has: set it for both"
            )
        ends = [f"{each['address']}:{each['port'] + _ABOVE_WORKER}" for each in (worker, other)]
        if max(worker["port"], other["port"]) + _ABOVE_WORKER > 65535 or any(
            each["endpoint"] in ends for each in workers
        ):
            raise own.error(
                "rpc_server_link",
                f"it would use {' and '.join(ends)}, {_ABOVE_WORKER} above the workers' ports: give them other ports",
            )
        links.append(
            {
                "worker_port": worker["port"],
                "port": worker["port"] + _ABOVE_WORKER,
                "own": ends[0],
                "other": ends[1],
                "peer": other["host"],
                "address": other["address"],
            }
        )
    return links


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"rpc_links": rpc_links}
