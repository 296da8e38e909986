# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the problems of a cluster's shape."""

from __future__ import annotations

DOCUMENTATION = r"""
name: cluster_problems
short_description: Find what is wrong in the inventory of a cluster
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Returns one sentence for each problem that keeps the hosts of the inventory from being a cluster. If there is
    none, the list is empty.
  - A cluster has a master and 1 to 15 workers, no host and no endpoint twice, valid addresses and ports, and the
    same llama.cpp on all hosts.
  - If hosts have C(llama_group), each group is a cluster with its own master.
  - It only compares variables, and contacts no host.
positional: _input, hostvars
options:
  _input:
    description: Names of the inventory hosts that are workers.
    type: list
    elements: str
    required: true
  masters:
    description: Names of the inventory hosts that are masters.
    type: list
    elements: str
    required: true
  gateways:
    description: Names of the inventory hosts that are gateways. Their tunnel leads to all masters.
    type: list
    elements: str
    default: []
  endpoints:
    description:
      - The workers as C(host:port), if they are not those of the inventory.
      - Without it, the filter derives them from the variables of the hosts; see
        P(llama_cpp.cluster.rpc_endpoints#filter).
    type: list
    elements: str
  releases:
    description:
      - The manifest of the llama.cpp release of each host, by the name of the host, including the first master.
      - A dictionary with the single key C(unknown) instead of a manifest says why it could not be read.
      - Without it, the filter does not compare releases.
    type: dict
    default: {}
extends_documentation_fragment:
  - llama_cpp.cluster.inventory_hosts
"""

EXAMPLES = r"""
- name: Check that the hosts of the inventory make a cluster
  ansible.builtin.assert:
    that: problems | length == 0
    fail_msg: "{{ problems | join(' ') }}"
  vars:
    problems: "{{ groups['llama_workers'] | llama_cpp.cluster.cluster_problems(hostvars, masters=['localhost']) }}"
"""

RETURN = r"""
_value:
  description: One sentence for each problem.
  type: list
  elements: str
"""

from typing import Any, Callable, Iterator, Mapping, Sequence

from ansible.errors import AnsibleError, AnsibleFilterError
from ansible.parsing.dataloader import DataLoader
from ansible.utils.vars import load_extra_vars
from ansible_collections.llama_cpp.cluster.plugins.filter.rpc_endpoints import rpc_endpoints
from ansible_collections.llama_cpp.cluster.plugins.filter.rpc_links import rpc_links
from ansible_collections.llama_cpp.cluster.plugins.filter.tunnel_addresses import tunnel_addresses
from ansible_collections.llama_cpp.cluster.plugins.module_utils._status import cluster
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._inventory import Host, groups_of, own_group
from jinja2 import UndefinedError


def cluster_problems(
    workers: Sequence[str],
    hostvars: Mapping[str, Any],
    masters: Sequence[str],
    endpoints: Sequence[str] | None = None,
    releases: Mapping[str, Mapping[str, Any]] | None = None,
    gateways: Sequence[str] = (),
) -> list[str]:
    """Return one sentence for each violation."""
    named = workers if endpoints is None else endpoints
    problems = cluster.group_problems(masters, named)
    twins = cluster.twin_problems(_places(workers, hostvars))
    problems += twins.values()
    if endpoints is not None:
        problems += cluster.endpoint_problems(("", endpoint) for endpoint in endpoints)
        problems += cluster.size_problems(list(dict.fromkeys(endpoint.lower() for endpoint in endpoints)))
    else:
        found, wrong = _workers([host for host in workers if host not in twins], hostvars)
        problems += [*wrong, *cluster.endpoint_problems((worker["host"], worker["endpoint"]) for worker in found)]
        problems += _group_problems(masters, found, hostvars)
        problems += _tunnel_problems(masters, found, gateways, hostvars)
        problems += [] if problems else _link_problems(workers, hostvars)
    if releases and masters:
        problems += cluster.release_problems(releases, masters[0])
    return list(dict.fromkeys(problems))


def _workers(hosts: Sequence[str], hostvars: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the workers of these hosts with their groups, and the problems of the other hosts."""
    found: list[dict[str, Any]] = []
    wrong: list[str] = []
    for host in hosts:
        try:
            found += rpc_endpoints([host], hostvars, details=True)
        except AnsibleFilterError as error:
            wrong.append(f"{str(error).strip().rstrip('.')}.")
    return found, wrong


def _link_problems(workers: Sequence[str], hostvars: Mapping[str, Any]) -> list[str]:
    """Return the first problem of the links between two workers. The endpoints must be without one."""
    try:
        for host in workers:
            rpc_links(workers, hostvars, host)
    except AnsibleFilterError as error:
        return [f"{str(error).strip().rstrip('.')}."]
    return []


def _tunnel_problems(
    masters: Sequence[str], workers: Sequence[Mapping[str, Any]], gateways: Sequence[str], hostvars: Mapping[str, Any]
) -> list[str]:
    """Return the problems of the tunnel addresses in each group, and among gateways and masters."""
    together: dict[str | None, list[str]] = {}
    found: list[str] = []
    for worker in workers:
        together.setdefault(worker["group"], []).append(worker["host"])
    try:
        for master in (name for name in masters if name in hostvars):
            together.setdefault(own_group(Host(master, hostvars[master])), []).insert(0, master)
    except AnsibleFilterError:
        return []  # another check reports this
    # Masters of several groups need not agree if no gateway joins them.
    if any(Host(name, hostvars[name]).get("rpc_tunnel_enabled") for name in gateways):
        together[None] = [*gateways, *masters]
    for members in together.values():
        try:
            tunnel_addresses(members, hostvars)
        except AnsibleFilterError as error:
            found.append(f"{str(error).strip().rstrip('.')}.")
    return found


def _group_problems(
    masters: Sequence[str],
    workers: Sequence[Mapping[str, Any]],
    hostvars: Mapping[str, Any],
) -> list[str]:
    """Return the problems of groups; without llama_group all hosts are one group, which may have several masters."""
    by_group: dict[str, list[str]] = {}
    for worker in workers:
        by_group.setdefault(worker["group"], []).append(worker["endpoint"])
    of_masters: dict[str, list[str]] = {}
    served: dict[str, set[str]] = {}
    try:
        for master in masters:
            host = Host(master, hostvars.get(master) or {})
            of_masters.setdefault(own_group(host), []).append(master)
            served[master] = set(groups_of(host))
    except AnsibleFilterError as error:
        return [f"{str(error).strip().rstrip('.')}."]
    if not {*by_group, *of_masters} - {""}:
        return cluster.size_problems(by_group.get("", []))
    if not masters or not workers:
        return []  # another check reports this
    # A variable that is given with -e applies to every host.
    if "llama_group" in load_extra_vars(DataLoader()):
        return [
            "llama_group is given with -e, which makes one group of all hosts: name the hosts of a group in --limit."
        ]
    return cluster.member_problems(of_masters, by_group) + [
        f"{master} is the master of group {group}, and its rpc_server_instances serve group "
        f"{', '.join(sorted(others))}: give these to a host of llama_workers that is not a master."
        for group, own in of_masters.items()
        for master in own
        for others in [served[master] - {group}]
        if others
    ]


def _places(hosts: Sequence[str], hostvars: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for host in hosts:
        variables = hostvars.get(host) or {}
        try:
            address, port = variables.get("ansible_host") or host, variables.get("ansible_port")
            yield host, str(address) if port in (None, 22, "22") else f"{address}, port {port}"
        except (AnsibleError, UndefinedError):
            continue  # rpc_endpoints reports this


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"cluster_problems": cluster_problems}
