# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks whether hosts make a cluster: one sentence for each violation, all at once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ansible_collections.llama_cpp.cluster.plugins.filter.cluster_problems import FilterModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.firewalld import Change, Plan
from ansible_collections.llama_cpp.cluster.plugins.module_utils._status.cluster import (
    render_cluster,
    render_services,
    verify,
)

cluster_problems = FilterModule().filters()["cluster_problems"]

SAFE = {"patches": [{"name": "rpc-safety"}]}
NEW = {"id": "a", "version": "0.3.36-0c1e57098", "source": {"commit": "0c1e57098bba", "sha256": "83"}, **SAFE}
# Another build of the same source, fetched in another way.
SAME = {"id": "b", "version": "git-0c1e57098", "source": {"commit": "0c1e57098bba", "sha256": None}}
OLD = {"id": "c", "version": "0.3.35-4df29be4f", "source": {"commit": "4df29be4f4c3", "sha256": "34"}}
ARCHIVE = {"id": "d", "version": "archive-12ab", "source": {"commit": None, "sha256": "12ab"}}
OTHER_ARCHIVE = {"id": "e", "version": "archive-34cd", "source": {"commit": None, "sha256": "34cd"}}


def hosts(count: int, **variables: Any) -> dict[str, dict[str, Any]]:
    return {f"w{i}": {"ansible_host": f"10.0.0.{i}", **variables} for i in range(1, count + 1)}


def of(group: str, **variables: Any) -> dict[str, Any]:
    return {"llama_group": group, **variables}


def shared(*ports: tuple[int, str]) -> dict[str, Any]:
    """Return a host with instances for groups."""
    return {"rpc_server_instances": [{"port": port, **({"group": group} if group else {})} for port, group in ports]}


