# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: why nothing may be changed in firewalld, or not all that has to be; one sentence each."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Sequence

from .firewalld import Session, State, Zone
from .firewalld_ports import covers, network_of, openings


def problems_of(
    own: str, sources: Sequence[str], ports: Sequence[int], state: State, session: Session | None
) -> list[str]:
    found = default_zone_problems(own, state)
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


def default_zone_problems(own: str, state: State) -> list[str]:
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
        for what, remedy in openings(zone, state.services, port)
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
