# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: compares the RPC servers that a host should have with those that it has."""

from __future__ import annotations

DOCUMENTATION = r"""
name: rpc_server_comparison
short_description: Compare the RPC servers of a host with those that it should have
version_added: 0.1.0
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Returns what prevents the servers from running, and whether each server runs from its current unit and from the
    release in use.
  - The role P(llama_cpp.cluster.rpc_server#role) changes what differs.
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
  setting:
    description: The prefix of C(port) and C(threads) in the names of the variables, for messages.
    type: str
    default: rpc_server_
  texts:
    description: The text of each server's unit, in the same order. C(@digest@) in it becomes the digest of the text.
    type: list
    elements: str
    default: []
  timed:
    description: The texts of services that maintain the servers, and of the timers that start them, by name.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Check that the port is free
  ansible.builtin.assert:
    that: compared.ports | length == 0
    fail_msg: "{{ compared.ports | join(' ') }}"
  vars:
    compared: "{{ servers | llama_cpp.cluster.rpc_server_comparison(found, host=inventory_hostname) }}"
    servers: [{port: 50052, address: 192.0.2.11, threads: auto}]
    found: # as rpc_server_info returned it
      servers: [{port: 50052, listeners: [], clients: [], state: null}]
      cores: [{problem: null, usable_cores: 4}]
      units: []
      timed_units: []
      release: {id: null}
"""

RETURN = r"""
_value:
  description: The comparison.
  type: dict
  contains:
    ports:
      description: A sentence for each port that another program uses.
      type: list
      elements: str
    cores:
      description: A sentence for each server that has too few cores for its threads.
      type: list
      elements: str
    servers:
      description:
        - For each server with a text, the C(name) and the C(text) of its unit, C(port) and C(address), C(there)
          (whether the file is as expected), C(enabled), C(running) (whether the server runs from this unit and from the
          release in use), and its C(clients) and C(state).
      type: list
      elements: dict
    timed:
      description: For each other unit, its C(name) and C(text), its C(timer), C(there) and C(active).
      type: list
      elements: dict
"""

import hashlib
import re
from typing import Any, Callable, Mapping, Sequence

from ansible.errors import AnsibleFilterError

_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - recognised, not bound
_OF_ROOT = ["0644", 0, 0]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _has(unit: Mapping[str, Any], text: str) -> bool:
    """Return whether a unit file has a text, and only root may write the file."""
    return unit.get("sha256") == _digest(text) and [unit.get(key) for key in ("mode", "uid", "gid")] == _OF_ROOT


def _server(
    wanted: Mapping[str, Any], text: str, server: Mapping[str, Any], unit: Mapping[str, Any], release: str
) -> dict[str, Any]:
    name = f"llama-rpc-server@{wanted['port']}.service"
    digest = _digest(text.strip())[:16]
    file = text.strip().replace("@digest@", digest) + "\n"
    own = [listener for listener in server["listeners"] if listener["unit"] == name]
    # A process that started while `current` led elsewhere has the same digest, but runs another release.
    programs = [found for listener in own for found in re.findall("/releases/([^/]+)/bin/", listener["program"] or "")]
    return {
        "name": name,
        "port": wanted["port"],
        "address": wanted["address"],
        "text": file,
        "there": _has(unit, file),
        "enabled": bool(unit.get("enabled")),
        "running": unit.get("sha256") == _digest(file)
        and all(program == release for program in programs)
        and digest in [listener.get("unit_digest") for listener in own],
        "clients": server["clients"],
        "state": server["state"],
    }


def _timed(name: str, text: str, unit: Mapping[str, Any]) -> dict[str, Any]:
    file = text.strip() + "\n"
    there = _has(unit, file)
    timer = name.rpartition(".")[0] + ".timer"
    return {"name": name, "timer": timer, "text": file, "there": there, "active": there and bool(unit.get("active"))}


def _port(wanted: Mapping[str, Any], server: Mapping[str, Any], host: str, setting: str) -> str:
    """Return a sentence about the program that has taken a port; empty if it is free, or the server itself has it."""
    unit = f"llama-rpc-server@{wanted['port']}.service"
    others = [found for found in server["listeners"] if found["unit"] != unit]
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


def rpc_server_comparison(
    wanted: Sequence[Mapping[str, Any]],
    found: Mapping[str, Any],
    host: str,
    setting: str = "rpc_server_",
    texts: Sequence[str] = (),
    timed: Mapping[str, str] | None = None,
) -> dict[str, list[Any]]:
    """Return the problems of ports and cores, and the units of servers with a text, compared with those of the host."""
    if isinstance(wanted, str) or not isinstance(found, Mapping) or isinstance(texts, str):
        raise AnsibleFilterError(
            "rpc_server_comparison needs lists of servers and texts, and what rpc_server_info found"
        )
    units = {unit["name"]: unit for unit in (*found["units"], *found["timed_units"])}
    release = found["release"]["id"] or ""
    return {
        "ports": [*filter(None, (_port(one, there, host, setting) for one, there in zip(wanted, found["servers"])))],
        "cores": [*filter(None, (_cores(one, there, host, setting) for one, there in zip(wanted, found["cores"])))],
        "servers": [
            _server(one, text, there, units.get(f"llama-rpc-server@{one['port']}.service", {}), release)
            for one, text, there in zip(wanted, texts, found["servers"])
        ],
        "timed": [_timed(name, text, units.get(name, {})) for name, text in (timed or {}).items()],
    }


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> Mapping[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"rpc_server_comparison": rpc_server_comparison}
