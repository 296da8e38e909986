# SPDX-License-Identifier: GPL-3.0-or-later
"""The code blocks of the documentation, what their markers say, and the plays and tasks in them.

A marker is an HTML comment in the line above a block: `<!-- test: run -->`. docs/maintaining.md says what markers mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.tree import ROOT

# Every block of these pages has a marker.
MARKED = [ROOT / "README.md", *sorted((ROOT / "docs/start").glob("*.md"))]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("roles/*/README.md"))]
TASK_LISTS = ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks", "handlers")
# A command in a sentence or a table. A page marks one that tests cannot run.
COMMAND = re.compile(
    r"`((?:ansible|ansible-playbook|ansible-galaxy|ansible-doc|git|systemctl|journalctl|df|dnf) [^`]+)`"
    r"(?! \(not run by a test)"
)
FENCE = re.compile(r"^(?:<!-- test: ([^\n]+) -->\n)?```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    marker: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """Return the blocks of all pages in these languages."""
    return [block for page in PAGES for block in blocks_of(page) if block.language in languages]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, match.start(2)) + 1, match[2], match[3], match[1] or "")
        for match in FENCE.finditer(text)
    ]


def commands(page: Path) -> list[str]:
    """Return the commands in the text of a page, each once, apart from those that it says no test runs."""
    return list(dict.fromkeys(COMMAND.findall(page.read_text(encoding="utf-8"))))


def as_plays(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a playbook: the plays as they are, or the tasks in a play of their own."""
    if all("hosts" in entry or any(key.endswith("import_playbook") for key in entry) for entry in entries):
        return entries
    return [{"hosts": "localhost", "gather_facts": False, "tasks": entries}]


def tasks(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        nested = [key for key in TASK_LISTS if key in entry]
        for key in nested:
            yield from tasks(entry[key])
        if not nested and "hosts" not in entry:
            yield entry