# Hosts, what is given besides, and a part of the sentence for each violation.
CLUSTERS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "one-worker": (hosts(1), {}, []),
    "fifteen-workers": (hosts(15), {}, []),
    "one-host-both": ({"this": {}}, {"masters": ["this"]}, []),
    "two-instances": ({"w1": shared((1, ""), (2, ""))}, {}, []),
    "endpoints-without-hosts": ({}, {"endpoints": ["127.0.0.1:1", "127.0.0.1:2"]}, []),
    "behind-one-gateway": (
        {f"w{n}": {"ansible_host": "gw", "ansible_port": n, "rpc_server_address": f"10.0.0.{n}"} for n in (1, 2)},
        {}, [],
    ),
    "two-groups": (
        {**hosts(15, llama_group="a"), "v": of("b"), "m": of("a"), "n": of("b")},
        {"masters": ["m", "n"], "workers": [*hosts(15), "v"]}, [],
    ),
    "a-host-that-two-groups-share": (
        {"w1": shared((1, "a"), (2, "b")), "m": of("a"), "n": of("b")}, {"masters": ["m", "n"], "workers": ["w1"]}, [],
    ),
    "releases-alike": (hosts(2), {"releases": {"m": NEW, "w1": NEW, "w2": SAME}}, []),
    "patched-otherwise": (
        hosts(1), {"releases": {"m": NEW, "w1": {**NEW, "id": "f", "patches": [{"name": "mine"}]}}}, []
    ),
    "archives-alike": (hosts(1), {"releases": {"m": ARCHIVE, "w1": {**ARCHIVE, "id": "f"}}}, []),
    "linked": (hosts(2, rpc_server_link=True), {}, []),
    "three-linked": (
        hosts(3, rpc_server_link=True), {},
        ["host w1, rpc_server_link: a link joins the two workers of a group, and this one has 3: unset it."],
    ),
    "no-master": (hosts(1), {"masters": []}, ["There is no master: put a host into the group llama_masters"]),
    "nothing": ({}, {"masters": []}, ["into the group llama_masters", "into the group llama_workers"]),
    "sixteen-workers": (hosts(17), {}, ["takes at most 15 in one run: leave out 10.0.0.16:50052, 10.0.0.17:"]),
    "sixteen-instances": ({"w1": shared(*((port, "") for port in range(1, 17)))}, {}, ["There are 16 workers"]),
    "same-host-twice": (
        {"w1": {"ansible_host": "Node.lan"}, "w2": {"ansible_host": "node.lan", "rpc_server_port": 50053}}, {},
        ["w1 and w2 are the same host (node.lan): keep one of the names"],
    ),
    "host-named-by-its-address": ({"10.0.0.1": {}, "w2": {"ansible_host": "10.0.0.1"}}, {}, ["are the same host"]),
    "same-endpoint-of-two-hosts": (
        {"w1": {"rpc_server_address": "10.0.0.1"}, "w2": {"rpc_server_address": "10.0.0.1"}}, {},
        ["10.0.0.1:50052 is named twice as a worker, of w1 and of w2: give each an address or a port of its own."],
    ),
    "same-endpoint-in-a-list": ({}, {"endpoints": ["a:1", "A:1"]}, ["A:1 is named twice as a worker: give"]),
    "port": (hosts(1, rpc_server_port=70000), {}, ["host w1, rpc_server_port: port 70000 is not a number"]),
    "other-archive": (hosts(1), {"releases": {"m": ARCHIVE, "w1": OTHER_ARCHIVE}}, ["w1 has llama.cpp archive-34cd"]),
    "worker-that-cannot-be-asked": (
        hosts(2), {"releases": {"m": NEW, "w1": {"unknown": "no route to host."}, "w2": OLD}},
        ["It is not known which llama.cpp w1 has (no route to host): install it there",
         "w2 has llama.cpp 0.3.35-4df29be4f and the master m has 0.3.36-0c1e57098: install the same on both"],
    ),
    "group-without-a-master": (
        {"w1": of("a"), "w2": of("b"), "m": of("a")}, {"workers": ["w1", "w2"]},
        ["Group b has no master: set llama_group: b for a host of llama_masters, or give w2:50052 another group."],
    ),
    "master-without-a-group": (
        {"w1": of("a"), "m": {}}, {"workers": ["w1"]},
        ["m has no llama_group, and other hosts have one: give it to all.", "Group a has no master"],
    ),
    "group-without-workers": (
        {"w1": of("a"), "m": of("a"), "n": of("b")}, {"workers": ["w1"], "masters": ["m", "n"]},
        ["Group b has no workers: set llama_group: b for hosts of llama_workers, or group: b in their rpc_server_inst"],
    ),
    "two-masters-in-a-group": (
        {"w1": of("a"), "m": of("a"), "n": of("a")}, {"workers": ["w1"], "masters": ["m", "n"]},
        ["Group a has the masters m, n, and a group has one: give each its own."],
    ),
    "master-in-two-groups": (
        {"w1": of("a"), "m": {"llama_group": ["a", "b"]}}, {"workers": ["w1"]},
        ["host m, llama_group: ['a', 'b'] is not the name of a group: give letters, digits, _ and -."],
    ),
    "sixteen-workers-in-a-group": (
        {**hosts(16, llama_group="a"), "m": of("a")}, {"workers": list(hosts(16))},
        ["Group a has 16 workers and llama.cpp takes at most 15 in one run: leave out 10.0.0.16:50052."],
    ),
    "instance-of-a-group-without-a-master": (
        {"w1": of("a", **shared((1, ""), (2, "b"))), "m": of("a")}, {"workers": ["w1"]},
        ["Group b has no master: set llama_group: b for a host of llama_masters, or give w1:2 another group."],
    ),
    "two-instances-on-one-port": (
        {"w1": shared((1, "a"), (1, "b")), "m": of("a"), "n": of("b")}, {"workers": ["w1"], "masters": ["m", "n"]},
        ["host w1, rpc_server_instances[1]: endpoint w1:1 is already a worker of host w1"],
    ),
    "master-that-serves-another-group": (
        {"m": of("a", **shared((1, ""), (2, "b"))), "n": of("b")}, {"workers": ["m"], "masters": ["m", "n"]},
        ["m is the master of group a, and its rpc_server_instances serve group b: give these to a host of llama_w"],
    ),
    "all-at-once": (
        {"w1": {"ansible_host": "a", "rpc_server_port": 0}, "w2": {"ansible_host": "a"}}, {"masters": []},
        ["There is no master", "w1 and w2 are the same host", "host w1, rpc_server_port: port 0"],
    ),
}  # fmt: skip


