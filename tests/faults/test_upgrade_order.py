# SPDX-License-Identifier: GPL-3.0-or-later
"""All hosts get the new release, or all keep what they have, whichever step fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from upgrade_stage import NEW, OLD, Stage

UPGRADE = ("-e", f"llama_cpp_version={NEW}")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


# By what goes wrong: the cues, and what is said.
FAULTS: dict[str, tuple[list[str], str]] = {
    "no-room": (["worker2/cue-bring"], "was not begun: every host has what it had. worker2: "),
    "busy": (["cue-busy"], "A worker of worker1 is serving 192.0.2.1:4711"),
    "worker-does-not-start": ([f"worker1/cue-start-{NEW}-id"], "every host has what it had before. worker1: "),
    "another-protocol": (["cue-answer-7.0.0"], "worker1.example.com:50052 speaks another protocol."),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_leaves_every_host_with_what_it_had(stage: Stage, fault: str) -> None:
    cues, sentence = FAULTS[fault]
    for cue in cues:
        stage.cue(cue)
    status, said = stage.play(*UPGRADE, "-e", "upgrade_drain_timeout=0")
    assert status == 2, said
    assert sentence in said
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


# When a run is killed that takes all hosts back, or the one that ends it: once so many hosts are done with a task.
BACK = {
    "where-all-hosts-end-is-known": ("Where all hosts end is known", 3),
    "links-lead-back": ("llama_cpp.cluster.llama_cpp : The release is the current one", 4),
    "a-worker-is-back": ("llama_cpp.cluster.rpc_server : An actor plays", 3),
    "workers-are-back": ("Which workers have the release is known", 1),
    "workers-have-answered": ("They are ready, with the protocol of the release", 2),
    "a-note-is-gone": ("The upgrade has ended here", 1),
    "notes-are-gone": ("The upgrade has ended here", 3),
}
AGAIN = {
    "it-is-known": ("What is left to do is known", 3),
    "links-lead-back": ("llama_cpp.cluster.llama_cpp : The release is the current one", 1),
    "workers-are-back": ("llama_cpp.cluster.rpc_server : An actor plays", 2),
    "a-note-is-gone": ("The upgrade has ended here", 1),
}


def test_a_host_that_is_lost_on_the_way_is_healed_by_the_next_run(stage: Stage) -> None:
    stage.cue(f"worker2/cue-lose-{NEW}-id")
    status, said = stage.play(*UPGRADE)
    assert status != 0, said
    assert "all hosts but worker2 have what they had before. worker2 stopped answering." in said
    way = f"run the playbook upgrade again, which takes it back to llama.cpp {OLD}."
    assert f"worker2 stopped answering: bring it back, and {way}" in said
    there = stage.has()
    assert (there["master"][0], there["worker1"][0]) == (f"{OLD}-id", f"{OLD}-id")
    assert there["worker2"] == (f"{NEW}-id", f"{NEW}-id", True)

    status, said = stage.play(*UPGRADE)
    assert "worker2 is out, and the hosts of a cluster change together, so nothing was changed anywhere." in said
    assert stage.has() == there
    for name in ("lost", f"cue-lose-{NEW}-id"):
        (stage.folder / "worker2" / name).unlink()
    status, said = stage.play("-e", "rollback=true")
    assert (status, "has not ended on worker2: all hosts go back" in said) == (0, True), said
    stage.everywhere(OLD)
