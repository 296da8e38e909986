# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of firewalld is read, and the plan closes the ports to everyone else without cutting off a session."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.firewalld import (
    Change,
    Plan,
    Service,
    Session,
    State,
    View,
    Zone,
    covers,
    parse_rule,
    parse_service,
    parse_zones,
    read_service,
    split_range,
    used_services,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.firewalld_plan import plan_removal, plan_zone

RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "firewalld"
RULE = 'rule family="ipv4" source address="10.1.0.0/16" port port="1000-2000" protocol="tcp" accept'
SERVICES = {
    "ssh": Service(ports=("22/tcp",)),
    "wide": Service(ports=("50000-51000/tcp",)),
    "bundle": Service(includes=("ssh", "bundle", "wide")),
    "all-tcp": Service(protocols=("tcp",)),
    "from-53": Service(source_ports=("53/tcp",)),
    "names": Service(ports=("50052/udp",)),
}
OWN = Zone("llama-rpc", sources=("10.0.0.10/32",), ports=("50052/tcp",))
PUBLIC = Zone("public", interfaces=("eth0",), services=("ssh",))
ADMIN = Session(ipaddress.ip_address("10.0.0.2"), 22, "eth0")
# A controller that is the master itself.
MASTER = Session(ipaddress.ip_address("10.0.0.10"), 2222, "eth0")
SSH_FROM_MASTER = 'rule family="ipv4" source address="10.0.0.10" port port="2222" protocol="tcp" accept'


NOTHING = Plan([], False, [])


def view(*zones: Zone, policies: tuple[Zone, ...] = (), default: str = "public") -> View:
    return View(default, {zone.name: zone for zone in zones}, {policy.name: policy for policy in policies})


def running(permanent: View, runtime: View | None = None) -> State:
    return State(permanent, permanent if runtime is None else runtime, SERVICES)


def stopped(permanent: View) -> State:
    return State(permanent, None, SERVICES)


def planned(state: State, session: Session | None = ADMIN, ports: tuple[int, ...] = (50052,)) -> Plan:
    return plan_zone("llama-rpc", ["10.0.0.10/32"], ports, state, session)


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.3.3", "2.3.1"])
def test_recorded_zones_and_policies_are_read(version: str) -> None:
    zones, policies, offline = (
        parse_zones((RECORDED / f"{name}.txt").read_text())
        for name in (f"zones-{version}", f"policies-{version}", "zones-2.3.1-offline")
    )
    assert list(zones) == ["block", "dmz", "drop", "external", "home", "internal", "public", "trusted", "work"]
    assert zones["public"] == Zone(
        "public",
        services=("dhcpv6-client", "ssh"),
        ports=("1025-65535/tcp", "53/udp"),
        protocols=("gre",),
        forward_ports=("port=80:proto=tcp:toport=8080:toaddr=", "port=81:proto=tcp:toport=8081:toaddr=10.1.1.1"),
        source_ports=("53/tcp",),
        icmp_blocks=("echo-request",),
        rich_rules=(RULE, 'rule service name="http" accept'),
    )
    assert zones["internal"].sources == ("10.2.0.0/16", "fd00::/64", "00:11:22:33:44:55", "10.3.0.1/32")
    others = (zones["external"].masquerade, zones["home"].interfaces, zones["trusted"].target, zones["block"].target)
    assert others == (True, ("eth7",), "ACCEPT", "%%REJECT%%")
    assert used_services([zones["public"]]) == {"dhcpv6-client", "ssh", "http"}
    assert offline["public"] == Zone("public", services=("dhcpv6-client", "ssh"))
    assert "1025-" in offline["home"].ports[0]
    (policy,) = policies.values()
    assert (policy.name, policy.egress_zones, len(policy.rich_rules)) == ("allow-host-ipv6", ("HOST",), 4)
    # The policies that firewalld installs are no obstacle.
    assert planned(running(view(OWN, PUBLIC, policies=(policy,)))) == NOTHING


