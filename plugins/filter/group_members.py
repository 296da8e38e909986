# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the hosts that belong to one group of a master and its workers."""

from __future__ import annotations

DOCUMENTATION = r"""
name: group_members
short_description: List the hosts of the same group
version_added: 0.2.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - An inventory may have several clusters. C(llama_group) of a host names its cluster. Hosts without
    it are one group without a name.
  - A host whose C(rpc_server_instances) have a C(group) belongs to the groups of its instances.
positional: _input, hostvars, host
options:
  host:
    description: The name of the host whose group to use, or the names of several hosts.
    type: raw
    required: true
extends_documentation_fragment:
  - llama_cpp.cluster.inventory_hosts
"""

EXAMPLES = r"""
- name: Show the hosts with the workers of this master
  ansible.builtin.debug:
    msg: "{{ groups['llama_workers'] | llama_cpp.cluster.group_members(hostvars, inventory_hostname) }}"
"""

RETURN = r"""
_value:
  description: The hosts in that group, or in one of these groups, in the same order.
  type: list
  elements: str
"""

from typing import Any, Callable, Mapping, Sequence

from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._inventory import (
    Host,
    groups_of,
    known_groups,
)


def group_members(hosts: Sequence[str], hostvars: Mapping[str, Any], host: str | Sequence[str]) -> list[str]:
    """Return the hosts that share a group with `host`."""
    asked = [host] if isinstance(host, str) else host
    known = known_groups(asked, hostvars)
    groups = {name: set(known.get(name) or groups_of(Host(name, hostvars[name]))) for name in (*hosts, *asked)}
    wanted = {group for name in asked for group in groups[name]}
    return [name for name in hosts if groups[name] & wanted]


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"group_members": group_members}
