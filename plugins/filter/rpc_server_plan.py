# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the RPC servers that a host should have, with what it has of them and what prevents them."""

from __future__ import annotations

DOCUMENTATION = r"""
name: rpc_server_plan
short_description: Plan the RPC servers of a host
version_added: 0.4.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Returns what prevents the servers that are wanted from running, and each of them with its threads and CPUs and with
    its state on the host.
  - For the role P(llama_cpp.cluster.rpc_server#role).
positional: _input, found
options:
  _input:
    description: The servers that are wanted, each with its C(port), C(address) and C(threads).
    type: list
    elements: dict
    required: true
  found:
    description: The result of M(llama_cpp.cluster.rpc_server_info) for their ports and sets of cores, with their units.
    type: dict
    required: true
  host:
    description: The name of the host, for messages.
    type: str
    required: true
  addresses:
    description: The addresses of the host, without those of loopback.
    type: list
    elements: str
    default: []
  setting:
    description: The prefix of C(port) and C(threads) in the names of the variables, for messages.
    type: str
    default: rpc_server_
"""

EXAMPLES = r"""
- name: Check that the port is free
  ansible.builtin.assert:
    that: plan.ports | length == 0
    fail_msg: "{{ plan.ports | join(' ') }}"
  vars:
    plan: "{{ servers | llama_cpp.cluster.rpc_server_plan(found, host=inventory_hostname, addresses=['192.0.2.11']) }}"
    servers: [{port: 50052, address: 192.0.2.11, threads: auto}]
    found: # as rpc_server_info returned it
      servers: [{port: 50052, listeners: [], clients: [], state: null}]
      cores: [{problem: null, usable_cores: 4, cpus: 0-3}]
      units: []
"""

RETURN = r"""
_value:
  description:
    - C(addresses) has a sentence for each address that the host does not have, C(ports) for each port that another
      program uses, and C(cores) for each server that has too few cores for its threads.
    - C(servers) has each server with what was wanted for it, and with the C(name) of its unit, the number of its
      C(threads), its C(cpus) (empty if it is not pinned), its C(clients) and C(state), and with C(sha256), C(enabled)
      and C(running) of its unit, as RV(llama_cpp.cluster.rpc_server_info#module:units) has them.
  type: dict
"""

from typing import Any, Callable, Mapping, Sequence

from ansible.errors import AnsibleFilterError

_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - recognised, not bound
_NO_UNIT = {"sha256": None, "enabled": False, "running": False}


def _unit(port: int) -> str:
    return f"llama-rpc-server@{port}.service"


def _is_pinned(wanted: Mapping[str, Any]) -> bool:
    return "numa_node" in wanted or "cpu_affinity" in wanted


def _server(
    wanted: Mapping[str, Any],
    server: Mapping[str, Any],
    cores: Mapping[str, Any],
    unit: Mapping[str, Any],
    sharing: int,
) -> dict[str, Any]:
    pinned = _is_pinned(wanted)
    # Servers that may run on the same cores share them.
    share = max(1, cores["usable_cores"] // (1 if pinned else sharing))
    return {
        **wanted,
        "name": _unit(wanted["port"]),
        "threads": share if str(wanted["threads"]) == "auto" else wanted["threads"],
        "cpus": cores["cpus"] if pinned else "",
        "clients": server["clients"],
        "state": server["state"],
        **{key: unit[key] for key in _NO_UNIT},
    }


def _address(wanted: Mapping[str, Any], host: str, addresses: Sequence[str]) -> str:
    """Return a sentence about an address that the host does not have; empty if a server can listen on it."""
    address = wanted["address"]
    if address.startswith("127.") or address in (*_EVERYWHERE, *addresses):
        return ""
    return f"rpc_server_bind_address {address} is not an address of {host}, which has {', '.join(addresses)}."


def _port(wanted: Mapping[str, Any], server: Mapping[str, Any], host: str, setting: str) -> str:
    """Return a sentence about the program that has taken a port; empty if it is free, or the server itself has it."""
    others = [found for found in server["listeners"] if found["unit"] != _unit(wanted["port"])]
    if wanted["address"] not in _EVERYWHERE:
        others = [found for found in others if found["address"] in (wanted["address"], *_EVERYWHERE)]
    if not others:
        return ""
    other = others[0]
    return (
        f"Port {wanted['port']} of {host} is taken by {other['program'] or 'a program that cannot be seen'} "
        f"(pid {other['pid'] or 'unknown'}, {other['unit'] or 'no service'}): stop it, or give {setting}port another "
        "number."
    )


def _cores(wanted: Mapping[str, Any], cores: Mapping[str, Any], host: str, setting: str) -> str:
    """Return a sentence that says why a server lacks the cores for its threads; empty if it has them."""
    if cores["problem"] is not None:
        return f"rpc_server_instances, port {wanted['port']}: {cores['problem']}."
    threads, usable = str(wanted["threads"]), cores["usable_cores"]
    if threads == "auto" or int(threads) <= usable:
        return ""
    return (
        f"{setting}threads {threads}: {host} has {usable} usable cores for it, and more threads than cores are slower "
        f"(measured with 4 times as many: 26 instead of 36 tokens per second); give at most {usable}, or auto."
    )


def rpc_server_plan(
    wanted: Sequence[Mapping[str, Any]],
    found: Mapping[str, Any],
    host: str,
    addresses: Sequence[str] = (),
    setting: str = "rpc_server_",
) -> dict[str, list[Any]]:
    """Return the problems of addresses, ports and cores, and the servers with their state on the host."""
    if isinstance(wanted, str) or not isinstance(found, Mapping):
        raise AnsibleFilterError("rpc_server_plan needs a list of servers, and what rpc_server_info found")
    units = {unit["name"]: unit for unit in found["units"]}
    sharing = sum(not _is_pinned(one) for one in wanted)
    there = list(zip(wanted, found["servers"], found["cores"]))
    return {
        "addresses": list(dict.fromkeys(filter(None, (_address(one, host, addresses) for one in wanted)))),
        "ports": [*filter(None, (_port(one, server, host, setting) for one, server, _its_cores in there))],
        "cores": [*filter(None, (_cores(one, cores, host, setting) for one, _its_state, cores in there))],
        "servers": [
            _server(one, server, cores, units.get(_unit(one["port"]), _NO_UNIT), sharing)
            for one, server, cores in there
        ],
    }


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"rpc_server_plan": rpc_server_plan}
