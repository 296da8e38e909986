# SPDX-License-Identifier: GPL-3.0-or-later
"""All hosts get the new release, or all keep the old one. tests/upgrade has the faults, on hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.upgrade_stage import NEW, OLD, TWO_GROUPS, Stage

UPGRADE = ("-e", f"llama_cpp_version={NEW}")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.mark.long
def test_ansible_may_be_set_to_end_a_play_with_the_first_failure(stage: Stage) -> None:
    stage.cue(f"worker1/cue-start-{NEW}-id")
    hasty = {"ANSIBLE_ANY_ERRORS_FATAL": "1", "ANSIBLE_STRATEGY": "free"}
    status, said = stage.play(*UPGRADE, settings=hasty)
    assert status == 2, said
    assert "Every host has its previous release. worker1: " in said
    stage.everywhere(OLD)


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
