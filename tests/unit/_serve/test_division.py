# SPDX-License-Identifier: GPL-3.0-or-later
"""Which workers serve while others are lost, when they return, and what is remembered of it."""

from __future__ import annotations

import importlib
import json
import subprocess
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

WORKERS = ("a:1", "b:1", "c:1")
GIB = 1 << 30


@pytest.fixture(scope="module")
def service() -> Iterator[ModuleType]:
    """Yield the program, with its parts as on a master."""
    with pytest.MonkeyPatch.context() as patch:
        for folder in "plugins/module_utils", "plugins", "roles/llama_server/files":
            patch.syspath_prepend(ROOT / folder)
        yield importlib.import_module("llama_server_service")


@pytest.fixture(scope="module")
def division(service: ModuleType) -> ModuleType:
    del service
    return importlib.import_module("llama_server_division")


class Planner:
    """Plans a model that takes 10 units over slots and context, and remembers what it was asked."""

    def __init__(self, **room: float) -> None:
        self.room, self.asked = {f"{name}:1": size for name, size in room.items()}, list[tuple[Any, ...]]()

    def __call__(
        self, endpoints: Sequence[str], shares: Sequence[float], options: Mapping[str, str], kinds: Sequence[str]
    ) -> dict[str, Any]:
        self.asked.append((tuple(endpoints), tuple(shares), dict(options), tuple(kinds)))
        need = 6 + int(options.get("--parallel", 4)) * int(options.get("--ctx-size", 4096)) / 4096 * 0.25 * 4
        have = sum(self.room[it] for it in endpoints)
        tight = any(self.room[it] < 10 * share / sum(shares) for it, share in zip(endpoints, shares))
        change = {"kind": "parallel", "parallel": 2, "ctx_size": 2048}
        return {
            "fits": need <= have and not tight,
            "message": f"It does not fit, {endpoints[0]} lacks {need - have:g} GiB.",
            "tensor_split": [float(self.room[it]) for it in endpoints],
            "suggestions": [change] if kinds else [],
        }


def wanted(module: ModuleType, *, spares: Sequence[str] = (), degrade: Sequence[str] = ("workers",)) -> Any:
    return module.Wanted(WORKERS, tuple(spares), tuple(degrade), (1.0, 1.0, 1.0))


def test_all_workers_need_no_plan(division: ModuleType) -> None:
    plan = Planner()
    assert division.choose(wanted(division), {*WORKERS, "s:1"}, plan) == (division.Division(WORKERS), "")
    assert plan.asked == []


def test_a_spare_takes_the_place_and_the_others_keep_their_shares(division: ModuleType) -> None:
    found, _why = division.choose(wanted(division, spares=["s:1"]), {"a:1", "c:1", "s:1"}, Planner(a=4, c=4, s=4))
    assert (found.workers, found.options) == (("a:1", "s:1", "c:1"), {})
    assert found.described(wanted(division, spares=["s:1"])) == "over 3 workers, with s:1 in place of b:1"


def test_a_spare_that_is_too_small_is_not_in_the_way_of_another(division: ModuleType) -> None:
    asked = wanted(division, spares=["s:1", "t:1"])
    found, _why = division.choose(asked, {"a:1", "c:1", "s:1", "t:1"}, Planner(a=4, c=4, s=0.1, t=4))
    assert found.workers == ("a:1", "t:1", "c:1")


def test_a_smaller_spare_gets_a_smaller_share(division: ModuleType) -> None:
    found, _why = division.choose(wanted(division, spares=["s:1"]), {"a:1", "c:1", "s:1"}, Planner(a=5, c=4, s=1))
    assert (found.workers, found.options) == (("a:1", "s:1", "c:1"), {"--tensor-split": "5,1,4"})


