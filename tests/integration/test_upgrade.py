# SPDX-License-Identifier: GPL-3.0-or-later
"""All hosts get the new release, or all keep the old one. tests/faults/test_upgrade_order.py has the other failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.upgrade_stage import HOSTS, NEW, OLD, TWO_GROUPS, Stage

UPGRADE = ("-e", f"llama_cpp_version={NEW}")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.mark.long
def test_there_and_back_again(stage: Stage) -> None:
    stage.leave("worker1", "1.5-id")
    stage.leave("worker1", ".1.5-id")
    status, said = stage.play(*UPGRADE, "--check")
    assert (status, f"All hosts would go from llama.cpp {OLD}" in said) == (0, True), said
    stage.everywhere(OLD)
    status, said = stage.play(*UPGRADE)
    assert status == 0, said
    for host in HOSTS:
        assert f"{host} has llama.cpp {NEW}, and had llama.cpp {OLD}." in said
    stage.everywhere(NEW)
    assert stage.releases("worker1") == {f"{OLD}-id", f"{NEW}-id"}, "two are kept, one of them the one to roll back to"
    status, said = stage.play(*UPGRADE)
    assert (status, "There was nothing to do." in said) == (0, True), said
    status, said = stage.play("-e", "rollback=true")
    assert status == 0, said
    stage.everywhere(OLD)


@pytest.mark.long
def test_ansible_may_be_set_to_end_a_play_with_the_first_failure(stage: Stage) -> None:
    stage.cue(f"worker1/cue-start-{NEW}-id")
    hasty = {"ANSIBLE_ANY_ERRORS_FATAL": "1", "ANSIBLE_STRATEGY": "free"}
    status, said = stage.play(*UPGRADE, settings=hasty)
    assert status == 2, said
    assert "Every host has its previous release. worker1: " in said
    stage.everywhere(OLD)


@pytest.mark.long
def test_a_run_that_ends_in_time_is_waited_for(stage: Stage) -> None:
    client = stage.cue("cue-busy-once")
    status, said = stage.play(*UPGRADE, "-e", "upgrade_drain_timeout=30")
    assert status == 0, said
    assert not client.exists()
    assert "RETRYING" not in said
    assert stage.asked() == 3, "one worker is looked at again, once"
    assert stage.starts() == 2, "each worker is started anew once"
    stage.everywhere(NEW)


@pytest.mark.long
def test_groups_change_one_after_the_other(tmp_path: Path) -> None:
    stage = Stage(tmp_path, TWO_GROUPS)
    status, said = stage.play(*UPGRADE)
    assert status == 0, said
    stage.everywhere(NEW)
    for host in stage.hosts:
        assert f"{host} has llama.cpp {NEW}, and had llama.cpp {OLD}." in said
    last = max((tmp_path / host / "starts").stat().st_mtime for host in HOSTS[1:])
    assert (tmp_path / "worker3/starts").stat().st_mtime > last
    # The next time, the first group fails, and the second one keeps its release.
    stage.cue(f"worker2/cue-start-{OLD}-id")
    status, said = stage.play("-e", "rollback=true")
    assert status != 0
    assert "Every host has its previous release. worker2: " in said
    assert "Group b keeps its release: the upgrade of an earlier group failed." in said
    stage.everywhere(NEW)
    assert (tmp_path / "worker3/starts").read_text().splitlines() == [f"{NEW}-id"], "it was left alone"


@pytest.mark.long
def test_groups_that_share_a_host_change_as_one(tmp_path: Path) -> None:
    stage = Stage(tmp_path, TWO_GROUPS)
    stage.variables["worker2"] = {"rpc_server_instances": [{"port": 50052}, {"port": 50053, "group": "b"}]}
    # A host of one group fails, so the hosts of the other group also go back to their previous release.
    stage.cue(f"worker1/cue-start-{NEW}-id")
    status, said = stage.play(*UPGRADE)
    assert status != 0
    assert "Every host has its previous release. worker1: " in said
    stage.everywhere(OLD)
    (tmp_path / f"worker1/cue-start-{NEW}-id").unlink(missing_ok=True)
    status, said = stage.play(*UPGRADE)
    assert status == 0, said
    stage.everywhere(NEW)
    status, said = stage.play("-e", "rollback=true", "--limit", "localhost,master2,worker2,worker3")
    assert status != 0
    assert "groups that share a host, change together, but --limit leaves out master, worker1: run this" in said
    stage.everywhere(NEW)


def test_a_limit_takes_one_group(tmp_path: Path) -> None:
    stage = Stage(tmp_path, TWO_GROUPS)
    status, said = stage.play(*UPGRADE, "--limit", "localhost,master2,worker3")
    assert status == 0, said
    stage.everywhere(OLD, "a")
    stage.everywhere(NEW, "b")
    status, said = stage.play("-e", "rollback=true", "--limit", "localhost,worker3")
    assert status != 0
    assert "--limit leaves out master2: run this without it" in said
    stage.everywhere(NEW, "b")


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"upgrade_canary_tolerance_percent": "25 %"}, 'upgrade_canary_tolerance_percent is "25 %": give percent'),
        ({"rollback": "ture"}, 'rollback is "ture": give true or false.'),
    ],
)
def test_a_mistake_in_the_variables_of_some_hosts_is_found_before_anything_is_done(
    stage: Stage, variables: dict[str, str], sentence: str
) -> None:
    status, said = stage.play(*UPGRADE, **variables)
    assert status != 0
    assert sentence in said
    assert "All hosts get the release" not in said
    stage.everywhere(OLD)


@pytest.mark.long
def test_a_killed_run_is_ended_by_the_next_one_once_it_does_nothing_more(stage: Stage) -> None:
    """Otherwise the task that it began on a worker would install the new release there after all have gone back."""
    stage.cue(f"worker1/cue-linger-{NEW}-id")
    assert stage.play(*UPGRADE)[0] == -9
    assert [noted for _current, _running, noted in stage.has().values()] == [True] * len(HOSTS)
    status, said = stage.play("-e", "rollback=true")
    assert (status, "was interrupted and has not ended on" in said) == (0, True), said
    stage.everywhere(OLD)
