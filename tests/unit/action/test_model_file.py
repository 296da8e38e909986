# SPDX-License-Identifier: GPL-3.0-or-later
"""How long the action of a detached module waits for the module and its host, with a clock that does not wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible_collections.llama_cpp.cluster.plugins.action import model_file
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.progress import Step

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = {"finished": False, "_ansible_parsed": True}
NOTE = Step("downloading", 1, 2).noted()
LIMIT = 21600


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(model_file, "time", clock)
    return clock


def outcome(note: Callable[[], str], answer: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of a module whose note and whose state are these."""
    action = model_file.ActionModule.__new__(model_file.ActionModule)
    action._task = SimpleNamespace(name="Download", action="model_file")
    action._connection = SimpleNamespace(reset=lambda: None)
    action._noted = note  # type: ignore[method-assign, assignment]
    action._ask = lambda _job, _mode, _vars: answer()  # type: ignore[method-assign]
    return action._wait("1.2", LIMIT, {"inventory_hostname": "master"})


def test_the_result_is_that_of_the_module_alone(clock: Clock) -> None:
    answer = {**RUNS, "finished": True, "ansible_job_id": "1.2", "started": True, "changed": True, "fetched": ["x"]}
    found = outcome(lambda: "" if clock.now > 20 else NOTE, lambda: answer if clock.now > 20 else RUNS)
    assert {name: value for name, value in found.items() if not name.startswith("_")} == {
        "changed": True,
        "fetched": ["x"],
    }
    assert clock.now < 23, "its end is noticed soon"


def test_a_host_that_is_away_for_a_while_is_waited_for(clock: Clock) -> None:
    def note() -> str:
        if 10 < clock.now < 300:
            raise AnsibleConnectionFailure("no route")
        return "" if clock.now > 400 else NOTE

    assert outcome(note, lambda: {"finished": clock.now > 400, "changed": True})["changed"]


def test_a_host_that_stays_away_is_given_up(clock: Clock) -> None:
    def note() -> str:
        raise AnsibleConnectionFailure("no route")

    with pytest.raises(AnsibleConnectionFailure):
        outcome(note, lambda: RUNS)
    assert 300 <= clock.now < 310


def test_a_module_that_was_lost_with_its_host_is_given_up(clock: Clock) -> None:
    with pytest.raises(AnsibleActionFail, match="was ended before its time"):
        outcome(lambda: NOTE if clock.now < 100 else "", lambda: RUNS)
    assert 160 <= clock.now < 165


def test_a_module_that_does_not_end_is_given_up(clock: Clock) -> None:
    with pytest.raises(AnsibleActionFail, match="did not end within 21600 s"):
        outcome(lambda: NOTE, lambda: RUNS)
    assert LIMIT < clock.now < LIMIT + 70


def test_another_process_that_ends_the_module_is_noticed_though_the_note_stays(clock: Clock) -> None:
    failed = {"failed": True, "_ansible_parsed": True, "msg": "killed"}
    assert outcome(lambda: NOTE, lambda: failed if clock.now > 50 else RUNS)["msg"] == "killed"
    assert clock.now < 90
