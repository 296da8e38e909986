# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: parsers for the output of firewalld's programs, and for its files."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Dict, Iterable, Mapping, Sequence
from xml.etree import ElementTree as ET

from .firewalld import Service, Zone

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