def are_sentences_with(found: list[str], parts: list[str]) -> None:
    """Check that there is one sentence for each part, in order."""
    assert len(found) == len(parts), found
    for sentence, part in zip(found, parts):
        assert part in sentence
        assert sentence.endswith((".", "`"))
        assert "\n" not in sentence


@pytest.mark.parametrize(("hostvars", "given", "said"), CLUSTERS.values(), ids=CLUSTERS)
def test_each_violation_is_one_sentence(hostvars: dict[str, Any], given: dict[str, Any], said: list[str]) -> None:
    given = {"masters": ["m"], "workers": list(hostvars), **given}
    are_sentences_with(cluster_problems(given.pop("workers"), hostvars, **given), said)


UNIT = "llama-rpc-server@50052.service"
LISTENER = {"address": "10.0.0.1", "pid": 7, "program": "/opt/llama_cpp/releases/a/bin/rpc-server", "unit": UNIT}
OTHER = {**LISTENER, "unit": None, "program": "/usr/bin/nc"}
OLDER = {**LISTENER, "program": "/opt/llama_cpp/releases/z/bin/rpc-server"}
CLOSED = {"firewalld": "running", "problems": [], "changes": []}
# The exact words of rpc_firewall_info.
CHANGES = Plan([Change("public", "port", "50052/tcp", "disabled")], reload=False, problems=[]).texts()
WELL = {
    "endpoints": ["10.0.0.1:50052"],
    "failure": "",
    "servers": [{"port": 50052, "listeners": [LISTENER], "clients": []}],
    "firewall": CLOSED,
    "manifest": NEW,
}
READY = {"endpoint": "10.0.0.1:50052", "state": "ready", "protocol": {"version": "7.0.0"}, "message": "It is ready."}
REFUSED = {**READY, "state": "refused", "protocol": None, "message": "10.0.0.1:50052 refuses connections: start it."}
BUSY = {
    **READY,
    "state": "busy",
    "protocol": None,
    "message": "10.0.0.1:50052 does not answer: another client holds it.",
}
SERVING = [{"port": 50052, "listeners": [LISTENER], "clients": ["10.0.0.9:4000"]}]