def test_services_and_rules_are_read(tmp_path: Path) -> None:
    service = parse_service((RECORDED / "service-samba-2.3.1.txt").read_text())
    assert service == Service(ports=("139/tcp", "445/tcp"), includes=("samba-client",))
    assert parse_rule(RULE) == {
        "rule": {"family": "ipv4"}, "source": {"address": "10.1.0.0/16"},
        "port": {"port": "1000-2000", "protocol": "tcp"}, "accept": {},
    }  # fmt: skip
    path = tmp_path / "mixed.xml"
    path.write_text(
        '<?xml version="1.0" encoding="utf-8"?><service version="1.0"><short>Mixed</short>'
        '<include service="samba-client"/><port protocol="tcp" port="139"/><port port="1000-1010" protocol="udp"/>'
        '<port port="" protocol="ah"/><protocol value="esp"/><source-port port="53" protocol="udp"/></service>'
    )
    includes = ("samba-client",)
    assert read_service(path) == Service(("139/tcp", "1000-1010/udp"), ("esp", "ah"), ("53/udp",), includes)
    for broken in ("", "<service>"):
        path.write_text(broken)
        assert read_service(path) is None
    assert read_service(tmp_path / "none.xml") is None


# --- ports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "ports", "left"),
    [
        ("1025-65535/tcp", [50052], ["1025-50051/tcp", "50053-65535/tcp"]),
        ("50051-50053/tcp", [50052], ["50051/tcp", "50053/tcp"]),
        ("50052/tcp", [50052], []),
        ("50052-50053/tcp", [50053, 50052], []),
        ("50000-50100/tcp", [50060, 50052, 50060], ["50000-50051/tcp", "50053-50059/tcp", "50061-50100/tcp"]),
        ("1-65535/tcp", [1, 65535], ["2-65534/tcp"]),
    ],
)
def test_range_is_split(entry: str, ports: list[int], left: list[str]) -> None:
    assert split_range(entry, ports) == left


def test_port_is_held() -> None:
    entries = ("22/tcp", "1-1024/tcp", "22/udp", "23-1024/tcp", "ssh/tcp", "")
    assert [covers(entry, 22) for entry in entries] == [True, True, False, False, False, False]


# --- what has to change ---------------------------------------------------------------------------------------------


def texts(plan: Plan) -> list[str]:
    return [change.text() for change in plan.changes]


OPEN = replace(PUBLIC, ports=("50052/tcp", "50052/udp"))
SOURCE_ADDED = ["source 10.0.0.10/32 added to zone llama-rpc"]
MADE = ["zone llama-rpc made", "port 50052/tcp added to zone llama-rpc", *SOURCE_ADDED]
ANEW = ["zone llama-rpc removed", *MADE]
CLOSED = "port 50052/tcp removed from zone public"


def both(*zones: Zone) -> tuple[View, View]:
    return view(*zones), view(*zones)


