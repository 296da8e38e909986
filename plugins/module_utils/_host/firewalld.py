# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Private: what firewalld's programs print, and what has to change so that only trusted addresses reach some ports.

Knows neither Ansible nor the host. firewalld has two configurations, the permanent one and the one in force (runtime);
a host whose daemon does not run has the first alone.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, NamedTuple, Union
from xml.etree import ElementTree as ET

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
# The elements of a rich rule in their order, such as ("port", {"port": "22", "protocol": "tcp"}).
Elements = Dict[str, Dict[str, str]]


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
    # Of a policy alone.
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
    """All that is known of a host's firewalld."""

    permanent: View
    runtime: View | None
    services: Mapping[str, Service]

    def views(self) -> list[View]:
        """Return the configurations that there are."""
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
    state: str  # enabled or disabled; of a zone present or absent

    def text(self) -> str:
        """Return what to show to a person."""
        if self.kind == "zone":
            return f"zone {self.zone} {'made' if self.state == 'present' else 'removed'}"
        verb = "added to" if self.state == "enabled" else "removed from"
        return f"{self.kind.replace('_', ' ')} {self.value} {verb} zone {self.zone}"

    def options(self) -> list[str]:
        """Return what to give to firewalld's programs. What is the case already, they take with a warning."""
        if self.kind == "zone":
            return [f"--{'new' if self.state == 'present' else 'delete'}-zone={self.zone}"]
        verb = "add" if self.state == "enabled" else "remove"
        return [f"--zone={self.zone}", f"--{verb}-{self.kind.replace('_', '-')}={self.value}"]


class Plan(NamedTuple):
    """What has to change, in an order in which the session is open at every moment."""

    changes: list[Change]
    # The changes are made to the permanent configuration alone, and a reload then puts them into force all at once.
    reload: bool
    # Why nothing may be changed; one sentence each.
    problems: list[str]

    def texts(self) -> list[str]:
        """Return what to show to a person."""
        return [change.text() for change in self.changes] + (["firewalld reloaded"] if self.reload else [])

    def commands(self, running: bool) -> list[tuple[str, list[str]]]:
        """Return the commands that do it, each with what it does."""
        if not running:
            return [(change.text(), ["firewall-offline-cmd", *change.options()]) for change in self.changes]
        found = []
        for change in self.changes:
            found.append((f"{change.text()} (permanent)", ["firewall-cmd", "--permanent", *change.options()]))
            if not self.reload:
                found.append((f"{change.text()} (runtime)", ["firewall-cmd", *change.options()]))
        return found + ([("firewalld reloaded", ["firewall-cmd", "--reload"])] if self.reload else [])


# --- reading --------------------------------------------------------------------------------------------------------


def parse_zones(text: str) -> dict[str, Zone]:
    """Read `firewall-cmd --list-all-zones` or `--list-all-policies`, or the same of firewall-offline-cmd."""
    found: dict[str, dict[str, list[str]]] = {}
    key = ""
    fields: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        if not line[0].isspace():
            # `public (default, active)`: what is in parentheses differs among releases, and can be told otherwise.
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
    """Read a service from its file; none if that is not to be understood."""
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
    """Return the services that zones or policies speak of."""
    found: set[str] = set()
    for zone in zones:
        found.update(zone.services)
        found.update(parse_rule(rule).get("service", {}).get("name", "") for rule in zone.rich_rules)
    return found - {""}


# --- ports ----------------------------------------------------------------------------------------------------------


def port_range(text: str) -> tuple[int, int, str]:
    """Read `22/tcp` or `1025-65535/tcp`; no port at all if it is neither."""
    numbers, _slash, protocol = text.partition("/")
    first, _dash, last = numbers.partition("-")
    try:
        return int(first), int(last or first), protocol
    except ValueError:
        return 0, -1, protocol


def covers(entry: str, port: int) -> bool:
    """Say whether `22/tcp` or `1-1024/tcp` holds this TCP port."""
    first, last, protocol = port_range(entry)
    return protocol == "tcp" and first <= port <= last


def split_range(entry: str, ports: Iterable[int]) -> list[str]:
    """Return what is left of a range of ports without these ones."""
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
    """Say whether `port=80:proto=tcp:toport=8080:toaddr=` leads to this port of this host."""
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
    # With no element a rule is about all packets.
    return not {"icmp-type", "icmp-block", "masquerade", "tcp-mss-clamp"} & set(elements)


def _openings(zone: Zone, services: Mapping[str, Service], port: int) -> Iterator[tuple[str, str]]:
    """Give what lets others reach a port through a zone, but for plain ports, and the option that takes it away."""
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


