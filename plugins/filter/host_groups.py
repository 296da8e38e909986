# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the groups of each host."""

from __future__ import annotations

DOCUMENTATION = r"""
name: host_groups
short_description: Find the groups that each host belongs to
version_added: 0.2.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - An inventory may have several clusters. C(llama_group) of a host names its cluster. C(group) of
    an entry in C(rpc_server_instances) does so for one server of the host.
positional: _input, hostvars
options:
  linked:
    description: Whether groups that share a host count as one. Then each host has the names of all of these groups.
    type: bool
    default: false
extends_documentation_fragment:
  - llama_cpp.cluster.inventory_hosts
"""

EXAMPLES = r"""
- name: Show the groups of the workers, such as node1 with [a] and node2 with [a, b]
  ansible.builtin.debug:
    msg: "{{ groups['llama_workers'] | llama_cpp.cluster.host_groups(hostvars) }}"
"""

RETURN = r"""
_value:
  description: For each host, the names of its groups. The group without a name is an empty string.
  type: dict
"""

from typing import Any, Callable, Mapping, Sequence

from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._inventory import Host, groups_of


def host_groups(hosts: Sequence[str], hostvars: Mapping[str, Any], linked: bool = False) -> dict[str, list[str]]:
    """Return the groups of each host."""
    found = {name: groups_of(Host(name, hostvars[name])) for name in hosts}
    return _linked(found) if linked else found


def _linked(groups: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return for each host its groups and all groups that shared hosts link to them, directly or indirectly."""
    together: dict[str, set[str]] = {}
    for own in groups.values():
        united = {one for group in own for one in together.get(group, {group})}
        together.update(dict.fromkeys(united, united))
    return {name: sorted(together[own[0]]) for name, own in groups.items()}


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"host_groups": host_groups}
