# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the data that filters read about the hosts of an inventory: variables, groups, and tunnel address."""

from __future__ import annotations

import re
from typing import Any, Iterable, Iterator, Mapping

from ansible.errors import AnsibleError, AnsibleFilterError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.tunnel import TunnelError, address_of
from jinja2 import Undefined, UndefinedError

_GROUP = re.compile(r"[A-Za-z0-9_-]*\Z")


class Host:
    """The variables of one host; every error names the host and the variable."""

    def __init__(self, name: str, variables: Mapping[str, Any]) -> None:
        self.name = name
        self._variables = variables

    def get(self, variable: str) -> object:
        """Return the value, templated; None if it is not set or empty."""
        try:
            value = self._variables.get(variable)
            if isinstance(value, Undefined):
                str(value)  # raises, and the error says what is undefined
        except (AnsibleError, UndefinedError) as error:
            raise self.error(variable, f"its template has no value, define what it uses: {error}") from error
        return None if value == "" else value

    def is_true(self, variable: str) -> bool:
        """Return whether a flag is set; raises AnsibleFilterError."""
        try:
            return bool(boolean(self.get(variable) or False))
        except TypeError as error:
            raise self.error(variable, "is neither true nor false") from error

    def error(self, variable: str, problem: object) -> AnsibleFilterError:
        return AnsibleFilterError(f"host {self.name}, {variable}: {problem}")


def own_group(host: Host) -> str:
    """Return the name of a host's own group, empty for the group without a name; raises AnsibleFilterError."""
    value = host.get("llama_group")
    return "" if value is None else _group(host, "llama_group", value)


def groups_of(host: Host) -> list[str]:
    """Return the names of the groups that the workers of a host serve; without instances, its own group."""
    return list(dict.fromkeys(group for _instance, _variable, group in instances_of(host))) or [own_group(host)]


def known_groups(hosts: Iterable[str], hostvars: Mapping[str, Any]) -> Mapping[str, list[str]]:
    """Return the groups of hosts that the playbooks' tasks check_inventory have found and stored in a host's variables.

    Asking each host requires a look at all of its variables, which takes minutes if each of hundreds of hosts asks for
    all others.
    """
    first = next(iter(hosts), None)
    found: Mapping[str, str] = {} if first is None else hostvars[first].get("__cluster_groups") or {}
    return {name: groups.split(",") for name, groups in found.items()}


def _group(host: Host, variable: str, value: object) -> str:
    if not isinstance(value, str) or not _GROUP.match(value):
        raise host.error(variable, f"{value!r} is not the name of a group: give letters, digits, _ and -")
    return value


def tunnel_address(host: Host) -> str | None:
    """Return the tunnel address of a host, None if it has no tunnel; raises AnsibleFilterError."""
    if not host.is_true("rpc_tunnel_enabled"):
        return None
    try:
        return address_of(host.name, host.get("rpc_tunnel_network"), host.get("rpc_tunnel_address"))
    except TunnelError as error:
        raise AnsibleFilterError(f"host {host.name}: {error}") from None


def instances_of(host: Host) -> Iterator[tuple[Mapping[str, Any], str, str]]:
    """Yield each instance of a host, the variable that defines it, and its group."""
    own = own_group(host)
    instances = host.get("rpc_server_instances") or []
    if not isinstance(instances, (list, tuple)):
        raise host.error("rpc_server_instances", "must be a list of dictionaries, each with a port")
    for index, instance in enumerate(instances):
        variable = f"rpc_server_instances[{index}]"
        if not isinstance(instance, Mapping) or "port" not in instance:
            raise host.error(variable, "must be a dictionary with a port")
        group = instance.get("group")
        yield instance, variable, own if group in (None, "") else _group(host, f"{variable}, group", group)
