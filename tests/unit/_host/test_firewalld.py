# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of firewalld is read, and the plan closes the ports to everyone else without cutting off a session."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.firewalld import (
    Change,
    Plan,
    Service,
    Session,
    State,
    View,
    Zone,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.firewalld_output import (
    parse_rule,
    parse_service,
    parse_zones,
    read_service,
    used_services,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.firewalld_plan import plan_removal, plan_zone
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.firewalld_ports import covers, split_range

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
def test_recorded_zones_are_read(version: str) -> None:
    zones = parse_zones((RECORDED / f"zones-{version}.txt").read_text())
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
    assert zones["home"].interfaces == ("eth7",)
    assert (zones["external"].masquerade, zones["trusted"].target, zones["block"].target) == (
        True,
        "ACCEPT",
        "%%REJECT%%",
    )
    assert used_services([zones["public"]]) == {"dhcpv6-client", "ssh", "http"}


@pytest.mark.parametrize("version", ["1.3.3", "2.3.1"])
def test_recorded_zones_of_a_stopped_daemon_are_read(version: str) -> None:
    zones = parse_zones((RECORDED / f"zones-{version}-offline.txt").read_text())
    assert zones["public"] == Zone("public", services=("dhcpv6-client", "ssh"))
    assert "1025-" in zones["home"].ports[0]


@pytest.mark.parametrize("version", ["1.3.3", "2.3.1"])
def test_recorded_policies_are_read(version: str) -> None:
    policies = parse_zones((RECORDED / f"policies-{version}.txt").read_text())
    assert list(policies) == ["allow-host-ipv6"]
    assert (policies["allow-host-ipv6"].egress_zones, len(policies["allow-host-ipv6"].rich_rules)) == (("HOST",), 4)
    # The policies that firewalld installs are no obstacle.
    assert planned(running(view(OWN, PUBLIC, policies=tuple(policies.values())))) == Plan([], False, [])


def test_recorded_service_is_read() -> None:
    service = parse_service((RECORDED / "service-samba-2.3.1.txt").read_text())
    assert service == Service(ports=("139/tcp", "445/tcp"), includes=("samba-client",))


SERVICE_FILE = """<?xml version="1.0" encoding="utf-8"?>
<service version="1.0">
  <short>Mixed</short>
  <include service="samba-client"/>
  <port protocol="tcp" port="139"/>
  <port port="1000-1010" protocol="udp"/>
  <port port="" protocol="ah"/>
  <protocol value="esp"/>
  <source-port port="53" protocol="udp"/>
  <destination ipv4="224.0.0.251"/>
</service>
"""


def test_service_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mixed.xml"
    path.write_text(SERVICE_FILE)
    assert read_service(path) == Service(
        ports=("139/tcp", "1000-1010/udp"),
        protocols=("esp", "ah"),
        source_ports=("53/udp",),
        includes=("samba-client",),
    )


@pytest.mark.parametrize("text", ["", "<service>"], ids=["empty", "broken"])
def test_service_file_that_is_none_is_not_guessed_at(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.xml"
    path.write_text(text)
    assert read_service(path) is None
    assert read_service(tmp_path / "none.xml") is None


def test_rich_rule_is_read() -> None:
    assert parse_rule(RULE) == {
        "rule": {"family": "ipv4"},
        "source": {"address": "10.1.0.0/16"},
        "port": {"port": "1000-2000", "protocol": "tcp"},
        "accept": {},
    }


# --- ports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "ports", "left"),
    [
        pytest.param("1025-65535/tcp", [50052], ["1025-50051/tcp", "50053-65535/tcp"], id="middle"),
        pytest.param("50052-50060/tcp", [50052], ["50053-50060/tcp"], id="first"),
        pytest.param("50000-50052/tcp", [50052], ["50000-50051/tcp"], id="last"),
        pytest.param("50051-50053/tcp", [50052], ["50051/tcp", "50053/tcp"], id="single-ports-remain"),
        pytest.param("50052/tcp", [50052], [], id="the-port-itself"),
        pytest.param("50052-50053/tcp", [50053, 50052], [], id="all-of-it"),
        pytest.param(
            "50000-50100/tcp",
            [50060, 50052, 50060],
            ["50000-50051/tcp", "50053-50059/tcp", "50061-50100/tcp"],
            id="two",
        ),
        pytest.param("1-65535/tcp", [1, 65535], ["2-65534/tcp"], id="both-ends"),
    ],
)
def test_range_is_split(entry: str, ports: list[int], left: list[str]) -> None:
    assert split_range(entry, ports) == left


@pytest.mark.parametrize(
    ("entry", "held"),
    [
        ("22/tcp", True),
        ("22/udp", False),
        ("1-1024/tcp", True),
        ("23-1024/tcp", False),
        ("ssh/tcp", False),
        ("", False),
    ],
)
def test_port_is_held(entry: str, held: bool) -> None:
    assert covers(entry, 22) is held


# --- what has to change ---------------------------------------------------------------------------------------------


def texts(plan: Plan) -> list[str]:
    return [change.text() for change in plan.changes]


def test_zone_is_made_permanently_and_then_put_into_force() -> None:
    plan = planned(running(view(PUBLIC)))
    assert texts(plan) == [
        "zone llama-rpc made",
        "port 50052/tcp added to zone llama-rpc",
        "source 10.0.0.10/32 added to zone llama-rpc",
    ]
    assert (plan.reload, plan.problems) == (True, [])


def test_second_run_changes_nothing() -> None:
    assert planned(running(view(OWN, PUBLIC))) == Plan([], False, [])
    assert planned(stopped(view(OWN, PUBLIC))) == Plan([], False, [])


def test_what_is_no_longer_trusted_goes_without_a_reload() -> None:
    before = replace(OWN, sources=("10.0.0.10/32", "10.0.0.99/32"), ports=("50052/tcp", "50060/tcp"))
    plan = planned(running(view(before, PUBLIC)))
    assert texts(plan) == [
        "source 10.0.0.99/32 removed from zone llama-rpc",
        "port 50060/tcp removed from zone llama-rpc",
    ]
    assert plan.reload is False


@pytest.mark.parametrize("missing_in", ["permanent", "runtime"])
def test_both_configurations_are_brought_together(missing_in: str) -> None:
    whole, part = view(OWN, PUBLIC), view(replace(OWN, sources=()), PUBLIC)
    state = running(part, whole) if missing_in == "permanent" else running(whole, part)
    assert texts(planned(state)) == ["source 10.0.0.10/32 added to zone llama-rpc"]


def test_zone_that_somebody_has_added_to_is_made_anew() -> None:
    for foreign in (
        replace(OWN, services=("ssh",)),
        replace(OWN, interfaces=("eth1",)),
        replace(OWN, target="ACCEPT"),
        replace(OWN, masquerade=True),
    ):
        plan = planned(running(view(foreign, PUBLIC)))
        assert (texts(plan)[:2], plan.reload) == (["zone llama-rpc removed", "zone llama-rpc made"], True)
        assert len(plan.changes) == 4
        # The change is in the runtime configuration only, so a reload is enough.
        assert planned(running(view(OWN, PUBLIC), view(foreign, PUBLIC))) == Plan([], True, [])


def test_rich_rule_that_is_not_ours_goes() -> None:
    plan = planned(running(view(replace(OWN, rich_rules=(RULE,)), PUBLIC)))
    assert plan == Plan([Change("llama-rpc", "rich_rule", RULE, "disabled")], False, [])


def test_port_is_closed_in_every_other_zone() -> None:
    public, work = replace(PUBLIC, ports=("50052/tcp", "50052/udp")), Zone("work", ports=("50052/tcp",))
    plan = planned(running(view(OWN, public, work)))
    assert texts(plan) == ["port 50052/tcp removed from zone public", "port 50052/tcp removed from zone work"]
    assert plan.reload is False
    # It is closed in whichever configuration it is open.
    assert texts(planned(running(view(OWN, PUBLIC), view(OWN, public)))) == ["port 50052/tcp removed from zone public"]


def test_range_is_split_around_the_ports_in_one_step() -> None:
    public = replace(PUBLIC, ports=("1-65535/tcp",))
    plan = planned(running(view(replace(OWN, ports=("50052/tcp", "50053/tcp")), public)), ports=(50052, 50053))
    assert texts(plan) == [
        "port 1-65535/tcp removed from zone public",
        "port 1-50051/tcp added to zone public",
        "port 50054-65535/tcp added to zone public",
    ]
    assert plan.reload is True
    # There is no permanent change to make: a reload ends what is in the runtime configuration only.
    assert planned(running(view(OWN, PUBLIC), view(OWN, public))) == Plan([], True, [])


def test_commands_do_what_the_plan_says() -> None:
    add, new = Change("llama-rpc", "source", "10.0.0.10/32", "enabled"), Change("llama-rpc", "zone", "", "present")
    rule = Change("llama-rpc", "rich_rule", RULE, "disabled")
    # Both configurations change, one after the other.
    assert [argv for _text, argv in Plan([add, rule], False, []).commands(running=True)] == [
        ["firewall-cmd", "--permanent", "--zone=llama-rpc", "--add-source=10.0.0.10/32"],
        ["firewall-cmd", "--zone=llama-rpc", "--add-source=10.0.0.10/32"],
        ["firewall-cmd", "--permanent", "--zone=llama-rpc", f"--remove-rich-rule={RULE}"],
        ["firewall-cmd", "--zone=llama-rpc", f"--remove-rich-rule={RULE}"],
    ]
    # The permanent one changes, and a reload puts it into force.
    assert [argv for _text, argv in Plan([new, add], True, []).commands(running=True)] == [
        ["firewall-cmd", "--permanent", "--new-zone=llama-rpc"],
        ["firewall-cmd", "--permanent", "--zone=llama-rpc", "--add-source=10.0.0.10/32"],
        ["firewall-cmd", "--reload"],
    ]
    # A stopped daemon has only the permanent one.
    assert Plan([new], False, []).commands(running=False) == [
        ("zone llama-rpc made", ["firewall-offline-cmd", "--new-zone=llama-rpc"])
    ]


# --- the SSH session ------------------------------------------------------------------------------------------------

DROP = Zone("drop", target="DROP", sources=("10.0.0.0/30",))
SESSIONS = {
    "open-by-service": (PUBLIC, ADMIN, None),
    "open-by-port": (replace(PUBLIC, services=(), ports=("22/tcp",)), ADMIN, None),
    "open-by-range": (replace(PUBLIC, services=(), ports=("1-1024/tcp",)), ADMIN, None),
    "open-by-rule": (replace(PUBLIC, services=(), rich_rules=('rule service name="ssh" accept',)), ADMIN, None),
    "rule-for-somebody": (replace(PUBLIC, services=(), rich_rules=(RULE.replace("1000-2000", "22"),)), ADMIN, "22/tcp"),
    "forwarded-from-elsewhere": (
        replace(PUBLIC, services=(), forward_ports=("port=8022:proto=tcp:toport=22:toaddr=",)),
        ADMIN,
        "22/tcp",
    ),
    "closed": (replace(PUBLIC, services=()), ADMIN, "22/tcp"),
    "other-port": (PUBLIC, replace(ADMIN, port=2222), "2222/tcp"),
    "no-session": (replace(PUBLIC, services=()), None, None),
}


@pytest.mark.parametrize(("public", "session", "opened"), SESSIONS.values(), ids=SESSIONS)
def test_session_stays_open(public: Zone, session: Session | None, opened: str | None) -> None:
    expected = [] if opened is None else [Change("public", "port", opened, "enabled")]
    for state in (stopped(view(OWN, public)), running(view(OWN, public))):
        assert planned(state, session).changes == expected


def test_session_is_kept_before_anything_else_is_done() -> None:
    plan = planned(stopped(view(replace(PUBLIC, services=()))))
    assert texts(plan)[:2] == ["zone llama-rpc made", "port 22/tcp added to zone public"]


def test_session_stays_open_over_a_reload_and_without_one() -> None:
    closed = replace(PUBLIC, services=())
    # Port 22 is open in the runtime configuration only: a reload, now or by anyone later, would close it.
    for own in ((), (OWN,)):
        plan = planned(running(view(*own, closed), view(*own, PUBLIC)))
        assert Change("public", "port", "22/tcp", "enabled") in plan.changes


@pytest.mark.parametrize(
    ("zones", "opened"),
    [
        pytest.param((PUBLIC, DROP), "drop", id="zone-of-its-address-comes-first"),
        pytest.param(
            (replace(PUBLIC, interfaces=()), Zone("work", interfaces=("eth0",))),
            "work",
            id="then-that-of-the-interface",
        ),
        pytest.param((replace(PUBLIC, interfaces=(), services=()),), "public", id="then-the-default-zone"),
    ],
)
def test_session_is_kept_in_the_zone_that_it_falls_into(zones: tuple[Zone, ...], opened: str) -> None:
    assert planned(stopped(view(OWN, *zones))).changes == [Change(opened, "port", "22/tcp", "enabled")]


def test_session_that_another_zone_of_the_role_lets_in_needs_no_port() -> None:
    gateway = Zone("llama-gateway", sources=("10.0.0.0/30",), ports=("8000/tcp",))
    rule = SSH_FROM_MASTER.replace("10.0.0.10", "10.0.0.2").replace("2222", "22")
    assert planned(running(view(OWN, PUBLIC, replace(gateway, rich_rules=(rule,))))).changes == []
    for_somebody_else = replace(gateway, rich_rules=(SSH_FROM_MASTER,))
    opened = [Change("llama-gateway", "port", "22/tcp", "enabled")]
    assert planned(running(view(OWN, PUBLIC, for_somebody_else))).changes == opened


def test_interface_that_is_bound_while_the_daemon_runs_stays_bound() -> None:
    work = Zone("work")
    state = running(
        view(OWN, replace(PUBLIC, interfaces=()), work), view(OWN, PUBLIC, replace(work, interfaces=("eth0",)))
    )
    bound_twice = running(
        view(replace(PUBLIC, interfaces=()), work),
        view(replace(PUBLIC, interfaces=()), replace(work, interfaces=("eth0",))),
    )
    assert planned(state).changes == []
    assert Change("work", "port", "22/tcp", "enabled") in planned(bound_twice).changes


def test_controller_that_is_trusted_keeps_its_session_through_our_zone() -> None:
    plan = planned(running(view(OWN, PUBLIC)), MASTER)
    assert plan == Plan([Change("llama-rpc", "rich_rule", SSH_FROM_MASTER, "enabled")], False, [])
    # The rule comes before its address falls into the zone.
    order = [change.kind for change in planned(running(view(replace(OWN, sources=()), PUBLIC)), MASTER).changes]
    assert order == ["rich_rule", "source"]


def test_controller_that_is_trusted_by_ipv6_keeps_its_session() -> None:
    session = Session(ipaddress.ip_address("fd00::10"), 22, "eth0")
    plan = plan_zone("llama-rpc", ["fd00::/64"], [50052], running(view(PUBLIC)), session)
    rule = 'rule family="ipv6" source address="fd00::10" port port="22" protocol="tcp" accept'
    assert Change("llama-rpc", "rich_rule", rule, "enabled") in plan.changes


def test_rule_for_a_controller_stays_while_that_is_trusted_whoever_looks() -> None:
    state = running(view(replace(OWN, rich_rules=(SSH_FROM_MASTER,)), PUBLIC))
    assert planned(state) == planned(state, MASTER) == Plan([], False, [])
    plan = plan_zone("llama-rpc", ["10.0.0.99/32"], [50052], state, None)
    assert Change("llama-rpc", "rich_rule", SSH_FROM_MASTER, "disabled") in plan.changes


def test_rule_that_lets_in_more_than_the_controller_goes() -> None:
    wider = SSH_FROM_MASTER.replace('"10.0.0.10"', '"10.0.0.0/24"')
    assert wider != SSH_FROM_MASTER
    plan = planned(running(view(replace(OWN, rich_rules=(wider,)), PUBLIC)))
    assert plan == Plan([Change("llama-rpc", "rich_rule", wider, "disabled")], False, [])


A, B = "10.0.0.10/32", "10.0.0.20/32"
RULES = tuple(
    f'rule family="ipv4" source address="{source}" port port="{port}" protocol="tcp" accept'
    for source, port in ((A, 50052), (B, 50053))
)


def planned_for_two(own: Zone | None) -> list[str]:
    state = running(view(PUBLIC, *([own] if own else [])))
    return texts(plan_zone("llama-rpc", [A, B], [50052, 50053], state, ADMIN, {50052: [A], 50053: [B]}))


def test_each_port_of_a_host_that_groups_share_is_for_its_own_master() -> None:
    assert planned_for_two(Zone("llama-rpc", sources=(A, B), rich_rules=RULES)) == []
    assert planned_for_two(OWN) == [
        *(f"rich rule {rule} added to zone llama-rpc" for rule in RULES),
        f"source {B} added to zone llama-rpc",
        "port 50052/tcp removed from zone llama-rpc",
    ]


def test_a_rule_of_a_master_that_is_still_trusted_goes_with_its_port() -> None:
    before = Zone("llama-rpc", sources=(A, B), rich_rules=(*RULES, RULES[0].replace("50052", "50053")))
    assert planned_for_two(before) == [f"rich rule {before.rich_rules[2]} removed from zone llama-rpc"]


def test_port_of_ssh_is_no_rpc_port() -> None:
    (problem,) = planned(running(view(replace(OWN, ports=("22/tcp",)), PUBLIC)), ports=(22,)).problems[:1]
    assert problem == "Port 22 is the one that SSH uses here: choose another RPC port."


# --- what stands in the way -----------------------------------------------------------------------------------------

OBSTACLES = {
    "service": (replace(PUBLIC, services=("ssh", "wide")), "the service wide", "--remove-service=wide"),
    "included-service": (replace(PUBLIC, services=("bundle",)), "the service bundle", "--remove-service=bundle"),
    "service-of-all-tcp": (
        replace(PUBLIC, services=("ssh", "all-tcp")),
        "the service all-tcp",
        "--remove-service=all-tcp",
    ),
    "service-by-source-port": (
        replace(PUBLIC, services=("ssh", "from-53")),
        "the service from-53",
        "--remove-service=from-53",
    ),
    "target": (replace(PUBLIC, target="ACCEPT"), "the target ACCEPT", "--set-target=default"),
    "forwarded-port": (
        replace(PUBLIC, forward_ports=("port=80:proto=tcp:toport=50052:toaddr=",)),
        "the forward port port=80",
        "--remove-forward-port=",
    ),
    "source-port": (replace(PUBLIC, source_ports=("53/tcp",)), "the source port 53/tcp", "--remove-source-port=53/tcp"),
    "protocol": (replace(PUBLIC, protocols=("tcp",)), "the protocol tcp", "--remove-protocol=tcp"),
    "rule-for-port": (
        replace(PUBLIC, rich_rules=(RULE.replace("1000-2000", "50052"),)),
        "the rich rule",
        "'--remove-rich-rule=rule",
    ),
    "rule-for-service": (
        replace(PUBLIC, rich_rules=('rule service name="wide" accept',)),
        "the rich rule",
        "--remove-rich-rule",
    ),
    "rule-for-all": (
        replace(PUBLIC, rich_rules=('rule family="ipv4" source address="10.9.0.0/16" accept',)),
        "the rich rule",
        "--remove-rich-rule",
    ),
    "rule-that-forwards": (
        replace(PUBLIC, rich_rules=('rule family="ipv4" forward-port port="80" protocol="tcp" to-port="50052"',)),
        "the rich rule",
        "--remove-rich-rule",
    ),
}


@pytest.mark.parametrize(("public", "thing", "remedy"), OBSTACLES.values(), ids=OBSTACLES)
def test_what_else_opens_the_port_is_named_with_its_remedy(public: Zone, thing: str, remedy: str) -> None:
    (problem,) = planned(running(view(OWN, public))).problems
    assert problem.startswith(f"Zone public lets others reach port 50052 by {thing}")
    assert remedy in problem
    # It is a problem in either configuration.
    assert planned(running(view(OWN, PUBLIC), view(OWN, public))).problems == [problem]


HARMLESS = {
    "service-of-another-port": replace(PUBLIC, services=("ssh", "names")),
    "zone-that-nobody-is-in": Zone("trusted", target="ACCEPT"),
    "loopback": Zone("trusted", target="ACCEPT", interfaces=("lo",)),
    "forwarded-to-another-host": replace(PUBLIC, forward_ports=("port=50052:proto=tcp:toport=50052:toaddr=10.1.1.1",)),
    "rule-that-rejects": replace(PUBLIC, rich_rules=('rule port port="50052" protocol="tcp" reject',)),
    "rule-that-only-logs": replace(
        PUBLIC, rich_rules=('rule port port="50052" protocol="tcp" log prefix="rpc" level="info"',)
    ),
    "rule-for-another-port": replace(PUBLIC, rich_rules=(RULE,)),
    "rule-for-icmp": replace(PUBLIC, rich_rules=('rule icmp-type name="echo-request" accept',)),
    "other-protocol": replace(PUBLIC, protocols=("gre",)),
    "source-elsewhere": Zone("work", sources=("10.0.1.0/24", "00:11:22:33:44:55", "ipset:admins", "fd00::/8")),
}


@pytest.mark.parametrize("zone", HARMLESS.values(), ids=HARMLESS)
def test_what_does_not_open_the_port_is_left_alone(zone: Zone) -> None:
    assert planned(running(view(OWN, PUBLIC, zone))) == Plan([], False, [])


def test_source_of_another_zone_is_named() -> None:
    (problem,) = planned(running(view(OWN, PUBLIC, Zone("work", sources=("10.0.0.0/24",), services=("ssh",))))).problems
    assert problem.startswith("The source 10.0.0.0/24 is bound to zone work, and 10.0.0.10/32 is trusted")
    assert "--zone=work --remove-source=10.0.0.0/24" in problem


@pytest.mark.parametrize(
    ("policy", "thing"),
    [
        pytest.param(
            Zone("in", target="CONTINUE", ports=("50052/tcp",), egress_zones=("HOST",)), "the port 50052/tcp", id="port"
        ),
        pytest.param(Zone("in", target="ACCEPT", egress_zones=("HOST",)), "the target ACCEPT", id="target"),
        pytest.param(Zone("in", services=("wide",), egress_zones=("ANY",)), "the service wide", id="service"),
    ],
)
def test_policy_that_opens_the_port_is_named(policy: Zone, thing: str) -> None:
    (problem,) = planned(running(view(OWN, PUBLIC, policies=(policy,)))).problems
    assert problem.startswith(f"Policy in lets others reach port 50052 by {thing}")
    assert planned(running(view(OWN, PUBLIC, policies=(replace(policy, egress_zones=("work",)),)))).problems == []


def test_zone_that_everyone_falls_into_is_refused() -> None:
    for plan in (
        planned(running(view(OWN, PUBLIC, default=OWN.name))),
        plan_removal(OWN.name, stopped(view(OWN, default=OWN.name)), None),
    ):
        assert plan.problems[0].startswith("Zone llama-rpc is the default zone")


# --- removal --------------------------------------------------------------------------------------------------------


def test_removal_takes_the_zone_and_nothing_else() -> None:
    plan = plan_removal("llama-rpc", running(view(OWN, PUBLIC)), ADMIN)
    assert plan == Plan([Change("llama-rpc", "zone", "", "absent")], True, [])
    assert plan_removal("llama-rpc", running(view(PUBLIC)), ADMIN) == Plan([], False, [])
    assert plan_removal("llama-rpc", running(view(PUBLIC), view(OWN, PUBLIC)), ADMIN) == Plan([], True, [])


def test_removal_keeps_the_session_of_a_controller_that_was_trusted() -> None:
    plan = plan_removal("llama-rpc", running(view(replace(OWN, rich_rules=(SSH_FROM_MASTER,)), PUBLIC)), MASTER)
    assert plan.changes == [Change("public", "port", "2222/tcp", "enabled"), Change("llama-rpc", "zone", "", "absent")]


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
