# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: a host's firewalld as its programs show it, and the changes to make. Knows neither Ansible nor the host.

firewalld has two configurations, the permanent one and the one in force (runtime). If the daemon does not run, the host
has only the permanent one.
"""

from __future__ import annotations

import ipaddress
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, Iterable, Iterator, Mapping, NamedTuple, Sequence, Union
from xml.etree import ElementTree as ET

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


# The elements of a rich rule in their order, such as ("port", {"port": "22", "protocol": "tcp"}).
Elements = Dict[str, Dict[str, str]]


def parse_zones(text: str) -> dict[str, Zone]:
    """Read `firewall-cmd --list-all-zones` or `--list-all-policies`, or the same of firewall-offline-cmd."""
    found: dict[str, dict[str, list[str]]] = {}
    key = ""
    fields: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        if not line[0].isspace():
            # `public (default, active)`: the words in parentheses differ among releases, and other lines tell the same.
            fields = found.setdefault(line.split(" ", 1)[0], {})
            key = ""
        elif line.startswith("\t"):
            fields.setdefault(key, []).append(line.strip())
        else:
            key, _colon, value = line.strip().partition(":")
            fields[key] = [value.strip()] if value.strip() else []
    return {name: _zone(name, fields) for name, fields in found.items()}


def _zone(name: str, fields: Mapping[str, Sequence[str]]) -> Zone:
    def words(key: str) -> tuple[str, ...]:
        return tuple(" ".join(fields.get(key, ())).split())

    return Zone(
        name,
        target=" ".join(fields.get("target", ("default",))),
        interfaces=words("interfaces"),
        sources=words("sources"),
        services=words("services"),
        ports=words("ports"),
        protocols=words("protocols"),
        forward_ports=words("forward-ports"),
        source_ports=words("source-ports"),
        rich_rules=tuple(fields.get("rich rules", ())),
        masquerade=words("masquerade") == ("yes",),
        icmp_blocks=words("icmp-blocks"),
        icmp_block_inversion=words("icmp-block-inversion") == ("yes",),
        egress_zones=words("egress-zones"),
    )


def parse_service(text: str) -> Service:
    """Read `firewall-cmd --info-service=NAME`."""
    fields = {}
    for line in text.splitlines():
        key, _colon, value = line.strip().partition(":")
        fields[key] = tuple(value.split())
    return Service(
        ports=fields.get("ports", ()),
        protocols=fields.get("protocols", ()),
        source_ports=fields.get("source-ports", ()),
        includes=fields.get("includes", ()),
    )


def read_service(path: Path) -> Service | None:
    """Return a service from its file; None if the file cannot be read or parsed."""
    try:
        root = ET.parse(path).getroot()  # noqa: S314 - a file of this host's administrator
    except (OSError, ET.ParseError):
        return None

    def values(tag: str, name: str) -> tuple[str, ...]:
        return tuple(element.get(name, "") for element in root.findall(tag))

    def ports(tag: str) -> tuple[str, ...]:
        found = [(element.get("port", ""), element.get("protocol", "")) for element in root.findall(tag)]
        return tuple(f"{port}/{protocol}" for port, protocol in found if port)

    # Before source-port and protocol had elements of their own, a protocol was a port without a number.
    protocols = [element.get("protocol", "") for element in root.findall("port") if not element.get("port")]
    return Service(
        ports=ports("port"),
        protocols=(*values("protocol", "value"), *protocols),
        source_ports=ports("source-port"),
        includes=values("include", "service"),
    )


def parse_rule(rule: str) -> Elements:
    """Read a rich rule."""
    elements: Elements = {}
    current: dict[str, str] = {}
    for word in shlex.split(rule):
        name, equals, value = word.partition("=")
        if equals:
            current[name] = value
        else:
            current = elements.setdefault(name, {})
    return elements


def used_services(zones: Iterable[Zone]) -> set[str]:
    """Return the names of the services that zones or policies use."""
    found: set[str] = set()
    for zone in zones:
        found.update(zone.services)
        found.update(parse_rule(rule).get("service", {}).get("name", "") for rule in zone.rich_rules)
    return found - {""}


def port_range(text: str) -> tuple[int, int, str]:
    """Return first port, last port and protocol of `22/tcp` or `1025-65535/tcp`; an empty range if it is neither."""
    numbers, _slash, protocol = text.partition("/")
    first, _dash, last = numbers.partition("-")
    try:
        return int(first), int(last or first), protocol
    except ValueError:
        return 0, -1, protocol


def covers(entry: str, port: int) -> bool:
    """Return whether `22/tcp` or `1-1024/tcp` includes this TCP port."""
    first, last, protocol = port_range(entry)
    return protocol == "tcp" and first <= port <= last


def split_range(entry: str, ports: Iterable[int]) -> list[str]:
    """Return the rest of a range of ports without these ports."""
    first, last, protocol = port_range(entry)
    left = []
    for port in [*sorted(port for port in set(ports) if first <= port <= last), last + 1]:
        if first <= port - 1:
            left.append(f"{first}-{port - 1}/{protocol}" if first < port - 1 else f"{first}/{protocol}")
        first = port + 1
    return left


def _service_opens(services: Mapping[str, Service], name: str, port: int, seen: frozenset[str] = frozenset()) -> bool:
    service = services.get(name)
    if service is None or name in seen:
        return False
    return (
        any(covers(entry, port) for entry in service.ports)
        or "tcp" in service.protocols
        or any(entry.endswith("/tcp") for entry in service.source_ports)
        or any(_service_opens(services, other, port, seen | {name}) for other in service.includes)
    )


def _forward_opens(entry: str, port: int) -> bool:
    """Return whether `port=80:proto=tcp:toport=8080:toaddr=` leads to this port of this host."""
    fields = dict(part.partition("=")[::2] for part in entry.split(":", 3))
    return not fields.get("toaddr") and covers(
        f"{fields.get('toport') or fields.get('port')}/{fields.get('proto')}", port
    )


def _rule_opens(services: Mapping[str, Service], rule: str, port: int) -> bool:
    elements = parse_rule(rule)
    if "forward-port" in elements:
        forward = elements["forward-port"]
        inside = f"{forward.get('to-port') or forward.get('port')}/{forward.get('protocol')}"
        return not forward.get("to-addr") and covers(inside, port)
    if "accept" not in elements:
        return False
    if "port" in elements:
        return covers(f"{elements['port'].get('port')}/{elements['port'].get('protocol')}", port)
    if "service" in elements:
        return _service_opens(services, elements["service"].get("name", ""), port)
    if "protocol" in elements:
        return elements["protocol"].get("value") == "tcp"
    if "source-port" in elements:
        return elements["source-port"].get("protocol") == "tcp"
    # A rule without these elements applies to all packets.
    return not {"icmp-type", "icmp-block", "masquerade", "tcp-mss-clamp"} & set(elements)


def openings(zone: Zone, services: Mapping[str, Service], port: int) -> Iterator[tuple[str, str]]:
    """Yield each setting except plain ports that opens a port in a zone, and the option that removes the setting."""
    if zone.target == "ACCEPT":
        yield "the target ACCEPT", "--set-target=default"
    for name in zone.services:
        if _service_opens(services, name, port):
            yield f"the service {name}", f"--remove-service={name}"
    for rule in zone.rich_rules:
        if _rule_opens(services, rule, port):
            yield f"the rich rule {rule}", f"--remove-rich-rule={rule}"
    for entry in zone.forward_ports:
        if _forward_opens(entry, port):
            yield f"the forward port {entry}", f"--remove-forward-port={entry}"
    for entry in zone.source_ports:
        if entry.endswith("/tcp"):
            yield f"the source port {entry}", f"--remove-source-port={entry}"
    if "tcp" in zone.protocols:
        yield "the protocol tcp", "--remove-protocol=tcp"


def surely_open(zone: Zone, services: Mapping[str, Service], port: int) -> bool:
    """Return whether every client in a zone reaches a port, not only from some address or by another port."""
    narrow = {"source", "forward-port", "source-port"}
    rules = tuple(rule for rule in zone.rich_rules if not narrow & set(parse_rule(rule)))
    whole = replace(zone, rich_rules=rules, forward_ports=(), source_ports=())
    return any(covers(entry, port) for entry in zone.ports) or bool(list(openings(whole, services, port)))


def network_of(source: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return the network of a zone's source; None for a MAC address or an ipset."""
    try:
        return ipaddress.ip_network(source, strict=False)
    except ValueError:
        return None


def holds(sources: Iterable[str], address: Address) -> bool:
    """Return whether one of these networks includes the address."""
    return any(address in network for network in map(network_of, sources) if network is not None)
