# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks whether hosts make a cluster: one sentence for each violation, all at once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.filter.cluster_problems import FilterModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.firewalld import Change, Plan
from ansible_collections.llama_cpp.cluster.plugins.module_utils._status.cluster import (
    render_cluster,
    render_services,
    verify,
)

cluster_problems = FilterModule().filters()["cluster_problems"]

NEW = {"id": "a", "version": "0.3.36-0c1e57098", "source": {"commit": "0c1e57098bba", "sha256": "83"}}
# Another build of the same source, fetched in another way.
SAME = {"id": "b", "version": "git-0c1e57098", "source": {"commit": "0c1e57098bba", "sha256": None}}
OLD = {"id": "c", "version": "0.3.16-4227c9be4", "source": {"commit": "4227c9be4268", "sha256": "34"}}
ARCHIVE = {"id": "d", "version": "archive-12ab", "source": {"commit": None, "sha256": "12ab"}}
OTHER_ARCHIVE = {"id": "e", "version": "archive-34cd", "source": {"commit": None, "sha256": "34cd"}}


def hosts(count: int, **variables: Any) -> dict[str, dict[str, Any]]:
    return {f"w{i}": {"ansible_host": f"10.0.0.{i}", **variables} for i in range(1, count + 1)}


SOUND = {
    "one-worker": (hosts(1), {}),
    "fifteen-workers": (hosts(15), {}),
    "one-host-both": ({"this": {}}, {"masters": ["this"]}),
    "two-instances": ({"w1": {"rpc_server_instances": [{"port": 1}, {"port": 2}]}}, {}),
    "endpoints-without-hosts": ({}, {"endpoints": ["127.0.0.1:1", "127.0.0.1:2"]}),
    "behind-one-gateway": (
        {"w1": {"ansible_host": "gw", "ansible_port": 2201, "rpc_server_address": "10.0.0.1"},
         "w2": {"ansible_host": "gw", "ansible_port": 2202, "rpc_server_address": "10.0.0.2"}},
        {},
    ),
    "two-groups": (
        {**{f"w{i}": {"ansible_host": f"10.0.0.{i}", "llama_group": "a"} for i in range(1, 16)},
         "v": {"llama_group": "b"}, "m": {"llama_group": "a"}, "n": {"llama_group": "b"}},
        {"masters": ["m", "n"], "workers": [*(f"w{i}" for i in range(1, 16)), "v"]},
    ),
    "a-host-that-two-groups-share": (
        {"w1": {"rpc_server_instances": [{"port": 1, "group": "a"}, {"port": 2, "group": "b"}]},
         "m": {"llama_group": "a"}, "n": {"llama_group": "b"}},
        {"masters": ["m", "n"], "workers": ["w1"]},
    ),
    "releases-alike": (hosts(2), {"releases": {"m": NEW, "w1": NEW, "w2": SAME}}),
    "patched-otherwise": (hosts(1), {"releases": {"m": NEW, "w1": {**NEW, "id": "f", "patches": [{"name": "mine"}]}}}),
    "archives-alike": (hosts(1), {"releases": {"m": ARCHIVE, "w1": {**ARCHIVE, "id": "f"}}}),
}  # fmt: skip


@pytest.mark.parametrize(("hostvars", "given"), SOUND.values(), ids=SOUND.keys())
def test_a_sound_cluster_has_no_problem(hostvars: dict[str, Any], given: dict[str, Any]) -> None:
    given = {"masters": ["m"], "workers": list(hostvars), **given}
    assert cluster_problems(given.pop("workers"), hostvars, **given) == []