@pytest.mark.parametrize(
    ("degrade", "room", "workers", "options", "why"),
    [
        (["workers"], {"a": 6, "c": 5}, ("a:1", "c:1"), {"--tensor-split": "6,5"}, ""),
        (["workers"], {"a": 4, "c": 5}, None, {}, "It does not fit, a:1 lacks 1 GiB."),
        (
            ["workers", "slots"],
            {"a": 4, "c": 4},
            ("a:1", "c:1"),
            {"--ctx-size": "2048", "--parallel": "2", "--tensor-split": "4,4"},
            "",
        ),
        (["workers", "slots"], {"a": 1, "c": 1}, None, {}, "It does not fit, a:1 lacks 8 GiB."),
        ([], {"a": 9, "c": 9}, None, {}, "llama_server_degrade does not allow fewer workers, and no spare"),
    ],
    ids=["fewer", "too-large", "fewer-slots", "too-large-with-fewer-slots", "off"],
)
def test_the_model_goes_over_those_that_answer(
    division: ModuleType,
    degrade: list[str],
    room: dict[str, float],
    workers: tuple[str, ...] | None,
    options: dict[str, str],
    why: str,
) -> None:
    found, said = division.choose(wanted(division, degrade=degrade), {"a:1", "c:1"}, Planner(**room))
    assert (found.workers if found else None, found.options if found else {}) == (workers, options)
    assert said.startswith(why)


def test_what_the_list_does_not_name_is_not_tried(division: ModuleType) -> None:
    plan = Planner(a=4, c=4)
    division.choose(wanted(division), {"a:1", "c:1"}, plan)
    division.choose(wanted(division, degrade=["workers", "context", "slots"]), {"a:1", "c:1"}, plan)
    assert [kinds for _endpoints, _shares, _options, kinds in plan.asked[:2]] == [(), ("context", "parallel")]


def test_nobody_answers(division: ModuleType) -> None:
    assert division.choose(wanted(division), set(), Planner()) == (None, "")


def test_a_worker_that_is_lost_three_times_in_an_hour_stays_out(division: ModuleType, tmp_path: Path) -> None:
    memory = division.Memory(tmp_path / "division.json")
    assert memory.lose(["a:1"], 0.0) == memory.lose(["a:1", "b:1"], 1800.0) == memory.lose(["a:1"], 3601.0) == []
    assert memory.lose(["a:1"], 3602.0) == ["a:1"]
    assert memory.lose(["a:1"], 3603.0) == [], "it is said once"
    memory.divide(wanted(division, spares=["s:1"]), ["b:1"], {"a:1", "s:1"})
    memory.write()
    again = division.Memory(tmp_path / "division.json")
    again.read()
    assert (again.excluded, again.lost, again.losses["b:1"]) == (["a:1"], ["c:1"], [1800.0])
    assert json.loads(memory.path.read_text())["spare"] == ["s:1"]
    memory.forget()
    memory.forget()
    assert not memory.path.exists()


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"losses": 1}', '{"losses": {"a:1": ["x"]}}'])
def test_a_damaged_file_is_no_memory(division: ModuleType, tmp_path: Path, content: str | None) -> None:
    memory = division.Memory(tmp_path / "division.json")
    if content is not None:
        memory.path.write_text(content)
    memory.read()
    assert (memory.losses, memory.excluded, memory.lost) == ({}, [], [])


def settings(service: ModuleType, tmp_path: Path, **more: Any) -> Any:
    return service.Settings(
        **{
            "program": "p",
            "arguments": ["--tensor-split", "1,1,1", "-c", "9"],
            "workers": list(WORKERS),
            "model": "m",
            "alias": "m",
            "address": "127.0.0.1",
            "port": 1,
            "keys_file": "k",
            "metrics_file": None,
            "plan_file": str(tmp_path / "1.plan"),
            "degrade": ["workers"],
            **more,
        }
    )


def statuses(service: ModuleType, *ready: str, every: Sequence[str] = WORKERS) -> dict[str, Any]:
    """Return the status of each worker; those that are ready report 8 GiB."""
    device = {"index": 0, "memory_free_bytes": 8 * GIB, "memory_total_bytes": 8 * GIB}
    return {
        it: service.WorkerStatus(it, it[0], 1, state="ready" if it in ready else "refused", devices=[device])
        for it in every
    }


