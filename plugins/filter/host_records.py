# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the records of some hosts, as one dictionary."""

from __future__ import annotations

DOCUMENTATION = r"""
name: host_records
short_description: Collect variables of several hosts
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Collects variables of hosts, most often facts that tasks have set there, into one dictionary for each host.
  - Each further option is a key of these dictionaries, and its value is the name of the variable. If a host does
    not have the variable, the value is V(null).
positional: _input, hostvars
options:
  merge:
    description: The name of a variable that is a dictionary. Its keys are added unchanged.
    type: str
  endpoints:
    description: Whether the endpoints of the host's workers are added as C(endpoints), and the group of each as
      C(groups), see P(llama_cpp.cluster.rpc_endpoints#filter).
    type: bool
    default: false
extends_documentation_fragment:
  - llama_cpp.cluster.inventory_hosts
"""

EXAMPLES = r"""
- name: Show the address and port of each worker
  ansible.builtin.debug:
    msg: "{{ ['localhost'] | llama_cpp.cluster.host_records(hostvars, address='ansible_host', port='ansible_port') }}"
"""

RETURN = r"""
_value:
  description: The dictionaries, by the names of the hosts.
  type: dict
"""

from typing import Any, Callable, Mapping, Sequence

from ansible_collections.llama_cpp.cluster.plugins.filter.rpc_endpoints import rpc_endpoints


def host_records(
    hosts: Sequence[str],
    hostvars: Mapping[str, Any],
    merge: str | None = None,
    endpoints: bool = False,
    **variables: str,
) -> dict[str, dict[str, Any]]:
    """Return a record of each host."""
    records: dict[str, dict[str, Any]] = {}
    for host in hosts:
        known = hostvars[host]
        records[host] = {
            **(_endpoints(host, hostvars) if endpoints else {}),
            **{key: known.get(variable) for key, variable in variables.items()},
            **(known[merge] if merge is not None and merge in known else {}),
        }
    return records


def _endpoints(host: str, hostvars: Mapping[str, Any]) -> dict[str, list[str]]:
    workers = rpc_endpoints([host], hostvars, details=True)
    return {
        "endpoints": [worker["endpoint"] for worker in workers],
        "groups": [worker["group"] for worker in workers],
    }


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"host_records": host_records}
