# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/development.md has a map of the tree, which has every room (folder) with exactly its files and folders."""

from __future__ import annotations

import re
import subprocess
from pathlib import PurePosixPath

import pytest

from support.tree import ROOT

PAGE = (ROOT / "docs/development.md").read_text(encoding="utf-8")
ROOMS = {
    room: set(re.findall(r"`([\w.-]+)`", text)) for room, text in re.findall(r"^\| `([\w/]+)/` \| (.*) \|$", PAGE, re.M)
}
# In these rooms, names of files have their endings, because several endings are in use.
WITH_ENDING = {"scripts", "requirements"}
# Rooms inside a room have their own rows.
WITH_ROWS = {
    "playbooks": {"callback_plugins", "files", "tasks"},
    "plugins": {"modules", "action", "filter", "lookup", "module_utils"},
}
# Of these rooms, the map has only the folders.
FOLDERS_ONLY = {"docs", "playbooks/tasks", "tests", "inventories", "extensions/molecule", "plugins", "roles"}


def tracked() -> list[PurePosixPath]:
    done = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return [PurePosixPath(line) for line in done.stdout.splitlines() if (ROOT / line).exists()]


def inside(room: str) -> set[str]:
    """Return the names of the files and folders directly in a room."""
    depth = len(PurePosixPath(room).parts)
    found = set()
    for path in tracked():
        if path.parts[:depth] == PurePosixPath(room).parts:
            is_folder = len(path.parts) > depth + 1
            name = path.parts[depth]
            if is_folder:
                found.add(name)
            elif room not in FOLDERS_ONLY and name != "__init__.py":
                found.add(name if room in WITH_ENDING else PurePosixPath(name).stem)
    return found


@pytest.mark.parametrize("room", ["playbooks", "plugins/modules", "plugins/filter", "roles", "tests", "scripts"])
def test_the_map_has_the_room(room: str) -> None:
    assert room in ROOMS


@pytest.mark.parametrize("room", sorted(set(ROOMS) - {"plugins/module_utils"}))
def test_all_that_is_in_a_room_is_on_the_map_and_nothing_else(room: str) -> None:
    assert ROOMS[room] == inside(room) - WITH_ROWS.get(room, set())
