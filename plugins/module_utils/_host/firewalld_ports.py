# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: finds the settings of a firewalld zone that let others reach a port."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from .firewalld import Address, Service, Zone
from .firewalld_output import parse_rule


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
