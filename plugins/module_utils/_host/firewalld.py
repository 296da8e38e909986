# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the state of a host's firewalld, and the changes to make there. Knows neither Ansible nor the host.

firewalld has two configurations, the permanent one and the one in force (runtime). If the daemon does not run, the host
has only the permanent one.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Mapping, NamedTuple, Union

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]


@dataclass(frozen=True)
class Zone:
    """A zone or a policy, as `--list-all-zones` and `--list-all-policies` show it."""

    name: str
    target: str = "default"
    interfaces: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    forward_ports: tuple[str, ...] = ()
    source_ports: tuple[str, ...] = ()
    rich_rules: tuple[str, ...] = ()
    masquerade: bool = False
    icmp_blocks: tuple[str, ...] = ()
    icmp_block_inversion: bool = False
    # Only a policy has these.
    egress_zones: tuple[str, ...] = ()


@dataclass(frozen=True)
class Service:
    """A service as `--info-service` shows it."""

    ports: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    source_ports: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()


@dataclass(frozen=True)
class View:
    """One configuration, the permanent or the runtime one."""

    default_zone: str
    zones: Mapping[str, Zone]
    policies: Mapping[str, Zone]

    def in_use(self) -> list[Zone]:
        """Return the zones that packets can fall into."""
        return [
            zone for zone in self.zones.values() if zone.interfaces or zone.sources or zone.name == self.default_zone
        ]

    def into_host(self) -> list[Zone]:
        """Return the policies that decide about packets for this host."""
        return [policy for policy in self.policies.values() if {"HOST", "ANY"} & set(policy.egress_zones)]


@dataclass(frozen=True)
class State:
    """The state of a host's firewalld."""

    permanent: View
    runtime: View | None
    services: Mapping[str, Service]

    def views(self) -> list[View]:
        """Return the permanent configuration, and the runtime one if the daemon runs."""
        return [self.permanent] if self.runtime is None else [self.permanent, self.runtime]


@dataclass(frozen=True)
class Session:
    """The SSH session that must not be cut, as the host sees it."""

    client: Address
    port: int
    interface: str


class Change(NamedTuple):
    """One setting of one zone."""

    zone: str
    kind: str  # zone, source, port, rich_rule
    value: str
    state: str  # enabled or disabled; for a zone present or absent

    def text(self) -> str:
        if self.kind == "zone":
            return f"zone {self.zone} {'made' if self.state == 'present' else 'removed'}"
        verb = "added to" if self.state == "enabled" else "removed from"
        return f"{self.kind.replace('_', ' ')} {self.value} {verb} zone {self.zone}"

    def options(self) -> list[str]:
        """Return the options for firewalld's programs. If nothing is left to change, the programs only warn."""
        if self.kind == "zone":
            return [f"--{'new' if self.state == 'present' else 'delete'}-zone={self.zone}"]
        verb = "add" if self.state == "enabled" else "remove"
        return [f"--zone={self.zone}", f"--{verb}-{self.kind.replace('_', '-')}={self.value}"]


class Plan(NamedTuple):
    """The changes to make, in an order that keeps the session open at every moment."""

    changes: list[Change]
    # If true, only the permanent configuration is changed, and a reload then puts all changes into force at once.
    reload: bool
    # The reasons why nothing may be changed; one sentence each.
    problems: list[str]

    def texts(self) -> list[str]:
        """Return the changes as texts for the user."""
        return [change.text() for change in self.changes] + (["firewalld reloaded"] if self.reload else [])

    def commands(self, running: bool) -> list[tuple[str, list[str]]]:
        """Return the commands that make the changes, each with a description."""
        if not running:
            return [(change.text(), ["firewall-offline-cmd", *change.options()]) for change in self.changes]
        found = []
        for change in self.changes:
            found.append((f"{change.text()} (permanent)", ["firewall-cmd", "--permanent", *change.options()]))
            if not self.reload:
                found.append((f"{change.text()} (runtime)", ["firewall-cmd", *change.options()]))
        return found + ([("firewalld reloaded", ["firewall-cmd", "--reload"])] if self.reload else [])