# What is configured permanently, what is in force, the changes, and whether these need a reload.
CHANGES: dict[str, tuple[View, View | None, list[str], bool]] = {
    "first run": (*both(PUBLIC), MADE, True),
    "second run": (*both(OWN, PUBLIC), [], False),
    "second run, and stopped": (view(OWN, PUBLIC), None, [], False),
    "what is no longer trusted": (
        *both(replace(OWN, sources=("10.0.0.10/32", "10.0.0.99/32"), ports=("50052/tcp", "50060/tcp")), PUBLIC),
        ["source 10.0.0.99/32 removed from zone llama-rpc", "port 50060/tcp removed from zone llama-rpc"],
        False,
    ),
    "missing permanently": (view(replace(OWN, sources=()), PUBLIC), view(OWN, PUBLIC), SOURCE_ADDED, False),
    "missing in force": (view(OWN, PUBLIC), view(replace(OWN, sources=()), PUBLIC), SOURCE_ADDED, False),
    "rule for a master": (*both(replace(OWN, rich_rules=(SSH_FROM_MASTER,)), PUBLIC), [], False),
    **{
        f"rule for {what}": (
            *both(replace(OWN, rich_rules=(rule,)), PUBLIC), [f"rich rule {rule} removed from zone llama-rpc"], False
        )
        for what, rule in (("others", RULE), ("more than a master", SSH_FROM_MASTER.replace('10"', '0/24"')))
    },
    **{
        f"own zone with {zone}": (*both(zone, PUBLIC), ANEW, True)
        for zone in (
            replace(OWN, services=("ssh",)), replace(OWN, interfaces=("eth1",)), replace(OWN, target="ACCEPT"),
            replace(OWN, masquerade=True),
        )
    },
    # The change is in force only, so a reload is enough.
    "own zone with a target in force": (view(OWN, PUBLIC), view(replace(OWN, target="ACCEPT"), PUBLIC), [], True),
    "open elsewhere": (
        *both(OWN, OPEN, Zone("work", ports=("50052/tcp",))), [CLOSED, CLOSED.replace("public", "work")], False
    ),
    "open as a range": (
        *both(OWN, replace(PUBLIC, ports=("1-65535/tcp",))),
        [CLOSED.replace("50052", "1-65535"), "port 1-50051/tcp added to zone public",
         "port 50053-65535/tcp added to zone public"],
        True,
    ),
    "open as a range in force": (view(OWN, PUBLIC), view(OWN, replace(PUBLIC, ports=("1-65535/tcp",))), [], True),
    "open in force": (view(OWN, PUBLIC), view(OWN, OPEN), [CLOSED], False),
}  # fmt: skip


@pytest.mark.parametrize(("permanent", "runtime", "changes", "reload"), CHANGES.values(), ids=CHANGES)
def test_changes_bring_both_configurations_together(
    permanent: View, runtime: View | None, changes: list[str], reload: bool
) -> None:
    plan = planned(State(permanent, runtime, SERVICES))
    assert (texts(plan), plan.reload, plan.problems) == (changes, reload, [])


def test_commands_do_what_the_plan_says() -> None:
    add, new = Change("llama-rpc", "source", "10.0.0.10/32", "enabled"), Change("llama-rpc", "zone", "", "present")
    rule = Change("llama-rpc", "rich_rule", RULE, "disabled")
    permanent = ["firewall-cmd", "--permanent", "--zone=llama-rpc"]
    # Both configurations change, one after the other.
    assert [argv for _text, argv in Plan([add, rule], False, []).commands(running=True)] == [
        [*permanent, "--add-source=10.0.0.10/32"],
        [permanent[0], permanent[2], "--add-source=10.0.0.10/32"],
        [*permanent, f"--remove-rich-rule={RULE}"],
        [permanent[0], permanent[2], f"--remove-rich-rule={RULE}"],
    ]
    # The permanent one changes, and a reload puts it into force.
    assert [argv for _text, argv in Plan([new, add], True, []).commands(running=True)] == [
        [*permanent[:2], "--new-zone=llama-rpc"],
        [*permanent, "--add-source=10.0.0.10/32"],
        [permanent[0], "--reload"],
    ]
    # A stopped daemon has only the permanent one.
    assert Plan([new], False, []).commands(running=False) == [
        ("zone llama-rpc made", ["firewall-offline-cmd", "--new-zone=llama-rpc"])
    ]


# --- the SSH session ------------------------------------------------------------------------------------------------

DROP = Zone("drop", target="DROP", sources=("10.0.0.0/30",))


def without_ssh(**changes: Any) -> Zone:
    return replace(PUBLIC, services=(), **changes)


