# SPDX-License-Identifier: GPL-3.0-or-later
"""The form of the lines that show progress, and how often they come."""

from __future__ import annotations

import pytest
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils import _lines
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._lines import Teller, amount, due, show

OF_A_HOST = "\x1b]52;c;bXkga2V5\x07[7/9] \x1b[8mx.cpp"
MIB, GIB = 1 << 20, 1 << 30
AMOUNTS = {
    0: "0 KiB",
    512: "0.5 KiB",
    300 << 10: "300 KiB",
    int(1.4 * MIB): "1.4 MiB",
    341_612_192: "326 MiB",
    1023 * MIB + 700_000: "1.0 GiB",
    int(37.2 * GIB): "37.2 GiB",
    2000 * GIB: "2000.0 GiB",
}
# What is told at which second, and the last line.
TOLD: dict[str, tuple[list[tuple[float, int]], int, str, str]] = {
    "no rate yet": ([(1, 5 * MIB)], 10 * MIB, "", "sending, 50 % of 10 MiB"),
    "soon a rate": ([(0, 0), (5, 1 * GIB)], 4 * GIB, "", "sending, 25 % of 4.0 GiB, 205 MiB/s, about 0:15 more"),
    "hours": ([(0, 0), (10, 10 * MIB)], 10 * GIB, "", "sending, 0 % of 10.0 GiB, 1.0 MiB/s, about 2:50:30 more"),
    "of unknown size": ([(0, 0), (10, 10 * MIB)], 0, "", "sending, 10 MiB, 1.0 MiB/s"),
    "it stands still": ([(0, 9 * MIB), (10, 9 * MIB)], 10 * MIB, "", "sending, 90 % of 10 MiB, 0 KiB/s"),
    "all of it": ([(0, 0), (10, 10 * MIB)], 10 * MIB, "", "sending, 100 % of 10 MiB, 1.0 MiB/s"),
    "it has begun again": ([(0, 0), (10, 10 * MIB), (20, 2 * MIB)], 20 * MIB, "", "sending, 10 % of 20 MiB"),
    # What was there before says nothing about the rate.
    "an earlier part": ([(0, 50), (10, 60)], 100, "runs", "sending, 60 of 100 runs, about 0:40 more"),
    "the last minute": ([(0, 0), (60, 60), (120, 60), (180, 60)], 100, "runs", "sending, 60 of 100 runs"),
    "no number": ([(9, 0)], 0, "", "sending"),
}


@pytest.mark.parametrize(("size", "text"), AMOUNTS.items())
def test_bytes_have_a_unit_that_suits(size: int, text: str) -> None:
    assert amount(size) == text


@pytest.mark.parametrize(("told", "total", "of", "line"), TOLD.values(), ids=TOLD.keys())
def test_a_line_has_percent_rate_and_time_left(told: list[tuple[float, int]], total: int, of: str, line: str) -> None:
    teller = Teller("worker1", "Send")
    assert [teller.line(now, "sending", done, total, of) for now, done in told][-1] == line


def test_another_goal_has_a_rate_of_its_own() -> None:
    teller = Teller("worker1", "Run")
    teller.line(0, "loading", 0, GIB)
    teller.line(50, "loading", GIB, GIB)
    assert teller.line(60, "It waits.", 4, 64, "tokens") == "It waits. 4 of 64 tokens"
    assert teller.line(70, "generating", 14, 64, "tokens") == "generating, 14 of 64 tokens, about 0:50 more"


@pytest.mark.parametrize(("hours", "most"), [(1 / 60, 6), (1, 90), (6, 130)])
def test_long_tasks_show_fewer_lines_an_hour(hours: float, most: int) -> None:
    shown = [0.0]
    for now in range(int(hours * 3600)):
        if due(now, shown[-1]):
            shown.append(now)
    assert shown[1] == 9
    assert most / 2 < len(shown) - 1 <= most


def test_what_a_host_says_does_not_control_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(_lines, "wanted", lambda: True)
    monkeypatch.setattr(_lines._display, "display", shown.append)
    show("worker1", "Build the programs", 75, OF_A_HOST)
    assert shown == ["[worker1] Build the programs: 1:15 \ufffd]52;c;bXkga2V5\ufffd[7/9] \ufffd[8mx.cpp"]
