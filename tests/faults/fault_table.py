# SPDX-License-Identifier: GPL-3.0-or-later
"""The outcome of each fault, as a table at the end and as JSON in the cache. A conftest.py imports this module."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pytest

from support.harness import CACHE

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = CACHE / "faults.json"


@dataclass
class Seen:
    fault: str
    where: str
    sentence: str
    # None if nothing reports the fault.
    detected_after_s: float | None
    ready_again_after_s: float


_SEEN: list[Seen] = []


@pytest.fixture
def saw() -> Callable[..., None]:
    """Return a function that records the outcome of a fault."""

    def keep(fault: str, where: str, sentence: str, detected: float | None, ready: float) -> None:
        _SEEN.append(Seen(fault, where, sentence, None if detected is None else round(detected, 1), round(ready, 1)))

    return keep


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _SEEN:
        return
    # Keep the outcomes of other runs of pytest. The faults on hosts have a run of their own.
    before = json.loads(FILE.read_text()) if FILE.exists() else []
    names = {(seen.fault, seen.where) for seen in _SEEN}
    FILE.parent.mkdir(parents=True, exist_ok=True)
    rows = [row for row in before if (row["fault"], row["where"]) not in names] + [asdict(seen) for seen in _SEEN]
    FILE.write_text(json.dumps(rows, indent=2) + "\n")
    terminalreporter.section("faults")
    terminalreporter.write_line("detected  ready again  fault")
    for seen in _SEEN:
        detected = "never" if seen.detected_after_s is None else f"{seen.detected_after_s:.1f} s"
        terminalreporter.write_line(f"{detected:>8}  {seen.ready_again_after_s:9.1f} s  {seen.fault} ({seen.where})")
        terminalreporter.write_line(f"{'':23}{seen.sentence}")
    terminalreporter.write_line(f"All of it: {FILE}")