WORK, EMPTY = Zone("work", interfaces=("eth0",)), Zone("work")
GATEWAY = Zone("llama-gateway", sources=("10.0.0.0/30",), ports=("8000/tcp",))
SSH_FROM_ADMIN = SSH_FROM_MASTER.replace("10.0.0.10", "10.0.0.2").replace("2222", "22")
# Zones beside the own one, the session, and the port of it that is opened in which zone.
SESSIONS: dict[str, tuple[tuple[Zone, ...], Session | None, tuple[str, str] | None]] = {
    "open by service": ((PUBLIC,), ADMIN, None),
    "open by range": ((without_ssh(ports=("1-1024/tcp",)),), ADMIN, None),
    "open by rule": ((without_ssh(rich_rules=('rule service name="ssh" accept',)),), ADMIN, None),
    "rule for somebody": ((without_ssh(rich_rules=(RULE.replace("1000-2000", "22"),)),), ADMIN, ("public", "22")),
    "forwarded from elsewhere": (
        (without_ssh(forward_ports=("port=8022:proto=tcp:toport=22:toaddr=",)),), ADMIN, ("public", "22")),
    "closed": ((without_ssh(),), ADMIN, ("public", "22")),
    "other port": ((PUBLIC,), replace(ADMIN, port=2222), ("public", "2222")),
    "no session": ((without_ssh(),), None, None),
    # The zone of its address comes first, then that of the interface, then the default zone.
    "zone of its address": ((PUBLIC, DROP), ADMIN, ("drop", "22")),
    "zone of its interface": ((replace(PUBLIC, interfaces=()), WORK), ADMIN, ("work", "22")),
    "default zone": ((without_ssh(interfaces=()),), ADMIN, ("public", "22")),
    # Another zone of the role lets it in, or somebody else.
    "let in by a gateway": ((PUBLIC, replace(GATEWAY, rich_rules=(SSH_FROM_ADMIN,))), ADMIN, None),
    "not let in by it": ((PUBLIC, replace(GATEWAY, rich_rules=(SSH_FROM_MASTER,))), ADMIN, ("llama-gateway", "22")),
}  # fmt: skip


@pytest.mark.parametrize(("zones", "session", "opened"), SESSIONS.values(), ids=SESSIONS)
def test_session_stays_open_in_the_zone_that_it_falls_into(
    zones: tuple[Zone, ...], session: Session | None, opened: tuple[str, str] | None
) -> None:
    expected = [] if opened is None else [Change(opened[0], "port", f"{opened[1]}/tcp", "enabled")]
    for state in (stopped(view(OWN, *zones)), running(view(OWN, *zones))):
        assert planned(state, session).changes == expected


def test_session_stays_open_over_a_reload_and_before_anything_else_is_done() -> None:
    assert texts(planned(stopped(view(without_ssh()))))[:2] == [
        "zone llama-rpc made",
        "port 22/tcp added to zone public",
    ]
    # Port 22 is open in the runtime configuration only: a reload, now or by anyone later, would close it.
    for own in ((), (OWN,)):
        plan = planned(running(view(*own, without_ssh()), view(*own, PUBLIC)))
        assert Change("public", "port", "22/tcp", "enabled") in plan.changes
    # An interface that was bound while the daemon runs stays bound, over a reload too.
    unbound, bound = replace(PUBLIC, interfaces=()), replace(EMPTY, interfaces=("eth0",))
    assert planned(running(view(OWN, unbound, EMPTY), view(OWN, PUBLIC, bound))).changes == []
    plan = planned(running(view(unbound, EMPTY), view(unbound, bound)))
    assert Change("work", "port", "22/tcp", "enabled") in plan.changes


def test_controller_that_is_trusted_keeps_its_session_through_our_zone() -> None:
    plan = planned(running(view(OWN, PUBLIC)), MASTER)
    assert plan == Plan([Change("llama-rpc", "rich_rule", SSH_FROM_MASTER, "enabled")], False, [])
    # The rule comes before its address falls into the zone.
    order = [change.kind for change in planned(running(view(replace(OWN, sources=()), PUBLIC)), MASTER).changes]
    assert order == ["rich_rule", "source"]
    by_ipv6 = Session(ipaddress.ip_address("fd00::10"), 22, "eth0")
    plan = plan_zone("llama-rpc", ["fd00::/64"], [50052], running(view(PUBLIC)), by_ipv6)
    rule = 'rule family="ipv6" source address="fd00::10" port port="22" protocol="tcp" accept'
    assert Change("llama-rpc", "rich_rule", rule, "enabled") in plan.changes
    # The rule goes with the trust, whoever looks.
    state = running(view(replace(OWN, rich_rules=(SSH_FROM_MASTER,)), PUBLIC))
    assert planned(state, MASTER) == NOTHING
    plan = plan_zone("llama-rpc", ["10.0.0.99/32"], [50052], state, None)
    assert Change("llama-rpc", "rich_rule", SSH_FROM_MASTER, "disabled") in plan.changes


