# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines about a long command: its progress, and the reason of a failure."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llama_cpp.cluster.plugins.action.watched_command import START, Progress, trouble
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._lines import clock

if TYPE_CHECKING:
    from pathlib import Path

STEPS = {
    "nothing yet": ("", "started"),
    "a step of Ninja": (
        "[9/410] Building C object a.c.o\n[120/410] Building CXX object src/CMakeFiles/llama.dir/llama-arch.cpp.o\n",
        "[120/410] about 2:25 more: llama-arch.cpp",
    ),
    "a warning after the step": (
        "[7/9] Building CXX object common/x.cpp.o\nx.cpp:3:1: warning: w\n    3 | int\n      | ^~~\n",
        "[7/9] about 0:17 more: x.cpp",
    ),
    "no step is done": ("[0/2] Re-checking globbed directories...\n", "[0/2] directories..."),
    "a linker step": ("[410/410] Linking CXX executable bin/llama-cli\n", "[410/410] llama-cli"),
    "another tool": ("-- Detecting CXX compile features\n\n", "-- Detecting CXX compile features"),
    "a very long line": ("x" * 200, "x" * 80),
}


@pytest.mark.parametrize(("output", "shown"), STEPS.values(), ids=STEPS.keys())
def test_the_last_step_is_shown_short(output: str, shown: str) -> None:
    assert Progress().line(output, 60) == shown


def test_warnings_longer_than_a_look_do_not_hide_the_step() -> None:
    progress = Progress()
    progress.line("[1/4] Building CXX object x.cpp.o\n", 10)
    assert progress.line("    3 | int\n      | ^~~\n", 30) == "[1/4] about 1:30 more: x.cpp"


TROUBLE = {
    "a build": (
        "[1/3] Building a\nFAILED: b.o\nb.cpp:3:5: error: no member\n    3 | x.y\n[2/3] Building c\nninja: stopped\n",
        ["FAILED: b.o", "b.cpp:3:5: error: no member"],
    ),
    "a configuration": (
        "-- found\nCMake Error at CMakeLists.txt:3 (message):\n  no OpenSSL\n\n\n-- Configuring incomplete\n",
        ["CMake Error at CMakeLists.txt:3 (message):", "  no OpenSSL", "-- Configuring incomplete"],
    ),
    "what controls a terminal": (
        "x.cpp:1: error: \x1b]0;owned\x07\x1b[2J no\n",
        ["x.cpp:1: error: \ufffd]0;owned\ufffd\ufffd[2J no"],
    ),
    "no such lines": ("\n".join(f"line {n}" for n in range(50)), [f"line {n}" for n in range(30, 50)]),
}


@pytest.mark.parametrize(("log", "lines"), TROUBLE.values(), ids=TROUBLE)
def test_of_a_failure_the_lines_that_say_why_are_shown(log: str, lines: list[str]) -> None:
    assert trouble(log) == lines


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0:00"), (9.7, "0:09"), (75, "1:15"), (3600, "1:00:00")])
def test_time_is_shown_in_minutes_and_seconds(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "looks", "takes", "code", "claimed"),
    [(2, True, True, "0", True), (2, False, False, "143", False), (0, True, False, "0", False)],
    ids=["somebody looks", "nobody looks", "nobody takes the result"],
)
def test_a_command_is_ended_and_its_claim_given_up_when_nobody_looks_after_it(
    tmp_path: Path, seconds: int, looks: bool, takes: bool, code: str, claimed: bool
) -> None:
    script = START.replace("while sleep 5", "while sleep 0.2").replace("-lt 12", "-lt 3").replace("-lt 60", "-lt 1")
    log, claim, result = tmp_path / "log", tmp_path / "claim", tmp_path / "rc"
    claim.write_text("me\n")
    shell = subprocess.Popen(["sh", "-c", script, "sh", log, result, "60", tmp_path, claim, "sleep", str(seconds)])
    said = ""
    try:
        while shell.poll() is None:
            if looks:
                (tmp_path / "log.watched").touch()
            if result.exists():
                said = result.read_text()
                if takes:
                    result.unlink()
            time.sleep(0.05)
    finally:
        shell.kill()
    assert said == f"{code}\n"
    assert claim.exists() == claimed, "what nobody looks after is nobody's"