def test_the_memory_of_a_plan_is_that_of_the_last_one_and_no_more_than_what_is_there(
    service: ModuleType, tmp_path: Path
) -> None:
    known = [{"endpoint": it, "memory_available_bytes": size * GIB} for it, size in (("a:1", 4), ("b:1", 16))]
    written = {"arguments": {"workers": known, "options": []}, "spares": [{**known[0], "endpoint": "s:1"}]}
    (tmp_path / "1.plan").write_text(json.dumps(written))
    seen = statuses(service, "a:1", "b:1", "s:1", every=("a:1", "b:1", "s:1"))
    given = service.planned_over(settings(service, tmp_path), seen)
    assert [it["memory_available_bytes"] // GIB for it in given["workers"]] == [4, 8, 4]
    result = service.written_plan(settings(service, tmp_path), statuses(service, "c:1"))(["c:1"], (), {}, ())
    assert not result["fits"]
    assert "it does not say how much memory c:1 may use" in result["message"]
    (tmp_path / "1.plan").unlink()
    result = service.written_plan(settings(service, tmp_path), seen)(["a:1"], (), {}, ())
    assert result["message"].endswith(": run the playbook serve.")


@pytest.mark.parametrize(
    ("known", "waited_s", "ready", "divides"),
    [
        ([], 0, ["a:1", "b:1"], False),
        ([], 21, ["a:1", "b:1"], True),
        (["c:1"], 0, ["a:1", "b:1"], True),
        (["c:1"], 0, ["a:1"], False),
        ([], 0, list(WORKERS), True),
    ],
    ids=["its-time", "time-is-up", "known-to-be-lost", "another-is-lost", "all"],
)
def test_a_lost_worker_has_its_time_once(
    service: ModuleType,
    division: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    known: list[str],
    waited_s: float,
    ready: list[str],
    divides: bool,
) -> None:
    loss_wait = service.LossWait(settings(service, tmp_path), division.Memory(lost=known))
    monkeypatch.setattr(service, "written_plan", lambda *_given: Planner(a=20, b=20))
    loss_wait.began -= waited_s
    found = loss_wait.division(statuses(service, *ready))
    assert (found.workers == tuple(ready)) if divides else found is None


def test_the_time_of_a_lost_worker_begins_with_its_loss(
    service: ModuleType, division: ModuleType, tmp_path: Path
) -> None:
    memory = division.Memory(losses={"b:1": [service.now_s() - 15], "c:1": [service.now_s() - 500]})
    loss_wait = service.LossWait(settings(service, tmp_path), memory)
    assert round(loss_wait.left_s(["b:1"])) == 5
    assert round(loss_wait.left_s(["c:1"])) == 20, "it was back since then"
    assert round(loss_wait.left_s(["b:1", "c:1"])) == 20


def test_one_that_stays_out_serves_again_if_the_others_cannot(
    service: ModuleType, division: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for room, workers in ((20, ("a:1", "b:1")), (2, WORKERS)):
        loss_wait = service.LossWait(settings(service, tmp_path), division.Memory(excluded=["c:1"]))
        monkeypatch.setattr(service, "written_plan", lambda *_given, room=room: Planner(a=room, b=room))
        assert loss_wait.division(statuses(service, *WORKERS)).workers == workers


def test_a_worker_with_which_no_load_succeeds_stays_out_if_the_others_have_served(
    division: ModuleType, tmp_path: Path
) -> None:
    memory = division.Memory(tmp_path / "m.json")
    assert [memory.fail(WORKERS) for _load in range(3)] == [[], [], []], "nobody has served without it"
    memory.served, memory.failed_loads = ["a:1", "b:1"], 0
    assert memory.fail(WORKERS) == []
    memory.write()
    again = division.Memory(memory.path)
    again.read()
    assert again.fail(WORKERS) == again.excluded == ["c:1"]


def test_workers_return_after_their_time_unless_they_stay_out(
    service: ModuleType, division: ModuleType, tmp_path: Path
) -> None:
    long_ago = time.monotonic() - 301
    given = settings(service, tmp_path, spares=["s:1"])
    memory = division.Memory()
    standby = service.Standby(given, division.Division(("a:1", "b:1")), memory)
    assert standby.endpoints == ["c:1", "s:1"]
    standby.since = {"c:1": time.monotonic(), "s:1": long_ago}
    assert standby.returning() == ["s:1"]
    standby.considered = {"s:1"}
    assert standby.returning() == [], "it was there when the division was chosen"
    standby.considered = set()
    standby.division = division.Division(("a:1", "b:1", "t:1"))
    assert standby.returning() == [], "another spare has the place"
    standby.division = division.Division(("a:1", "b:1"))
    standby.since = {"c:1": long_ago}
    assert standby.returning() == ["c:1"]
    memory.excluded = ["c:1"]
    assert standby.returning() == []
    memory.excluded = []
    standby.settings = settings(service, tmp_path, rejoin="never")
    assert standby.returning() == []
    remembered = standby.remembered()
    assert (remembered.serving, remembered.spare, remembered.degraded) == (["a:1", "b:1"], ["c:1"], True)


@pytest.mark.parametrize(
    ("rejoin", "clock", "idle", "returns_after_s"),
    [
        ("quiet", "12:00", True, 9),
        ("quiet", "12:00", False, None),
        ("03:30", "03:30", True, 9),
        ("03:30", "03:30", False, 13),
        ("03:30", "04:29", True, 9),
        ("03:30", "04:30", True, None),
        ("23:30", "00:10", True, 9),
        ("never", "12:00", True, None),
    ],
)
def test_a_worker_is_taken_back_at_a_quiet_moment_or_at_its_time(
    service: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rejoin: str,
    clock: str,
    idle: bool,
    returns_after_s: int | None,
) -> None:
    """Each wait for the program is a second of this clock."""
    now = [1000.0]

    class Program:
        def poll(self) -> int | None:
            return 0 if now[0] > 1030 else None

        def wait(self, seconds: float) -> None:
            now[0] += seconds
            raise subprocess.TimeoutExpired("llama-server", seconds)

    class Standby:
        endpoints = ("c:1",)
        remembered = staticmethod(lambda: None)
        keep_looking = staticmethod(lambda *_given: None)
        returning = staticmethod(lambda: ["c:1"])

    said: list[str] = []
    monkeypatch.setattr(service.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(service.time, "strftime", lambda _form: clock)
    monkeypatch.setattr(service, "say", said.append)
    server = object.__new__(service.Server)
    server.settings = settings(service, tmp_path, rejoin=rejoin, drain_timeout_s=12)
    server.process, server.prompts, server.idle_since = Program(), None, 0.0
    server.saving = threading.Lock()
    server.figures = SimpleNamespace(show=lambda _memory: None, keep=lambda: None)
    monkeypatch.setattr(server, "keep_asking", lambda: None)
    monkeypatch.setattr(server, "lost", lambda **_given: "")
    monkeypatch.setattr(server, "is_idle", lambda: idle)
    readiness = SimpleNamespace(leaving=False)
    server.watch(Standby, readiness)
    assert bool(said) == readiness.leaving == (returns_after_s is not None)
    if returns_after_s is not None:
        assert said == ["c:1 is back, so llama-server is ended, and the model is divided again."]
        assert now[0] - 1000 == pytest.approx(returns_after_s, abs=1)


def test_options_are_replaced_where_they_are(service: ModuleType) -> None:
    given = ["-m", "x", "--tensor-split", "1,1", "--no-ui"]
    assert service.with_options(given, {"--tensor-split": "3", "--parallel": "2"}) == [
        *["-m", "x", "--tensor-split", "3", "--no-ui", "--parallel", "2"]
    ]