A, B = "10.0.0.10/32", "10.0.0.20/32"
RULES = tuple(
    f'rule family="ipv4" source address="{source}" port port="{port}" protocol="tcp" accept'
    for source, port in ((A, 50052), (B, 50053))
)


@pytest.mark.parametrize(
    ("own", "changes"),
    [
        (Zone("llama-rpc", sources=(A, B), rich_rules=RULES), []),
        (OWN, [
            *(f"rich rule {rule} added to zone llama-rpc" for rule in RULES), f"source {B} added to zone llama-rpc",
            "port 50052/tcp removed from zone llama-rpc",
        ]),
        # A rule of a master that is still trusted goes with its port.
        (Zone("llama-rpc", sources=(A, B), rich_rules=(*RULES, RULES[0].replace("50052", "50053"))),
         [f"rich rule {RULES[0].replace('50052', '50053')} removed from zone llama-rpc"]),
    ],
)  # fmt: skip
def test_each_port_of_a_host_that_groups_share_is_for_its_own_master(own: Zone, changes: list[str]) -> None:
    by_port = {50052: [A], 50053: [B]}
    assert texts(plan_zone("llama-rpc", [A, B], [*by_port], running(view(PUBLIC, own)), ADMIN, by_port)) == changes


# --- what stands in the way -----------------------------------------------------------------------------------------


def public(**changes: Any) -> Zone:
    return replace(PUBLIC, **changes)


def open_by(zone: Zone, thing: str, remedy: str) -> tuple[Zone, str]:
    return zone, rf"Zone public lets others reach port 50052 by {thing}.*{remedy}"


HOST = {"egress_zones": ("HOST",)}
# A zone, or a policy, and the problem that is named with its remedy.
OBSTACLES: dict[str, tuple[Zone, str]] = {
    **{
        f"service {name}": open_by(public(services=("ssh", name)), f"the service {name}", f"--remove-service={name}")
        for name in ("wide", "bundle", "all-tcp", "from-53")
    },
    "target": open_by(public(target="ACCEPT"), "the target ACCEPT", "--set-target=default"),
    "forwarded port": open_by(
        public(forward_ports=("port=80:proto=tcp:toport=50052:toaddr=",)), "the forward port port=80",
        "--remove-forward-port="),
    "source port": open_by(public(source_ports=("53/tcp",)), "the source port 53/tcp", "--remove-source-port=53/tcp"),
    "protocol": open_by(public(protocols=("tcp",)), "the protocol tcp", "--remove-protocol=tcp"),
    **{
        f"rule {number}": open_by(public(rich_rules=(rule,)), "the rich rule", "'--remove-rich-rule=rule")
        for number, rule in enumerate(
            (
                RULE.replace("1000-2000", "50052"),
                'rule service name="wide" accept',
                'rule family="ipv4" source address="10.9.0.0/16" accept',
                'rule family="ipv4" forward-port port="80" protocol="tcp" to-port="50052"',
            )
        )
    },
    "source of another zone": (
        Zone("work", sources=("10.0.0.0/24",), services=("ssh",)),
        "The source 10.0.0.0/24 is bound to zone work, and 10.0.0.10/32 is trusted.*--zone=work --remove-source=10"),
    "policy with a port": (
        Zone("in", target="CONTINUE", ports=("50052/tcp",), **HOST),
        "Policy in lets others reach port 50052 by the port 50052/tcp"),
    "policy with a target": (
        Zone("in", target="ACCEPT", **HOST), "Policy in lets others reach port 50052 by the target ACCEPT"),
    "policy with a service": (
        Zone("in", services=("wide",), egress_zones=("ANY",)),
        "Policy in lets others reach port 50052 by the service wide"),
}  # fmt: skip