# --- planning -------------------------------------------------------------------------------------------------------


def network_of(source: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return the network of a zone's source; none for a MAC address or an ipset."""
    try:
        return ipaddress.ip_network(source, strict=False)
    except ValueError:
        return None


def holds(sources: Iterable[str], address: Address) -> bool:
    """Say whether one of these networks holds the address."""
    return any(address in network for network in map(network_of, sources) if network is not None)


def plan_zone(name: str, sources: Sequence[str], ports: Sequence[int], state: State, session: Session | None) -> Plan:
    """Return what has to change so that these sources alone reach these ports; `sources` are normalised."""
    in_own_zone = session is not None and holds(sources, session.client)
    own = state.permanent.zones.get(name)
    # Those of other controllers stay while these are trusted: what is right must not depend on who looks.
    rules = [rule for rule in (own.rich_rules if own else ()) if _is_ssh_rule(rule, sources)]
    if session is not None and in_own_zone and _ssh_rule(session) not in rules:
        rules.append(_ssh_rule(session))
    wanted = Zone(name, sources=tuple(sources), ports=tuple(f"{port}/tcp" for port in ports), rich_rules=tuple(rules))
    in_force = state.runtime.zones.get(name) if state.runtime else None
    anew = own is None or not _is_ours(own)
    closing = list(_closings(name, ports, state.permanent))
    reload = state.runtime is not None and (
        anew
        or in_force is None
        or not _is_ours(in_force)
        # What is left of a range is opened anew: for a moment all of it is closed, the session's port perhaps too.
        or any("-" in change.value for change in closing)
        or any("-" in change.value for change in _closings(name, ports, state.runtime))
    )
    views = [state.permanent] if reload or state.runtime is None else [state.permanent, state.runtime]
    before = [Zone(name) if anew and view is state.permanent else view.zones.get(name, Zone(name)) for view in views]
    changes = []
    if anew:
        changes += [Change(name, "zone", "", "absent")] if own else []
        changes.append(Change(name, "zone", "", "present"))
    if session is not None and not in_own_zone:
        changes += _session_opened(name, state, views, session)
    for kind in ("rich_rule", "port", "source"):
        changes += _differences(kind, wanted, before, "enabled")
    for kind in ("source", "port", "rich_rule"):
        changes += _differences(kind, wanted, before, "disabled")
    changes += closing
    if not reload and state.runtime is not None:
        changes += [change for change in _closings(name, ports, state.runtime) if change not in closing]
    return Plan(list(dict.fromkeys(changes)), reload, _problems(name, sources, ports, state, session))


def plan_removal(name: str, state: State, session: Session | None) -> Plan:
    """Return what has to change so that the zone is gone."""
    known = name in state.permanent.zones
    reload = state.runtime is not None and (known or name in state.runtime.zones)
    if not known and not reload:
        return Plan([], reload=False, problems=[])
    changes = [] if session is None else _session_opened(name, state, [state.permanent], session)
    if known:
        changes.append(Change(name, "zone", "", "absent"))
    return Plan(changes, reload, _default_zone_problems(name, state))


def _is_ours(zone: Zone) -> bool:
    """Say whether a zone has nothing but what this role puts into one."""
    return zone == Zone(zone.name, sources=zone.sources, ports=zone.ports, rich_rules=zone.rich_rules)


def _differences(kind: str, wanted: Zone, before: Sequence[Zone], state: str) -> list[Change]:
    def values(zone: Zone) -> tuple[str, ...]:
        return {"source": zone.sources, "port": zone.ports, "rich_rule": zone.rich_rules}[kind]

    goal = values(wanted)
    if state == "enabled":
        found = [value for value in goal if any(value not in values(zone) for zone in before)]
    else:
        found = [value for zone in before for value in values(zone) if value not in goal]
    return [Change(wanted.name, kind, value, state) for value in dict.fromkeys(found)]


def _closings(own: str, ports: Sequence[int], view: View) -> Iterator[Change]:
    """Give the changes that close plain ports in all other zones, in use or not."""
    for zone in view.zones.values():
        for entry in zone.ports if zone.name != own else ():
            if any(covers(entry, port) for port in ports):
                yield Change(zone.name, "port", entry, "disabled")
                for left in split_range(entry, ports):
                    yield Change(zone.name, "port", left, "enabled")


def _ssh_rule(session: Session) -> str:
    return (
        f'rule family="ipv{session.client.version}" source address="{session.client}" '
        f'port port="{session.port}" protocol="tcp" accept'
    )


def _is_ssh_rule(rule: str, sources: Sequence[str]) -> bool:
    """Say whether a rule is as `_ssh_rule` makes it, for an address that these sources hold."""
    elements = parse_rule(rule)
    try:
        client = ipaddress.ip_address(elements.get("source", {}).get("address", ""))
        port = int(elements.get("port", {}).get("port", ""))
    except ValueError:
        return False
    return rule == _ssh_rule(Session(client, port, "")) and holds(sources, client)


def _session_opened(own: str, state: State, views: Sequence[View], session: Session) -> list[Change]:
    """Return what keeps a session open that comes through another zone than ours."""
    zones = [_zone_of_session(own, state, view, session) for view in views]
    return [
        Change(zone.name, "port", f"{session.port}/tcp", "enabled")
        for zone in zones
        if not _surely_open(zone, state.services, session.port)
    ]


def _surely_open(zone: Zone, services: Mapping[str, Service], port: int) -> bool:
    """Say whether everyone in a zone reaches a port, not just who comes from some address, or by another port."""
    narrow = {"source", "forward-port", "source-port"}
    rules = tuple(rule for rule in zone.rich_rules if not narrow & set(parse_rule(rule)))
    whole = replace(zone, rich_rules=rules, forward_ports=(), source_ports=())
    return any(covers(entry, port) for entry in zone.ports) or bool(list(_openings(whole, services, port)))


def _zone_of_session(own: str, state: State, view: View, session: Session) -> Zone:
    """Return the zone that a session falls into: sources come before interfaces, and the default zone is last."""
    others = [zone for zone in view.zones.values() if zone.name != own]
    for zone in others:
        if holds(zone.sources, session.client):
            return zone
    # Who binds an interface while the daemon runs, as NetworkManager does, does so again after a reload.
    for known in reversed(state.views()):
        for zone in known.zones.values():
            if zone.name != own and session.interface in zone.interfaces:
                return view.zones.get(zone.name, zone)
    return view.zones.get(view.default_zone, Zone(view.default_zone))


def _problems(
    own: str, sources: Sequence[str], ports: Sequence[int], state: State, session: Session | None
) -> list[str]:
    found = _default_zone_problems(own, state)
    if session is not None and session.port in ports:
        found.append(f"Port {session.port} is the one that SSH uses here: choose another RPC port.")
    networks = [network for network in map(network_of, sources) if network is not None]
    for view in state.views():
        for zone in view.in_use():
            if zone.name == own:
                continue
            found += _overlaps(zone, networks)
            # Through the loopback interface every packet passes, whatever its zone says.
            if zone.interfaces != ("lo",) or zone.sources:
                found += _opens(f"Zone {zone.name}", f"--zone={zone.name}", zone, state, ports)
        for policy in view.into_host():
            option = f"--policy={policy.name}"
            found += _opens(f"Policy {policy.name}", option, policy, state, ports)
            for port in ports:
                found += [
                    _opening(f"Policy {policy.name}", f"the port {entry}", port, option, f"--remove-port={entry}")
                    for entry in policy.ports
                    if covers(entry, port)
                ]
    return list(dict.fromkeys(found))


def _default_zone_problems(own: str, state: State) -> list[str]:
    if all(view.default_zone != own for view in state.views()):
        return []
    remedy = "choose another one with `firewall-cmd --set-default-zone=public`"
    return [f"Zone {own} is the default zone, so that everyone falls into it: {remedy}."]


def _overlaps(zone: Zone, networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> list[str]:
    return [
        f"The source {source} is bound to zone {zone.name}, and {network} is trusted, so chance would decide: take it "
        f"out with `firewall-cmd --permanent --zone={zone.name} --remove-source={source}` and `firewall-cmd --reload`."
        for source in zone.sources
        for network in networks
        for bound in [network_of(source)]
        if bound is not None and bound.version == network.version and bound.overlaps(network)
    ]


def _opens(who: str, option: str, zone: Zone, state: State, ports: Sequence[int]) -> list[str]:
    return [
        _opening(who, what, port, option, remedy)
        for port in ports
        for what, remedy in _openings(zone, state.services, port)
    ]


def _opening(who: str, what: str, port: int, option: str, remedy: str) -> str:
    # Docker and libvirt have zones that accept all, and need them so.
    otherwise = (
        "keep the firewall yourself with rpc_firewall_enabled: false, where other software needs the zone as it is"
        if remedy.startswith("--set-target")
        else "choose another RPC port"
    )
    return (
        f"{who} lets others reach port {port} by {what}: take that away with `firewall-cmd --permanent {option} "
        f"{shlex.quote(remedy)}` and `firewall-cmd --reload`, or {otherwise}."
    )