def look(*views: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the verification of a healthy worker with these changes, as its masters see it."""
    return verify({"w1": {**WELL, **changes}}, {"m": {"manifest": NEW, "workers": list(views)}})


def listening(*listeners: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"servers": [{"port": 50052, "listeners": list(listeners), "clients": [], **more}]}


# What masters see, what else is on the worker, its states in the table, and the problems.
LOOKS: dict[str, tuple[list[Any], dict[str, Any], str, list[str]]] = {
    "ready": ([READY], {}, "running closed ready", []),
    "port-used-on-another-address-too": (
        [READY], listening({**OTHER, "address": "127.0.0.1"}, LISTENER), "running closed ready", []),
    "serving-and-so-not-asked": ([], {"servers": SERVING}, "running closed busy", []),
    "a-client-came-in-between": ([BUSY], {"servers": SERVING}, "running closed busy", []),
    "firewall-left-alone": ([READY], {"firewall": None}, "running left alone ready", []),
    "same-source-built-in-another-way": ([READY], {"manifest": {**SAME, "id": "a"}}, "running closed ready", []),
    "host-down": (
        [REFUSED], {"failure": "It cannot be reached."}, "", ["w1 could not be asked. It", "refuses connections."]),
    "service-stopped": (
        [REFUSED], listening(), "",
        [f"Nothing listens on port 50052 of w1: see `journalctl -u {UNIT}`", "10.0.0.1:50052 refuses connections."]),
    "somebody-elses-port": (
        [READY], listening(OTHER), "", [f"Port 50052 of w1 belongs to /usr/bin/nc, not to {UNIT}"]),
    "release-of-before": (
        [READY], listening(OLDER), "", ["The worker on port 50052 of w1 still runs the previous release"]),
    "other-release": ([READY], {"manifest": {**OLD, "id": "a"}}, "", ["w1 has llama.cpp 0.3.35-4df29be4f"]),
    "no-release": (
        [READY], {"manifest": None}, "", ["It is not known which llama.cpp w1 has (no release is in use"]),
    "firewall-stopped": (
        [READY], {"firewall": {**CLOSED, "firewalld": "stopped"}}, "", ["The firewall of w1 does not"]),
    "firewall-open": (
        [READY], {"firewall": {**CLOSED, "changes": CHANGES}}, "",
        ["The firewall of w1 is not as expected: run the playbook site, which repairs it (port 50052/tcp removed"]),
    "held-by-nobody": (
        [BUSY], {}, "", [f"10.0.0.1:50052 of w1 answers nobody and has no client: `systemctl restart {UNIT}`"]),
    "asked-by-nobody": ([], {}, "", ["No master asked 10.0.0.1:50052 of w1"]),
}  # fmt: skip


@pytest.mark.parametrize(("views", "changes", "states", "said"), LOOKS.values(), ids=LOOKS)
def test_a_worker_is_well_or_the_reason_is_said(
    views: list[Any], changes: dict[str, Any], states: str, said: list[str]
) -> None:
    status = look(*views, **changes)
    are_sentences_with(status["problems"], said)
    assert status["healthy"] == (not said)
    (worker,) = status["workers"]
    if states:
        assert " ".join(worker[name] for name in ("service", "firewall", "state")) == states
    assert render_cluster([worker]).splitlines()[2].split()[-1] == ("no" if said else "yes")


NOTE = {"run": "1", "from": "a", "to": "b", "time": "noon"}
M: dict[str, Any] = {"manifest": NEW, "workers": [READY]}
API = {"unit": "llama-server@8080.service", "address": "127.0.0.1", "port": 8080, "workers": ["10.0.0.1:50052"]}
WAITS = {**API, "state": "waiting", "healthy": False}
WAITING = "Waiting for 1 of 1 workers, 10.0.0.1:50052."
CAUSE = f"{WAITING} 10.0.0.1:50052 cannot be reached (no answer): check the host."
OF_TWO = {"workers": ["w1:1", "w2:1"]}
SECOND = {**WAITS, "unit": "llama-server@8081.service", "port": 8081, "workers": ["w2:1"], "message": "Waiting, w2:1."}
LINK = {"host": "w1", "address": "10.0.0.1", "through_tunnel": True, "message": "TUNNEL"}


def api(of_api: dict[str, Any], *workers: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"manifest": NEW, "workers": list(workers), "services": [{**of_api, **changes}]}


# What is on the worker, what each master sees, and the problems.
MASTERS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "without a release": (WELL, {"m": {**M, "manifest": None}}, ["m has no llama.cpp release: run the playbook site."]),
    "that could not be asked": (
        WELL, {"m1": M, "m2": {"workers": [], "failure": "It cannot be reached."}},
        ["m2 could not be asked. It cannot be reached."]),
    "each has its say": (
        WELL, {"m1": M, "m2": {**M, "workers": [REFUSED]}}, [f"As m2 sees it: {REFUSED['message']}"]),
    # This is the case with --limit.
    "workers that were not looked at": ({"endpoints": WELL["endpoints"], "failure": ""}, {"m": M}, []),
    "an upgrade that has not ended": (
        {**WELL, "upgrade": NOTE}, {"m": {**M, "upgrade": NOTE}},
        ["An upgrade was interrupted, and has not ended on w1, m: run the playbook upgrade, which ends it."]),
    "an upgrade that has ended": (WELL, {"m": {**M, "upgrade": None}}, []),
    # Causes are told once.
    "a client that keeps a worker from its API": (
        {**WELL, "servers": SERVING}, {"m": api(WAITS, message=CAUSE)},
        [("A client at 10.0.0.9 holds 10.0.0.1:50052 of w1, and the API of m waits for this worker: find the program "
         "there with `ss -tnp 'dport = :50052'`, and wait for its end, or end it."), f"m: {WAITING}"]),
    "a cause that the API alone knows": (WELL, {"m": api(WAITS, READY, message=CAUSE)}, [f"m: {CAUSE}"]),
    "an API that holds the worker of another": (
        WELL, {"m1": api({**API, **OF_TWO}, READY, state="serving", healthy=True), "m2": api(SECOND, READY)},
        ["m2: Waiting, w2:1. llama-server@8080.service of m1 holds w2:1, and a worker serves one master at a time"]),
    "an API that has stopped": (
        WELL, {"m1": api({**API, **OF_TWO}, READY, state="stopped", healthy=True), "m2": api(SECOND, READY)},
        ["m2: Waiting, w2:1."]),
    "a tunnel that is down": (
        WELL, {"m": {**M, "workers": [{**REFUSED, "state": "unreachable"}], "links": [LINK]}},
        ["As m sees it: TUNNEL"]),
    "a tunnel that is up": (WELL, {"m": {**M, "links": [LINK]}}, []),
    "beside the tunnel": (WELL, {"m": {**M, "links": [{**LINK, "through_tunnel": False}]}}, ["As m sees it: TUNNEL"]),
}  # fmt: skip


@pytest.mark.parametrize(("worker", "seen", "said"), MASTERS.values(), ids=MASTERS)
def test_what_masters_see_is_said(worker: dict[str, Any], seen: dict[str, Any], said: list[str]) -> None:
    status = verify({"w1": worker}, seen)
    assert len(status["problems"]) == len(said), status["problems"]
    assert all(problem.startswith(part) for problem, part in zip(status["problems"], said)), status["problems"]
    assert status["healthy"] == (not said)
    assert status["links"] == [{"master": "m", **link} for link in seen.get("m", {}).get("links", [])]


def test_no_worker_is_not_well() -> None:
    assert verify({}, {})["healthy"] is False


REPACK = {"enabled": True, "kernels": True, "weights": 12, "mib": 345.67, "of_weights": 20, "of_mib": 456.78}
CACHE = {
    "folder": "/var/cache/llama_cpp/rpc", "entries": 3, "bytes": 3 << 30, "free_bytes": 9, "max_bytes": 8 << 30,
    "min_free_bytes": 0, "kept_since": None, "tidied_at": None, "corrupted": 0, "evicted": 0,
}  # fmt: skip


def cache(**hours: float) -> dict[str, Any]:
    """Return what is said of a cache that was tidied, or is kept in order, since so many hours."""
    return {"cache": {**CACHE, **{key: time.time() - 3600 * ago for key, ago in hours.items()}}}


@pytest.mark.parametrize(
    ("column", "given", "shown", "problem"),
    [
        ("repacked", {"repack": REPACK}, "346 of 457 MiB", ""),
        ("repacked", {"repack": {**REPACK, "of_weights": 0}}, "on", ""),
        ("repacked", {"repack": {**REPACK, "enabled": False}}, "off", ""),
        ("repacked", {"repack": {**REPACK, "kernels": False}}, "no kernels", ""),
        ("cache", cache(tidied_at=1, kept_since=99), "3.0 of 8.0 GiB", ""),
        ("cache", {"cache": {**CACHE, "max_bytes": None}}, "3.0 GiB", ""),
        ("cache", cache(kept_since=1), "3.0 of 8.0 GiB", ""),
        ("cache", cache(tidied_at=25, kept_since=99), "3.0 of 8.0 GiB", "was last tidied 25 hours ago: see"),
        ("cache", cache(kept_since=99), "3.0 of 8.0 GiB", "was never tidied in the 99 hours since its timer was made"),
    ],
    ids=[
        "repacked", "nothing-loaded-yet", "switched-off", "cpu-without-kernels", "limited", "no-limit-and-no-timer",
        "not-put-in-order-yet", "its-timer-stopped", "it-never-ran",
    ],
)  # fmt: skip
def test_what_was_repacked_or_cached_is_shown_of_workers_that_say_it(
    column: str, given: dict[str, Any], shown: str, problem: str
) -> None:
    status = look(READY, **listening(LISTENER, **given))
    assert len(status["problems"]) == bool(problem)
    assert not problem or f"w1:50052 {problem}" in status["problems"][0]
    stock = look(READY)["workers"]
    assert column not in render_cluster(stock)
    header, *rows = render_cluster([*status["workers"], *stock]).splitlines()[1:]
    assert [row[header.index(column) :].split("  ")[0] for row in rows] == [shown, "-"]


def test_the_table_of_apis_names_the_release_that_runs() -> None:
    of_api = {"host": "m1", "address": "127.0.0.1", "port": 8080, "alias": "a", "state": "serving", "restarts": 0}
    runs = {**of_api, "release": "0.3.36-0c1e57098-3f0a1b2c", "healthy": True}
    stands = {**of_api, "host": "m2", "state": "stopped", "release": None, "healthy": False}
    header, *rows = (line.split() for line in render_services([runs, stands]).splitlines()[1:])
    assert [row[-2:] for row in (header, *rows)] == [["llama.cpp", "healthy"], ["0.3.36-0c1e57098", "yes"], ["-", "no"]]


@pytest.mark.parametrize("changes", [{}, {"failure": "It cannot be reached."}, {"manifest": None}])
def test_what_is_written_is_as_its_schema_says(changes: dict[str, Any]) -> None:
    schema = json.loads((Path(__file__).resolve().parents[3] / "docs/monitoring/status.schema.json").read_text())
    written = {**look(READY, **changes), "schema_version": 1, "time": "2026-01-31T12:00:00Z"}
    jsonschema.validate(written, schema)
    described = schema["properties"]["workers"]["items"]["properties"]
    assert set(described) >= set(written["workers"][0]), "each key is described"


@pytest.mark.parametrize(("asked", "shown"), [(["m"], ["a"]), (["m", "n"], ["a", "b"])], ids=["limit", "all"])
def test_a_host_that_groups_share_is_judged_by_the_masters_that_are_asked(asked: list[str], shown: list[str]) -> None:
    shared = {**WELL, "endpoints": ["10.0.0.1:50052", "10.0.0.1:50053"], "groups": ["a", "b"]}
    seen = {
        "m": {"group": "a", "manifest": NEW, "workers": [READY]},
        "n": {"group": "b", "manifest": NEW, "workers": [{**READY, "endpoint": "10.0.0.1:50053"}]},
    }
    status = verify({"w1": shared}, {name: seen[name] for name in asked})
    assert [row["group"] for row in status["workers"]] == shown


def test_what_passes_within_the_tunnel_is_not_said_to_be_readable() -> None:
    serves = {**API, "state": "serving", "healthy": True, "message": ""}
    services = [{**serves, "address": address} for address in ("10.213.0.9", "10.0.0.9")]
    (note,) = verify({"w1": WELL}, {"m": {**M, "inside": "10.213.0.9", "services": services}})["notes"]
    assert "Clients reach 10.0.0.9:8080 of m without encryption" in note


def test_workers_that_trust_their_clients_are_named_once_for_each_release() -> None:
    bare = {**WELL, "manifest": {**OLD, "patches": []}, "endpoints": ["10.0.0.1:50052", "10.0.0.1:50053"]}
    of_others = {**WELL, "manifest": {**OLD, "patches": None}}
    status = verify({"w1": bare, "w2": of_others, "w3": WELL}, {})
    (note,) = status["notes"]
    assert "llama.cpp 0.3.35-4df29be4f of w1, w2 lacks the patch rpc-safety, so whoever reaches" in note


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"lost": ["10.0.0.2:1"]}, "start it, or give its place to another host with the playbook replace."),
        ({"ready": ["10.0.0.2:1"]}, "it takes it back as llama_server_rejoin says, and"),
        ({"excluded": ["10.0.0.2:1"], "ready": ["10.0.0.2:1"]}, "10.0.0.2:1 was lost three times within an hour, or"),
        ({"degraded": False}, None),
    ],
    ids=["lost", "back", "excluded", "whole"],
)
def test_an_api_that_serves_without_a_worker_is_named_with_the_remedy(
    changes: dict[str, Any], remedy: str | None
) -> None:
    division = {"serving": ["10.0.0.1:50052"], "spare": [], "lost": [], "excluded": [], "ready": [], "degraded": True}
    service = {**API, "state": "serving", "healthy": True, "message": "", "address": "127.0.0.1"}
    service = {**service, "workers": ["10.0.0.1:50052", "10.0.0.2:1"], "division": {**division, **changes}}
    status = verify({"w1": WELL}, {"m": {**M, "services": [service]}})
    assert status["healthy"], "the other worker has its own sentence"
    assert len(status["notes"]) == (remedy is not None)
    if remedy:
        assert status["notes"][0].startswith(f"The API of m serves without 10.0.0.2:1 (1 of 2 workers): {remedy}")