@pytest.mark.parametrize(("zone", "said"), OBSTACLES.values(), ids=OBSTACLES)
def test_what_else_opens_the_port_is_named_with_its_remedy(zone: Zone, said: str) -> None:
    if zone.egress_zones:
        permanent = runtime = view(OWN, PUBLIC, policies=(zone,))
        elsewhere = replace(zone, egress_zones=("work",))
        assert planned(running(view(OWN, PUBLIC, policies=(elsewhere,)))).problems == []
    else:
        permanent, runtime = view(OWN, PUBLIC), view(OWN, PUBLIC, zone)
    # It is a problem in either configuration.
    for state in (running(runtime), running(permanent, runtime)):
        (problem,) = planned(state).problems
        assert re.match(said, problem), problem


@pytest.mark.parametrize(
    "zone",
    [
        public(services=("ssh", "names")),
        Zone("trusted", target="ACCEPT"),
        Zone("trusted", target="ACCEPT", interfaces=("lo",)),
        public(forward_ports=("port=50052:proto=tcp:toport=50052:toaddr=10.1.1.1",)),
        public(rich_rules=('rule port port="50052" protocol="tcp" reject',)),
        public(rich_rules=('rule port port="50052" protocol="tcp" log prefix="rpc" level="info"',)),
        public(rich_rules=(RULE, 'rule icmp-type name="echo-request" accept')),
        public(protocols=("gre",)),
        Zone("work", sources=("10.0.1.0/24", "00:11:22:33:44:55", "ipset:admins", "fd00::/8")),
    ],
    ids=[
        "service of another port", "zone that nobody is in", "loopback", "forwarded elsewhere", "rule that rejects",
        "rule that only logs", "rules for others", "other protocol", "source elsewhere",
    ],
)  # fmt: skip
def test_what_does_not_open_the_port_is_left_alone(zone: Zone) -> None:
    assert planned(running(view(OWN, PUBLIC, zone))) == NOTHING


def test_the_default_zone_and_the_port_of_ssh_are_refused() -> None:
    for plan, said in (
        (planned(running(view(OWN, PUBLIC, default=OWN.name))), "Zone llama-rpc is the default zone"),
        (plan_removal(OWN.name, stopped(view(OWN, default=OWN.name)), None), "Zone llama-rpc is the default zone"),
        (planned(running(view(replace(OWN, ports=("22/tcp",)), PUBLIC)), ports=(22,)), "Port 22 is the one that SSH"),
    ):
        assert plan.problems[0].startswith(said)


# --- removal --------------------------------------------------------------------------------------------------------


def test_removal_takes_the_zone_and_keeps_the_session_of_a_controller_that_was_trusted() -> None:
    gone = Change("llama-rpc", "zone", "", "absent")
    trusted = view(replace(OWN, rich_rules=(SSH_FROM_MASTER,)), PUBLIC)
    for state, session, plan in (
        (running(view(OWN, PUBLIC)), ADMIN, Plan([gone], True, [])),
        (running(view(PUBLIC)), ADMIN, NOTHING),
        (running(view(PUBLIC), view(OWN, PUBLIC)), ADMIN, Plan([], True, [])),
        (running(trusted), MASTER, Plan([Change("public", "port", "2222/tcp", "enabled"), gone], True, [])),
    ):
        assert plan_removal("llama-rpc", state, session) == plan


def test_with_a_tunnel_its_own_port_alone_is_open_to_the_addresses_outside() -> None:
    sources, inside = ["10.0.0.10/32", "10.213.0.1/32"], {50052: ["10.213.0.1/32"]}
    plan = plan_zone("llama-rpc", sources, [50052], running(view(PUBLIC, OWN)), MASTER, inside, 51820)
    rule = 'rule family="ipv4" source address="10.213.0.1/32" port port="50052" protocol="tcp" accept'
    assert plan.changes == [
        Change("llama-rpc", "rich_rule", SSH_FROM_MASTER, "enabled"),
        Change("llama-rpc", "rich_rule", rule, "enabled"),
        Change("llama-rpc", "port", "51820/udp", "enabled"),
        Change("llama-rpc", "source", "10.213.0.1/32", "enabled"),
        Change("llama-rpc", "port", "50052/tcp", "disabled"),
    ]
    assert not plan.problems
