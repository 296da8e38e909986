# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: plans firewalld changes so that only trusted addresses reach some ports, or says why none may be made."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from .firewalld import (
    Change,
    Plan,
    Session,
    State,
    View,
    Zone,
    covers,
    holds,
    network_of,
    openings,
    parse_rule,
    split_range,
    surely_open,
)


def plan_zone(
    name: str,
    sources: Sequence[str],
    ports: Sequence[int],
    state: State,
    session: Session | None,
    port_sources: Mapping[int, Sequence[str]] | None = None,
    tunnel_port: int = 0,
) -> Plan:
    """Return the changes that let only these sources reach these ports; `sources` are normalised.

    If `port_sources` has a port, only the sources given there reach it. All sources reach `tunnel_port` (UDP).
    """
    own = state.permanent.zones.get(name)
    anew = own is None or not _is_ours(own)
    closing = [list(_closings(name, ports, view)) for view in state.views()]
    reload = _must_reload(name, state, closing, anew=anew)
    views = [state.permanent] if reload else state.views()
    before = [Zone(name) if anew and view is state.permanent else view.zones.get(name, Zone(name)) for view in views]
    changes = []
    if anew:
        changes += [Change(name, "zone", "", "absent")] if own else []
        changes.append(Change(name, "zone", "", "present"))
    if session is not None and not holds(sources, session.client):
        changes += _session_opened(name, state, views, session)
    wanted = _wanted(name, sources, ports, own, session, port_sources or {})
    if tunnel_port:
        wanted = replace(wanted, ports=(*wanted.ports, f"{tunnel_port}/udp"))
    for kind in ("rich_rule", "port", "source"):
        changes += _differences(kind, wanted, before, "enabled")
    for kind in ("source", "port", "rich_rule"):
        changes += _differences(kind, wanted, before, "disabled")
    for found in closing[: len(views)]:
        changes += [change for change in found if found is closing[0] or change not in closing[0]]
    return Plan(list(dict.fromkeys(changes)), reload, problems_of(name, sources, ports, state, session))


def _wanted(
    name: str,
    sources: Sequence[str],
    ports: Sequence[int],
    own: Zone | None,
    session: Session | None,
    port_sources: Mapping[int, Sequence[str]],
) -> Zone:
    """Return our zone in its wanted state."""
    # Keep the SSH rules of other trusted controllers: the wanted state must not depend on the controller in use.
    rules = [rule for rule in (own.rich_rules if own else ()) if _is_ssh_rule(rule, sources)]
    if session is not None and holds(sources, session.client) and _ssh_rule(session) not in rules:
        rules.append(_ssh_rule(session))
    rules += [_rpc_rule(source, port) for port in ports for source in port_sources.get(port, ())]
    open_ports = tuple(f"{port}/tcp" for port in ports if port not in port_sources)
    return Zone(name, sources=tuple(sources), ports=open_ports, rich_rules=tuple(rules))


def _must_reload(name: str, state: State, closing: Sequence[Sequence[Change]], *, anew: bool) -> bool:
    """Return whether the changes have to come into force all at once."""
    in_force = state.runtime.zones.get(name) if state.runtime else None
    return state.runtime is not None and (
        anew
        or in_force is None
        or not _is_ours(in_force)
        # The rest of a range is opened again: for a moment the whole range is closed, perhaps with the session's port.
        or any("-" in change.value for changes in closing for change in changes)
    )


def plan_removal(name: str, state: State, session: Session | None) -> Plan:
    """Return the changes that remove the zone."""
    known = name in state.permanent.zones
    reload = state.runtime is not None and (known or name in state.runtime.zones)
    if not known and not reload:
        return Plan([], reload=False, problems=[])
    changes = [] if session is None else _session_opened(name, state, [state.permanent], session)
    if known:
        changes.append(Change(name, "zone", "", "absent"))
    return Plan(changes, reload, default_zone_problems(name, state))


def _is_ours(zone: Zone) -> bool:
    """Return whether a zone has only the kinds of settings that this role makes."""
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
    """Yield the changes that close plain ports in all other zones, in use or not."""
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


def _rpc_rule(source: str, port: int) -> str:
    # The source is a network, even for one address. So this is never a rule of `_ssh_rule`, which stays while its
    # address is trusted.
    family = ipaddress.ip_network(source).version
    return f'rule family="ipv{family}" source address="{source}" port port="{port}" protocol="tcp" accept'


def _is_ssh_rule(rule: str, sources: Sequence[str]) -> bool:
    """Return whether a rule is one that `_ssh_rule` makes for an address within these sources."""
    elements = parse_rule(rule)
    try:
        client = ipaddress.ip_address(elements.get("source", {}).get("address", ""))
        port = int(elements.get("port", {}).get("port", ""))
    except ValueError:
        return False
    return rule == _ssh_rule(Session(client, port, "")) and holds(sources, client)


def _session_opened(own: str, state: State, views: Sequence[View], session: Session) -> list[Change]:
    """Return the changes that keep a session open if it comes through another zone than ours."""
    zones = [_zone_of_session(own, state, view, session) for view in views]
    return [
        Change(zone.name, "port", f"{session.port}/tcp", "enabled")
        for zone in zones
        # Another zone of this role, such as a gateway's on a worker's host, admits the session by its SSH rule.
        if _ssh_rule(session) not in zone.rich_rules and not surely_open(zone, state.services, session.port)
    ]


def _zone_of_session(own: str, state: State, view: View, session: Session) -> Zone:
    """Return the zone that a session falls into: sources come before interfaces, and the default zone is last."""
    others = [zone for zone in view.zones.values() if zone.name != own]
    for zone in others:
        if holds(zone.sources, session.client):
            return zone
    # A program that binds an interface while the daemon runs, such as NetworkManager, binds it again after a reload.
    for known in reversed(state.views()):
        for zone in known.zones.values():
            if zone.name != own and session.interface in zone.interfaces:
                return view.zones.get(zone.name, zone)
    return view.zones.get(view.default_zone, Zone(view.default_zone))


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
            # Every packet on the loopback interface passes, whatever its zone says.
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
    return [f"Zone {own} is the default zone, which admits every address without a zone: {remedy}."]


def _overlaps(zone: Zone, networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> list[str]:
    return [
        f"The source {source} is bound to zone {zone.name}, and {network} is trusted, so either zone may apply: remove "
        f"it with `firewall-cmd --permanent --zone={zone.name} --remove-source={source}` and `firewall-cmd --reload`."
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
    # Docker and libvirt need their zones, which accept everything.
    otherwise = (
        "set rpc_firewall_enabled to false and close the ports yourself if other software needs that zone"
        if remedy.startswith("--set-target")
        else "choose another RPC port"
    )
    return (
        f"{who} lets others reach port {port} by {what}: remove that with `firewall-cmd --permanent {option} "
        f"{shlex.quote(remedy)}` and `firewall-cmd --reload`, or {otherwise}."
    )