WRONG = {
    "no-master": (hosts(1), {"masters": []}, ["There is no master: put a host into the group llama_masters"]),
    "no-workers": ({}, {}, ["There are no workers: put at least one host into the group llama_workers"]),
    "sixteen-workers": (hosts(17), {}, ["takes at most 15 in one run: leave out 10.0.0.16:50052, 10.0.0.17:"]),
    "sixteen-instances": (
        {"w1": {"rpc_server_instances": [{"port": port} for port in range(1, 17)]}},
        {},
        ["There are 16 workers"],
    ),
    "same-host-twice": (
        {"w1": {"ansible_host": "Node.lan"}, "w2": {"ansible_host": "node.lan"}},
        {},
        ["w1 and w2 are the same host (node.lan): keep one of the names"],
    ),
    "same-host-twice-on-two-ports": (
        {"w1": {"ansible_host": "10.0.0.1"}, "w2": {"ansible_host": "10.0.0.1", "rpc_server_port": 50053}},
        {},
        ["w1 and w2 are the same host (10.0.0.1)"],
    ),
    "host-named-by-its-address": ({"10.0.0.1": {}, "w2": {"ansible_host": "10.0.0.1"}}, {}, ["are the same host"]),
    "same-endpoint-of-two-hosts": (
        {"w1": {"rpc_server_address": "10.0.0.1"}, "w2": {"rpc_server_address": "10.0.0.1"}},
        {},
        ["10.0.0.1:50052 is named twice as a worker, of w1 and of w2: give each an address or a port of its own."],
    ),
    "same-endpoint-in-a-list": ({}, {"endpoints": ["a:1", "A:1"]}, ["A:1 is named twice as a worker: give"]),
    "port": (hosts(1, rpc_server_port=70000), {}, ["host w1, rpc_server_port: port 70000 is not a number"]),
    "other-release": (
        hosts(2),
        {"releases": {"m": NEW, "w1": NEW, "w2": OLD}},
        ["w2 has llama.cpp 0.3.16-4227c9be4 and the master m has 0.3.36-0c1e57098: install the same on both"],
    ),
    "other-archive": (hosts(1), {"releases": {"m": ARCHIVE, "w1": OTHER_ARCHIVE}}, ["w1 has llama.cpp archive-34cd"]),
    "worker-that-cannot-be-asked": (
        hosts(2),
        {"releases": {"m": NEW, "w1": {"unknown": "no route to host."}, "w2": OLD}},
        ["It is not known which llama.cpp w1 has (no route to host): install it there", "w2 has llama.cpp 0.3.16"],
    ),
    "group-without-a-master": (
        {"w1": {"llama_group": "a"}, "w2": {"llama_group": "b"}, "m": {"llama_group": "a"}},
        {"workers": ["w1", "w2"]},
        ["Group b has no master: set llama_group: b for a host of llama_masters, or give w2:50052 another group."],
    ),
    "master-without-a-group": (
        {"w1": {"llama_group": "a"}, "m": {}},
        {"workers": ["w1"]},
        ["m has no llama_group, and other hosts have one: give it to all.", "Group a has no master"],
    ),
    "group-without-workers": (
        {"w1": {"llama_group": "a"}, "m": {"llama_group": "a"}, "n": {"llama_group": "b"}},
        {"workers": ["w1"], "masters": ["m", "n"]},
        ["Group b has no workers: set llama_group: b for hosts of llama_workers, or group: b in their rpc_server_inst"],
    ),
    "two-masters-in-a-group": (
        {"w1": {"llama_group": "a"}, "m": {"llama_group": "a"}, "n": {"llama_group": "a"}},
        {"workers": ["w1"], "masters": ["m", "n"]},
        ["Group a has the masters m, n, and a group has one: give each its own."],
    ),
    "master-in-two-groups": (
        {"w1": {"llama_group": "a"}, "m": {"llama_group": ["a", "b"]}},
        {"workers": ["w1"]},
        ["host m, llama_group: ['a', 'b'] is not the name of a group: give letters, digits, _ and -."],
    ),
    "sixteen-workers-in-a-group": (
        {**{f"w{i}": {"ansible_host": f"10.0.0.{i}", "llama_group": "a"} for i in range(1, 17)},
         "m": {"llama_group": "a"}},
        {"workers": [f"w{i}" for i in range(1, 17)]},
        ["Group a has 16 workers and llama.cpp takes at most 15 in one run: leave out 10.0.0.16:50052."],
    ),
    "one-port-for-two-groups": (
        {"w1": {"rpc_server_address": "10.0.0.1", "llama_group": "a"}, "m": {"llama_group": "a"},
         "w2": {"rpc_server_address": "10.0.0.1", "llama_group": "b"}, "n": {"llama_group": "b"}},
        {"workers": ["w1", "w2"], "masters": ["m", "n"]},
        ["10.0.0.1:50052 is named twice as a worker, of w1 and of w2"],
    ),
    "instance-of-a-group-without-a-master": (
        {"w1": {"llama_group": "a", "rpc_server_instances": [{"port": 1}, {"port": 2, "group": "b"}]},
         "m": {"llama_group": "a"}},
        {"workers": ["w1"]},
        ["Group b has no master: set llama_group: b for a host of llama_masters, or give w1:2 another group."],
    ),
    "two-instances-on-one-port": (
        {"w1": {"rpc_server_instances": [{"port": 1, "group": "a"}, {"port": 1, "group": "b"}]},
         "m": {"llama_group": "a"}, "n": {"llama_group": "b"}},
        {"workers": ["w1"], "masters": ["m", "n"]},
        ["host w1, rpc_server_instances[1]: endpoint w1:1 is already a worker of host w1"],
    ),
    "master-that-serves-another-group": (
        {"m": {"llama_group": "a", "rpc_server_instances": [{"port": 1}, {"port": 2, "group": "b"}]},
         "n": {"llama_group": "b"}},
        {"workers": ["m"], "masters": ["m", "n"]},
        ["m is the master of group a, and its rpc_server_instances serve group b: give these to a host of llama_w"],
    ),
    "all-at-once": (
        {"w1": {"ansible_host": "a", "rpc_server_port": 0}, "w2": {"ansible_host": "a"}},
        {"masters": []},
        ["There is no master", "w1 and w2 are the same host", "host w1, rpc_server_port: port 0"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("hostvars", "given", "said"), WRONG.values(), ids=WRONG.keys())
def test_each_violation_is_one_sentence(hostvars: dict[str, Any], given: dict[str, Any], said: list[str]) -> None:
    given = {"masters": ["m"], "workers": list(hostvars), **given}
    found = cluster_problems(given.pop("workers"), hostvars, **given)
    assert len(found) == len(said), found
    for sentence, part in zip(found, said):
        assert part in sentence
        assert sentence.endswith(".")
        assert "\n" not in sentence


@pytest.mark.parametrize(
    ("workers", "hostvars", "said"),
    [
        pytest.param("w", {}, "needs lists of hosts", id="text-for-hosts"),
        pytest.param(["w"], None, r"write cluster_problems\(hostvars\)", id="no-hostvars"),
    ],
)
def test_wrong_use_is_explained(workers: Any, hostvars: Any, said: str) -> None:
    with pytest.raises(AnsibleFilterError, match=said):
        cluster_problems(workers, hostvars, masters=["m"])


UNIT = "llama-rpc-server@50052.service"
LISTENER = {"address": "10.0.0.1", "pid": 7, "program": "/opt/llama_cpp/releases/a/bin/rpc-server", "unit": UNIT}
OTHER = {**LISTENER, "unit": None, "program": "/usr/bin/nc"}
OLDER = {**LISTENER, "program": "/opt/llama_cpp/releases/z/bin/rpc-server"}
CLOSED = {"firewalld": "running", "problems": [], "changes": []}
# The exact words of rpc_firewall_info.
CHANGES = Plan([Change("public", "port", "50052/tcp", "disabled")], reload=False, problems=[]).texts()
WELL = {
    "endpoints": ["10.0.0.1:50052"],
    "out": "",
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


FINE = {
    "port-used-on-another-address-too": (
        [READY],
        {"servers": [{"port": 50052, "listeners": [{**OTHER, "address": "127.0.0.1"}, LISTENER], "clients": []}]},
        ("running", "closed", "ready"),
    ),
    "ready": ([READY], {}, ("running", "closed", "ready")),
    "serving-and-so-not-asked": ([], {"servers": SERVING}, ("running", "closed", "busy")),
    "a-client-came-in-between": ([BUSY], {"servers": SERVING}, ("running", "closed", "busy")),
    "firewall-left-alone": ([READY], {"firewall": None}, ("running", "left alone", "ready")),
    "same-source-built-in-another-way": ([READY], {"manifest": {**SAME, "id": "a"}}, ("running", "closed", "ready")),
}


@pytest.mark.parametrize(("views", "changes", "states"), FINE.values(), ids=FINE.keys())
def test_a_worker_is_well(views: list[Any], changes: dict[str, Any], states: tuple[str, ...]) -> None:
    status = look(*views, **changes)
    assert (status["all_well"], status["problems"]) == (True, [])
    (worker,) = status["workers"]
    assert (worker["service"], worker["firewall"], worker["state"]) == states


UNWELL = {
    "host-down": ([REFUSED], {"out": "It cannot be reached."}, ["w1 could not be asked. It", "refuses connections."]),
    "service-stopped": (
        [REFUSED],
        {"servers": [{"port": 50052, "listeners": [], "clients": []}]},
        [f"Nothing listens on port 50052 of w1: see `journalctl -u {UNIT}`", "10.0.0.1:50052 refuses connections."],
    ),
    "somebody-elses-port": (
        [READY],
        {"servers": [{"port": 50052, "listeners": [OTHER], "clients": []}]},
        [f"Port 50052 of w1 belongs to /usr/bin/nc, not to {UNIT}"],
    ),
    "release-of-before": (
        [READY],
        {"servers": [{"port": 50052, "listeners": [OLDER], "clients": []}]},
        ["The worker on port 50052 of w1 still runs the previous release"],
    ),
    "other-release": ([READY], {"manifest": {**OLD, "id": "a"}}, ["w1 has llama.cpp 0.3.16-4227c9be4"]),
    "no-release": ([READY], {"manifest": None}, ["It is not known which llama.cpp w1 has (no release is in use"]),
    "firewall-stopped": ([READY], {"firewall": {**CLOSED, "firewalld": "stopped"}}, ["The firewall of w1 does not"]),
    "firewall-open": (
        [READY],
        {"firewall": {**CLOSED, "changes": CHANGES}},
        ["The firewall of w1 is not as expected: run the playbook site, which repairs it (port 50052/tcp removed from"],
    ),
    "held-by-nobody": (
        [BUSY], {}, [f"10.0.0.1:50052 of w1 answers nobody and has no client: `systemctl restart {UNIT}`"],
    ),
    "asked-by-nobody": ([], {}, ["No master asked 10.0.0.1:50052 of w1"]),
}  # fmt: skip


@pytest.mark.parametrize(("views", "changes", "said"), UNWELL.values(), ids=UNWELL.keys())
def test_what_is_not_well_is_said(views: list[Any], changes: dict[str, Any], said: list[str]) -> None:
    status = look(*views, **changes)
    assert status["all_well"] is False
    assert len(status["problems"]) == len(said), status["problems"]
    for sentence, part in zip(status["problems"], said):
        assert part in sentence
        assert "\n" not in sentence


def test_a_master_without_a_release_is_named() -> None:
    status = verify({"w1": WELL}, {"m": {"manifest": None, "workers": [READY]}})
    assert status["problems"] == ["m has no llama.cpp release: run the playbook site."]
    assert status["all_well"] is False


def test_a_master_that_could_not_be_asked_is_named_and_the_others_have_their_say() -> None:
    seen = {"m1": {"manifest": NEW, "workers": [READY]}, "m2": {"workers": [], "out": "It cannot be reached."}}
    status = verify({"w1": WELL}, seen)
    assert status["problems"] == ["m2 could not be asked. It cannot be reached."]
    assert (status["all_well"], status["workers"][0]["well"]) == (False, True)


@pytest.mark.parametrize("changes", [{}, {"out": "It cannot be reached."}, {"manifest": None}])
def test_what_is_written_is_as_its_schema_says(changes: dict[str, Any]) -> None:
    schema = json.loads((Path(__file__).resolve().parents[3] / "docs/monitoring/status.schema.json").read_text())
    written = {**look(READY, **changes), "schema_version": 1, "time": "2026-01-31T12:00:00Z"}
    jsonschema.validate(written, schema)
    described = schema["properties"]["workers"]["items"]["properties"]
    assert set(described) >= set(written["workers"][0]), "each key is described"


def test_an_upgrade_that_has_not_ended_is_said_first() -> None:
    note = {"run": "1", "from": "a", "to": "b", "time": "noon"}
    status = verify({"w1": {**WELL, "upgrade": note}}, {"m": {"manifest": NEW, "workers": [REFUSED], "upgrade": note}})
    assert status["problems"][0] == (
        "An upgrade was interrupted, and has not ended on w1, m: run the playbook upgrade, which ends it."
    )
    assert verify({"w1": WELL}, {"m": {"manifest": NEW, "workers": [READY], "upgrade": None}})["all_well"]


def test_a_client_that_keeps_a_worker_from_its_api_is_named_and_causes_are_told_once() -> None:
    service = {"unit": "llama-server@8080.service", "address": "127.0.0.1", "port": 8080, "workers": ["10.0.0.1:50052"]}
    waits = "Waiting for 1 of 1 workers, 10.0.0.1:50052. 10.0.0.1:50052 cannot be reached (no answer): check the host."
    api_waits = {**service, "state": "waiting", "well": False, "message": waits}
    seen: dict[str, Any] = {"m": {"manifest": NEW, "workers": [], "services": [api_waits]}}
    status = verify({"w1": {**WELL, "servers": SERVING}}, seen)
    stranger, api = status["problems"]
    assert stranger == (
        "A client at 10.0.0.9 holds 10.0.0.1:50052 of w1, and the API of m waits for this worker: find the program "
        "there with `ss -tnp 'dport = :50052'`, and wait for its end, or end it."
    )
    assert api == "m: Waiting for 1 of 1 workers, 10.0.0.1:50052."
    assert status["workers"][0]["well"] is False
    # Now the API's message is the only cause that is known.
    seen["m"]["workers"] = [READY]
    assert verify({"w1": WELL}, seen)["problems"] == [f"m: {waits}"]


def test_who_holds_the_workers_that_an_api_waits_for_is_named() -> None:
    first = {"unit": "llama-server@8080.service", "address": "127.0.0.1", "port": 8080, "workers": ["w1:1", "w2:1"]}
    other = {**first, "unit": "llama-server@8081.service", "port": 8081, "workers": ["w2:1"]}
    waits = {"state": "waiting", "well": False, "message": "Waiting for 1 of 1 workers, w2:1."}
    seen = {
        "m1": {"manifest": NEW, "workers": [READY], "services": [{**first, "state": "serving", "well": True}]},
        "m2": {"manifest": NEW, "workers": [READY], "services": [{**other, **waits}]},
    }
    (said,) = verify({"w1": WELL}, seen)["problems"]
    assert said == (
        "m2: Waiting for 1 of 1 workers, w2:1. llama-server@8080.service of m1 holds w2:1, and a worker serves one "
        "master at a time: give one of the two other workers, or stop it."
    )
    seen["m1"]["services"][0]["state"] = "stopped"  # type: ignore[index]
    assert verify({"w1": WELL}, seen)["problems"] == ["m2: Waiting for 1 of 1 workers, w2:1."]


def test_the_table_of_apis_names_the_release_that_runs() -> None:
    api = {"host": "m1", "address": "127.0.0.1", "port": 8080, "alias": "a", "state": "serving", "restarts": 0}
    runs = {**api, "release": "0.3.36-0c1e57098-3f0a1b2c", "well": True}
    stands = {**api, "host": "m2", "state": "stopped", "release": None, "well": False}
    header, *rows = (line.split() for line in render_services([runs, stands]).splitlines()[1:])
    assert header[-2:] == ["llama.cpp", "well"]
    assert [row[-2:] for row in rows] == [["0.3.36-0c1e57098", "yes"], ["-", "no"]]


def test_no_worker_is_not_well() -> None:
    assert verify({}, {})["all_well"] is False


@pytest.mark.parametrize(("asked", "shown"), [(["m"], ["a"]), (["m", "n"], ["a", "b"])], ids=["limit", "all"])
def test_a_host_that_groups_share_is_judged_by_the_masters_that_are_asked(asked: list[str], shown: list[str]) -> None:
    shared = {**WELL, "endpoints": ["10.0.0.1:50052", "10.0.0.1:50053"], "groups": ["a", "b"]}
    seen = {
        "m": {"group": "a", "manifest": NEW, "workers": [READY]},
        "n": {"group": "b", "manifest": NEW, "workers": [{**READY, "endpoint": "10.0.0.1:50053"}]},
    }
    status = verify({"w1": shared}, {name: seen[name] for name in asked})
    assert [row["group"] for row in status["workers"]] == shown


def test_every_master_has_its_say() -> None:
    seen = {"m1": {"manifest": NEW, "workers": [READY]}, "m2": {"manifest": NEW, "workers": [REFUSED]}}
    assert verify({"w1": WELL}, seen)["problems"] == [f"As m2 sees it: {REFUSED['message']}"]


def test_workers_that_were_not_looked_at_are_judged_by_their_masters() -> None:
    """This is the case with --limit."""
    status = verify({"w1": {"endpoints": WELL["endpoints"], "out": ""}}, {"m": {"manifest": NEW, "workers": [READY]}})
    assert status["all_well"] is True
    assert status["workers"][0]["service"] is None


def test_the_table_names_who_is_not_well() -> None:
    lines = look(BUSY, servers=SERVING, firewall=None, manifest=None)
    table = render_cluster(lines["workers"]).splitlines()
    assert table[2].split() == ["w1", "10.0.0.1:50052", "running", "left", "alone", "busy", "-", "-", "10.0.0.9", "no"]


REPACK = {"enabled": True, "kernels": True, "weights": 12, "mib": 345.67, "of_weights": 20, "of_mib": 456.78}


@pytest.mark.parametrize(
    ("repack", "shown"),
    [
        pytest.param(REPACK, "346 of 457 MiB", id="repacked"),
        pytest.param({**REPACK, "of_weights": 0}, "on", id="nothing-loaded-yet"),
        pytest.param({**REPACK, "enabled": False}, "off", id="switched-off"),
        pytest.param({**REPACK, "kernels": False}, "no kernels", id="cpu-without-kernels"),
    ],
)
def test_what_was_repacked_is_shown_of_workers_that_say_it(repack: dict[str, Any], shown: str) -> None:
    patched = {**NEW, "patches": [{"name": "rpc-repack", "sha256": "12"}]}
    status = look(READY, servers=[{**WELL["servers"][0], "repack": repack}], manifest=patched)
    assert status["all_well"] is True
    assert (status["workers"][0]["repack"], status["workers"][0]["patches"]) == (repack, ["rpc-repack"])
    header, row = render_cluster(status["workers"]).splitlines()[1:]
    at = header.index("repacked")
    assert row[at:].startswith(shown)
    stock = look(READY)["workers"]
    assert (stock[0]["repack"], stock[0]["patches"]) == (None, [])
    assert "repacked" not in render_cluster(stock)
    both = render_cluster([*status["workers"], *stock]).splitlines()
    assert [line[at:].split("  ")[0] for line in both[2:]] == [shown, "-"]


CACHE = {
    "folder": "/var/cache/llama_cpp/rpc", "entries": 3, "bytes": 3 << 30, "free_bytes": 9, "max_bytes": 8 << 30,
    "min_free_bytes": 0, "kept_since": 0, "tidied_at": 0, "corrupted": 0, "evicted": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("tidied", "kept", "limit", "shown", "problem"),
    [
        pytest.param(1, 99, 8 << 30, "3.0 of 8.0 GiB", None, id="limited"),
        pytest.param(1, 99, None, "3.0 GiB", None, id="no-limit"),
        pytest.param(None, 1, None, "3.0 GiB", None, id="not-put-in-order-yet"),
        pytest.param(None, None, None, "3.0 GiB", None, id="nothing-keeps-it-in-order"),
        pytest.param(25, 99, 8 << 30, "3.0 of 8.0 GiB", "was last tidied 25 hours ago", id="its-timer-stopped"),
        pytest.param(
            None, 99, None, "3.0 GiB", "was never tidied in the 99 hours since its timer was made",
            id="it-never-ran",
        ),
    ],
)  # fmt: skip
def test_what_is_cached_is_shown(
    tidied: int | None, kept: int | None, limit: int | None, shown: str, problem: str | None
) -> None:
    times = {
        key: None if hours is None else time.time() - 3600 * hours
        for key, hours in (("tidied_at", tidied), ("kept_since", kept))
    }
    status = look(READY, servers=[{**WELL["servers"][0], "cache": {**CACHE, **times, "max_bytes": limit}}])
    assert len(status["problems"]) == (problem is not None)
    assert problem is None or f"w1:50052 {problem}: see" in status["problems"][0]
    assert "free_bytes" not in status["workers"][0]["cache"]
    header, row = render_cluster(status["workers"]).splitlines()[1:]
    assert row[header.index("cache") :].startswith(shown)
    assert "cache" not in render_cluster(look(READY)["workers"])


@pytest.mark.parametrize(
    ("state", "through_tunnel", "problems"),
    [("unreachable", True, ["As m sees it: TUNNEL"]), ("ready", True, []), ("ready", False, ["As m sees it: TUNNEL"])],
)
def test_a_tunnel_that_is_down_is_named_as_the_cause(state: str, through_tunnel: bool, problems: list[str]) -> None:
    link = {"host": "w", "address": "10.213.0.1", "through_tunnel": through_tunnel, "message": "TUNNEL"}
    view = {"endpoint": "10.213.0.1:50052", "state": state, "protocol": None, "message": "It cannot be reached."}
    looks = {"w": {"endpoints": ["10.213.0.1:50052"], "groups": [""], "out": ""}}
    status = verify(looks, {"m": {"workers": [view], "manifest": NEW, "links": [link]}})
    assert status["problems"] == problems
    assert status["links"] == [{"master": "m", **link}]


def test_what_passes_within_the_tunnel_is_not_said_to_be_readable() -> None:
    api = {"unit": "u", "port": 8080, "workers": [], "state": "serving", "well": True, "message": ""}
    seen = {
        "m": {
            "workers": [READY],
            "manifest": NEW,
            "inside": "10.213.0.9",
            "services": [{**api, "address": "10.213.0.9"}, {**api, "address": "10.0.0.9"}],
        }
    }
    (note,) = verify({"w1": WELL}, seen)["notes"]
    assert "Clients reach 10.0.0.9:8080 of m without encryption" in note
