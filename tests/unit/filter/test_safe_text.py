# SPDX-License-Identifier: GPL-3.0-or-later
"""A text that a message quotes, without what controls a terminal."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.filter.safe_text import FilterModule

from support.tree import ROOT

safe_text = FilterModule().filters()["safe_text"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("two lines\n\tand ä", "two lines\n\tand ä"),
        ("\x1b]0;x\x07a\u202eb\x9b31m", "\ufffd]0;x\ufffda\ufffdb\ufffd31m"),
        (None, "None"),
        (3, "3"),
    ],
)
def test_what_controls_a_terminal_is_replaced(given: Any, text: str) -> None:
    assert safe_text(given) == text


def test_every_task_that_reads_a_journal_or_a_log_quotes_it_without_that() -> None:
    quoting = [
        path
        for folder in (ROOT / "roles", ROOT / "playbooks")
        for path in folder.rglob("*.yml")
        if "argv: [journalctl," in path.read_text(encoding="utf-8") or "k8s_log:" in path.read_text(encoding="utf-8")
    ]
    assert len(quoting) == 3
    assert all("llama_cpp.cluster.safe_text" in path.read_text(encoding="utf-8") for path in quoting)
