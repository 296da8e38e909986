# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of an upgrade, its canary, and the messages about its outcome."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.filter.upgrade_outcome import FilterModule as Outcome
from ansible_collections.llama_cpp.cluster.plugins.filter.upgrade_plan import FilterModule as Plan

from support.templates import loaded, worked_out
from support.tree import ROOT

plan = Plan().filters()["upgrade_plan"]
outcome = Outcome().filters()["upgrade_outcome"]

OLD = {"id": "old", "version": "0.3.35-4df29be4f", "rpc_protocol": "5.0.0", "source": {"commit": "4df29be4f4c3"}}
NEW = {"id": "new", "version": "0.3.36-0c1e57098", "rpc_protocol": "7.0.0", "source": {"commit": "0c1e57098bba"}}
NOTE = {"run": "1", "from": "old", "to": "new", "time": "noon", "way": "upgrade"}
HOSTS = ("master", "worker1", "worker2")
WANTED = dict.fromkeys(HOSTS, "new")
COMPARISON = ROOT / "playbooks/tasks/upgrade/compare_canary.yml"


def look(current: str | None = "old", **more: Any) -> dict[str, Any]:
    return {"current": current, "releases": {"old": OLD, "new": NEW}, "unfinished": None, "finished": None, **more}


def looks(**changed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {host: changed.get(host) or look() for host in HOSTS}


def test_all_hosts_go_from_one_release_to_another() -> None:
    found = plan(looks(), "master", WANTED)
    assert (found["problems"], found["recover"], found["interrupted"], found["same"]) == ([], {}, "", False)
    assert found["targets"] == WANTED
    assert (found["from"], found["to"]) == ("0.3.35-4df29be4f", "0.3.36-0c1e57098")
    assert found["protocols"] == {"from": "5.0.0", "to": "7.0.0"}


def test_before_it_is_staged_the_release_is_known_by_its_name() -> None:
    found = plan(looks(), "master", dict.fromkeys(HOSTS, "0.3.35-x-y"), staged=False)
    assert (found["problems"], found["to"], found["protocols"]["to"]) == ([], "0.3.35-x-y", None)


def test_hosts_that_have_it_have_nothing_to_do() -> None:
    assert plan({host: look("new") for host in HOSTS}, "master", WANTED)["same"]
    assert not plan(looks(worker1=look("new")), "master", WANTED)["same"]


PROBLEMS: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "no-release": (looks(worker2=look(None)), WANTED, "It is not known which llama.cpp worker2 has"),
    "mixed": (looks(worker2=look("new")), WANTED, "worker2 has llama.cpp 0.3.36-0c1e57098 and the master master has"),
    "not-staged": (looks(), {**WANTED, "worker1": "another"}, "worker1 did not get the release another"),
    "another-commit-each": (
        looks(worker2=look(releases={"old": OLD, "new": {**NEW, "source": {"commit": "ffff"}}})),
        WANTED,
        "different commits: 0c1e57098bba on master, worker1 and ffff on worker2",
    ),
    "another-protocol-each": (
        looks(worker1=look(releases={"old": OLD, "new": {**NEW, "rpc_protocol": "6.0.0"}})),
        WANTED,
        "different RPC protocols: 7.0.0 on master, worker2 and 6.0.0 on worker1",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("there", "wanted", "sentence"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_what_stands_in_the_way_is_named(there: dict[str, Any], wanted: dict[str, str], sentence: str) -> None:
    assert sentence in " ".join(plan(there, "master", wanted)["problems"])


def test_an_artifact_of_unknown_protocol_is_no_obstacle() -> None:
    unknown = {**NEW, "rpc_protocol": None, "source": {"kind": "artifact", "sha256": "ffff"}}
    found = plan({host: look(releases={"old": OLD, "new": unknown}) for host in HOSTS}, "master", WANTED)
    assert (found["problems"], found["protocols"]["to"]) == ([], None)


@pytest.mark.parametrize("protocol", [None, ""])
def test_a_release_built_from_a_source_of_unknown_protocol_is_refused(protocol: str | None) -> None:
    unknown = {**NEW, "rpc_protocol": protocol, "source": {"kind": "archive", "commit": "0c1e57098bba"}}
    there = looks(worker2=look(releases={"old": OLD, "new": unknown}))
    assert " ".join(plan(there, "master", WANTED)["problems"]) == (
        "The source of llama.cpp 0.3.36-0c1e57098, which worker2 would get, does not say its RPC protocol: "
        "name another one in llama_cpp_version, or in its own variable."
    )
    back = {
        host: look("old", finished={**NOTE, "from": "new", "to": "old"}, releases=there["worker2"]["releases"])
        for host in HOSTS
    }
    assert plan(back, "master", rollback=True)["problems"] == [], "there it was good enough before"


def test_a_roll_back_goes_to_the_release_before() -> None:
    found = plan({host: look("new", finished=NOTE) for host in HOSTS}, "master", rollback=True)
    assert (found["problems"], found["targets"]) == ([], dict.fromkeys(HOSTS, "old"))
    assert (found["from"], found["to"]) == ("0.3.36-0c1e57098", "0.3.35-4df29be4f")


@pytest.mark.parametrize(
    ("last", "sentence"),
    [
        (look("new"), "No upgrade to the release in use is recorded on worker2"),
        (look("new", finished={**NOTE, "to": "another"}), "No upgrade to the release in use is recorded on worker2"),
        (look("new", finished=NOTE, releases={"new": NEW}), "worker2 no longer has the release old"),
    ],
    ids=["never", "changed-since", "pruned"],
)
def test_without_a_way_back_none_is_gone(last: dict[str, Any], sentence: str) -> None:
    there = {**{host: look("new", finished=NOTE) for host in HOSTS}, "worker2": last}
    assert sentence in " ".join(plan(there, "master", rollback=True)["problems"])


def test_an_interrupted_upgrade_goes_back_unless_one_host_knows_better() -> None:
    there = looks(worker1=look("new", unfinished=NOTE), worker2=look("old", unfinished=NOTE))
    found = plan(there, "master")
    back = {"run": "1", "release": "old", "state": "withdrawn"}
    assert found["recover"] == {"worker1": back, "worker2": back}
    assert "was interrupted and has not ended on worker1, worker2: all hosts go back to 0.3.35" in found["interrupted"]

    there["master"] = look("new", finished=NOTE)
    found = plan(there, "master")
    on = {"run": "1", "release": "new", "state": "finished"}
    assert found["recover"] == {"worker1": on, "worker2": on}
    assert "the new release was good, so it is completed with 0.3.36-0c1e57098" in found["interrupted"]
    # The success of an earlier upgrade does not count for this one.
    there["master"] = look("old", finished={**NOTE, "run": "0"})
    assert plan(there, "master")["recover"] == {"worker1": back, "worker2": back}


@pytest.mark.parametrize("rollback", [True, False])
@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize("way", ["upgrade", "rollback"])
def test_a_roll_back_has_what_it_asks_for_when_an_upgrade_is_taken_back_or_a_roll_back_ended(
    way: str, good: bool, rollback: bool
) -> None:
    note = {**NOTE, "way": way}
    there = looks(worker1=look("new", unfinished=note), **({"master": look("new", finished=note)} if good else {}))
    found = plan(there, "master", rollback=rollback)
    assert found["enough"] is (rollback and good is (way == "rollback"))
    assert ("A roll back from" if way == "rollback" else "An upgrade from") in found["interrupted"]


def run(text: str = " Who's there?", speed: float | None = 20.0, failure: str = "") -> dict[str, Any]:
    return {"text": text, "tokens_per_second": speed, "failure": failure}


CANARY: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str, bool]] = {
    "same": ([run()], {}, "", False),
    "a-little-slower": ([run(speed=15.1)], {}, "", False),
    "unknown-speed": ([run(speed=None)], {}, "", False),
    "failed": ([run(failure="It was killed.")], {"text": "any"}, "could not be continued: It was killed.", False),
    "nothing": ([run(text="")], {"text": "any"}, "continued with an empty text", False),
    "another-text": ([run(text=" A\nlettuce.")], {}, 'with "A lettuce." instead of "Who\'s there?"', False),
    "another-text-allowed": ([run(text=" A lettuce.")], {"text": "any"}, "", False),
    "slow": ([run(speed=14.9)], {}, "14.9 tokens/s instead of 20.0, 26 % fewer, and upgrade_canary_tolerance", True),
    "slow-twice": ([run(speed=14.9), run(speed=14.0)], {}, "14.9 tokens/s", False),
    "long-texts": ([run(text=" A" * 60)], {}, f'with "{"A " * 29}A…" instead of "Who', False),
    "slow-once": ([run(speed=14.9), run(speed=19.0)], {}, "", False),
    "tolerated": ([run(speed=10.1)], {"tolerance_percent": "50"}, "", False),
}


@pytest.mark.parametrize(("after", "options", "problem", "again"), CANARY.values(), ids=CANARY.keys())
def test_the_canary(after: list[dict[str, Any]], options: dict[str, Any], problem: str, again: bool) -> None:
    given: dict[str, Any] = {f"upgrade_canary_{name}": value for name, value in options.items()}
    given["__upgrade_canary_before"] = run()
    tasks = [task for task in loaded(COMPARISON) if "ansible.builtin.set_fact" in task]
    for task, found in zip(tasks, after):
        variables = {**task["vars"], **given, "__upgrade_canary_run": found}
        given.update(worked_out(task["ansible.builtin.set_fact"], variables))
    verdict = given["__upgrade_problem"]
    assert ("again" in verdict and len(after) == 1) is again
    assert problem in verdict.get("else", "")
    assert bool(verdict) is bool(problem)
    assert given["__upgrade_summary"].startswith("The prompt is continued with ")


def test_the_canary_is_summed_up() -> None:
    task = next(task for task in loaded(COMPARISON) if "ansible.builtin.set_fact" in task)

    def summed_up(**changed: Any) -> str:
        given = {"__upgrade_canary_before": run(), "__upgrade_canary_run": run(**changed)}
        return str(worked_out(task["ansible.builtin.set_fact"]["__upgrade_summary"], {**task["vars"], **given}))

    assert summed_up(speed=19.96) == "The prompt is continued with the same text, 20.0 tokens/s instead of 20.0."
    assert summed_up(text=" A", speed=None) == (
        "The prompt is continued with another text, as upgrade_canary_text allows; its speed is not known."
    )


HOST: dict[str, Any] = {
    "before": look(), "after": look(), "note": None, "lost": False,
    "failure": "", "rollback_failure": "",
}  # fmt: skip
WAY = {"from": "0.3.35-4df29be4f", "to": "0.3.36-0c1e57098"}
FROM, TO = (f"llama.cpp {name}" for name in WAY.values())
KEPT, BACK = (f"master {how} {FROM}." for how in ("has kept", "is back at"))
NOTED = {"note": NOTE}
GONE = {"lost": True, "after": None}
ARRIVED = {"note": NOTE, "after": look("new")}
AGAIN = "run the playbook upgrade again, which takes it"
BUT_ONE = "The upgrade from .* failed. All hosts but worker1 have their previous release. "

# How the upgrade ended, whether it was a roll back, what became of the hosts, the problem, and the sentences.
OUTCOMES: dict[str, tuple[str, bool, dict[str, dict[str, Any]], str, list[str]]] = {
    "good": (
        "new", False, {"master": ARRIVED, "worker1": ARRIVED}, "",
        [f"{host} has {TO}, and had {FROM}." for host in HOSTS[:2]],
    ),
    "before-anything-was-changed": (
        "old", False, {"master": {}, "worker1": {"failure": "The disk is full"}},
        "The upgrade from .* did not start: every host has its previous release. worker1: The disk is full.",
        [KEPT, f"worker1 has kept {FROM}."],
    ),
    "all-went-back": (
        "old", False, {"master": {"note": NOTE}, "worker1": {**NOTED, "failure": "The worker did not answer."}},
        "The upgrade from .* failed. Every host has its previous release. worker1: The worker did not answer.",
        [BACK, f"worker1 is back at {FROM}."],
    ),
    "lost-on-the-way": (
        "old", False, {"master": {"note": NOTE}, "worker1": {**NOTED, **GONE}},
        BUT_ONE + "worker1 stopped answering.",
        [BACK, f"worker1 stopped answering: bring it back, and {AGAIN} back to {FROM}."],
    ),
    "left-by-a-killed-run-and-not-taken-back": (
        "old", False, {"master": {"failure": "upgrade.json cannot be read."}, "worker1": ARRIVED},
        BUT_ONE + "master: upgrade.json cannot be read.",
        [KEPT, f"worker1 still has {TO}: {AGAIN} to the release of the others."],
    ),
    "could-not-go-back": (
        "old", False,
        {"master": {"note": NOTE, "failure": "Another text."}, "worker1": {**NOTED, "rollback_failure": "No space"}},
        BUT_ONE + "master: Another text.",
        [BACK, f"worker1 could not be repaired (No space): look there, and {AGAIN} back to {FROM}."],
    ),
    "lost-after-the-good-end": (
        "new", False, {"master": ARRIVED, "worker1": {"note": NOTE, **GONE}},
        "The upgrade from .* is done, but not everywhere. worker1 stopped answering.",
        [f"master has {TO}, and had {FROM}.", f"worker1 stopped answering: bring it back, and {AGAIN} to {TO}."],
    ),
    "not-known": (
        "unknown", True, {"master": {"note": NOTE, **GONE}, "worker1": ARRIVED},
        f"It is unknown whether the roll back from {FROM} .*",
        [
            f"master stopped answering: bring it back, and {AGAIN} to the release of the others.",
            f"worker1 has {TO}, and had {FROM}.",
        ],
    ),
    "nothing-to-do": ("old", False, {"master": {}}, "", [KEPT]),
    "lost-before": (
        "old", False, {"master": GONE}, ".*", ["master stopped answering before anything was changed there."]
    ),
    "no-release": (
        "old", False, {"master": {"after": look(None)}}, ".*", ["master has no release in use: run the playbook site."]
    ),
}  # fmt: skip


@pytest.mark.parametrize(("end", "rollback", "hosts", "problem", "sentences"), OUTCOMES.values(), ids=OUTCOMES.keys())
def test_what_became_of_the_hosts(
    end: str, rollback: bool, hosts: dict[str, dict[str, Any]], problem: str, sentences: list[str]
) -> None:
    found = outcome({name: copy.deepcopy({**HOST, **host}) for name, host in hosts.items()}, WAY, end, rollback)
    assert re.fullmatch(problem, found["problem"])
    assert found["sentences"] == sentences
