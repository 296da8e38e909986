# SPDX-License-Identifier: GPL-3.0-or-later
"""All hosts get the new release, or all keep what they have, whichever step fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.upgrade_stage import HOSTS, NEW, OLD, Stage

UPGRADE = ("-e", f"llama_cpp_version={NEW}")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


# For each fault, the cues that cause it, and a part of the message.
FAULTS: dict[str, tuple[list[str], str]] = {
    "no-room": (["worker2/cue-bring"], "did not start: every host has its previous release. worker2: "),
    "busy": (["cue-busy"], "A worker of worker1 is serving 192.0.2.1:4711"),
    "worker-does-not-start": ([f"worker1/cue-start-{NEW}-id"], "Every host has its previous release. worker1: "),
    "another-protocol": (["cue-answer-7.0.0"], "worker1.example.com:50052 speaks another protocol."),
}  # fmt: skip
# These faults are found before the first host changes.
SOON = ("no-room", "busy")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_leaves_every_host_with_what_it_had(stage: Stage, fault: str) -> None:
    cues, sentence = FAULTS[fault]
    for cue in cues:
        stage.cue(cue)
    status, said = stage.play(*UPGRADE, "-e", "upgrade_drain_timeout=0")
    assert status == 2, said
    assert sentence in said
    stage.everywhere(OLD)
    if fault in SOON:
        assert stage.starts() == 0


def test_a_run_that_does_not_end_in_time_is_left_alone(stage: Stage) -> None:
    stage.cue("cue-busy")
    status, said = stage.play(*UPGRADE, "-e", "upgrade_drain_timeout=5")
    assert status == 2, said
    assert "RETRYING" not in said
    assert stage.asked() == 4, "both workers are looked at again"
    assert "A worker of worker1 is serving 192.0.2.1:4711" in said
    assert "did not start: every host has its previous release." in said
    assert stage.starts() == 0
    stage.everywhere(OLD)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({"text": " A lettuce."}, 'continued with "A lettuce." instead of "Who\'s there?"'),
        ({"speed": 5.0}, "5.0 tokens/s instead of 20.0, 75 % fewer"),
        ({"failure": "The worker is gone."}, "the prompt could not be continued: The worker is gone."),
    ],
    ids=["another-text", "slow", "failed"],
)
def test_a_canary_that_is_worse_leaves_every_host_with_what_it_had(
    stage: Stage, answer: dict[str, str], sentence: str
) -> None:
    stage.answer(NEW, **answer)  # type: ignore[arg-type]
    status, said = stage.play(*UPGRADE)
    assert status == 2, said
    assert sentence in said
    stage.everywhere(OLD)
    assert "is back at llama.cpp 1.0" in said


# When to kill a run that takes all hosts back, and then the run that ends it: once so many hosts are done with a task.
LINK = "llama_cpp.cluster.llama_cpp : Switch the current link to the release"
START = "llama_cpp.cluster.rpc_server : An actor plays"
SETTLED = "Find the workers that can answer"
ENDED = "Note the end of the upgrade"
BACK = {
    "it-is-decided": (
        ("Find whether the hosts keep the new release", 3),
        ("Find how to complete an interrupted upgrade", 3),
    ),
    "releases-are-back": ((LINK, 4), (START, 1)),
    "a-worker-is-back": ((START, 3), (LINK, 1)),
    "workers-are-back": ((SETTLED, 1), (SETTLED, 3)),
    "workers-have-answered": (("Check that every worker is ready, with the release's RPC protocol", 2), (ENDED, 1)),
}


@pytest.mark.parametrize("moment", BACK)
def test_runs_that_are_killed_on_the_way_back_are_ended_by_the_one_after(stage: Stage, moment: str) -> None:
    first, second = BACK[moment]
    stage.answer(NEW, text=" A lettuce.")
    assert stage.play(*UPGRADE, until=first)[0] == -9
    assert all(noted for _current, _running, noted in stage.has().values())
    assert stage.play("-e", "rollback=true", until=second)[0] == -9
    stage.answer(NEW)
    status, said = stage.play(*UPGRADE)
    assert status == 0, said
    stage.everywhere(NEW)


@pytest.mark.parametrize(
    "moment", [("Find how to complete an interrupted upgrade", 3), (SETTLED, 1), (ENDED, 1)], ids=lambda on: on[0]
)
def test_a_run_that_is_killed_as_it_brings_a_good_upgrade_to_its_end_is_followed_by_one_that_does(
    stage: Stage, moment: tuple[str, int]
) -> None:
    assert stage.play(*UPGRADE)[0] == 0
    # Only the first master has noted the good end.
    for worker in HOSTS[1:]:
        prefix = stage.folder / worker / "prefix"
        (prefix / "upgraded.json").rename(prefix / "upgrade.json")
    assert stage.play(*UPGRADE, until=moment)[0] == -9
    status, said = stage.play(*UPGRADE)
    assert status == 0, said
    stage.everywhere(NEW)


def test_a_host_that_is_lost_on_the_way_is_healed_by_the_next_run(stage: Stage) -> None:
    stage.cue(f"worker2/cue-lose-{NEW}-id")
    status, said = stage.play(*UPGRADE)
    assert status != 0, said
    assert "All hosts but worker2 have their previous release. worker2 stopped answering." in said
    way = f"run the playbook upgrade again, which takes it back to llama.cpp {OLD}."
    assert f"worker2 stopped answering: bring it back, and {way}" in said
    there = stage.has()
    assert (there["master"][0], there["worker1"][0]) == (f"{OLD}-id", f"{OLD}-id")
    assert there["worker2"] == (f"{NEW}-id", f"{NEW}-id", True)

    status, said = stage.play(*UPGRADE)
    assert "worker2 failed, and the hosts of a cluster change together, so nothing was changed anywhere." in said
    assert stage.has() == there
    for name in ("lost", f"cue-lose-{NEW}-id"):
        (stage.folder / "worker2" / name).unlink()
    status, said = stage.play("-e", "rollback=true")
    assert (status, "has not ended on worker2: all hosts go back" in said) == (0, True), said
    stage.everywhere(OLD)


def test_a_run_that_was_killed_on_the_way_back_is_ended_by_the_next_one(stage: Stage) -> None:
    stage.answer(NEW, text=" A lettuce.")
    cue = stage.cue(f"worker1/cue-kill-{OLD}-id")
    assert stage.play(*UPGRADE)[0] == -9
    assert [noted for _current, _running, noted in stage.has().values()] == [True] * len(HOSTS)
    cue.unlink()
    stage.answer(NEW)
    status, said = stage.play(*UPGRADE)
    assert (status, "was interrupted and has not ended on" in said) == (0, True), said
    stage.everywhere(NEW)


def test_a_roll_back_that_was_killed_is_done_by_the_next_one(stage: Stage) -> None:
    assert stage.play(*UPGRADE)[0] == 0
    cue = stage.cue(f"worker1/cue-kill-{OLD}-id")
    assert stage.play("-e", "rollback=true")[0] == -9
    assert [noted for _current, _running, noted in stage.has().values()] == [True] * len(HOSTS)
    cue.unlink()
    status, said = stage.play("-e", "rollback=true")
    assert (status, f"all hosts go back to {NEW}" in said) == (0, True), said
    stage.everywhere(OLD)


def test_a_roll_back_after_an_upgrade_that_was_killed_past_its_good_end(stage: Stage) -> None:
    assert stage.play(*UPGRADE)[0] == 0
    # Only the first master has noted the good end.
    for worker in HOSTS[1:]:
        prefix = stage.folder / worker / "prefix"
        (prefix / "upgraded.json").rename(prefix / "upgrade.json")
    status, said = stage.play("-e", "rollback=true")
    assert (status, f"the new release was good, so it is completed with {NEW}" in said) == (0, True), said
    stage.everywhere(OLD)


def test_a_host_that_is_lost_for_a_moment_goes_where_the_others_go(stage: Stage) -> None:
    stage.cue(f"worker2/cue-lose-{NEW}-id")
    stage.cue("worker2/cue-back")
    status, said = stage.play(*UPGRADE)
    assert (status, "fatal: [worker2]: UNREACHABLE!" in said) == (2, True), said
    assert "Every host has its previous release. worker2: It stopped answering during the upgrade, and is" in said
    assert f"worker2 is back at llama.cpp {OLD}." in said
    stage.everywhere(OLD)


def test_a_host_that_is_lost_for_a_moment_after_the_good_end_has_the_release(stage: Stage) -> None:
    stage.cue("worker2/cue-lose-good")
    stage.cue("worker2/cue-back")
    status, said = stage.play(*UPGRADE)
    assert (status, "fatal: [worker2]: UNREACHABLE!" in said) == (0, True), said
    stage.everywhere(NEW)
