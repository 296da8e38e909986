# SPDX-License-Identifier: GPL-3.0-or-later
"""Roles use each other in one direction only, and by documented variables and facts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from graphlib import CycleError, TopologicalSorter

from support.tree import COLLECTION, ROOT, dictionaries, load_yaml

USES = ("ansible.builtin.include_role", "ansible.builtin.import_role")


def used(role: Path) -> set[str]:
    """Return the names of the collection's roles that the tasks, handlers and dependencies of a role name."""
    found = set()
    for path in sorted(role.rglob("*.yml")):
        for entry in dictionaries(load_yaml(path)):
            found |= {entry[key]["name"] for key in USES if key in entry}
            found |= {name for name in entry.get("dependencies", []) if path.parent.name == "meta"}
    return {name.rpartition(".")[2] for name in found if name.startswith(f"{COLLECTION}.")} - {role.name}


def problems(roles: Path) -> list[str]:
    """Return a sentence for a circle of roles, and for each private variable that a role reads of another one."""
    said = []
    folders = {path.name: path for path in sorted(roles.iterdir()) if path.is_dir()}
    try:
        TopologicalSorter({name: used(path) for name, path in folders.items()}).prepare()
    except CycleError as error:
        said.append(f"Roles use each other in a circle: {', '.join(sorted(set(error.args[1])))}.")
    for name, folder in folders.items():
        private = re.compile(rf"\b__(?!{name}_)(?:{'|'.join(folders)})_\w+")
        texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.suffix in (".yml", ".j2")]
        read = sorted({variable for text in texts for variable in private.findall(text)})
        said += [f"{name} reads {variable}, which is private to another role." for variable in read]
    return said


def test_roles_use_each_other_in_one_direction_and_read_nothing_private() -> None:
    assert problems(ROOT / "roles") == []


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a/tasks/main.yml": "- ansible.builtin.include_role: {name: X.b}", "b/tasks/main.yml": "[]"}, []),
        (
            {
                "a/tasks/main.yml": "- block:\n    - ansible.builtin.import_role: {name: X.b, tasks_from: c}",
                "b/meta/main.yml": "dependencies: [X.a]",
            },
            ["Roles use each other in a circle: a, b."],
        ),
        (
            {"a/templates/t.j2": "{{ __b_port }} {{ __a_port }} {{ b_port }}", "b/tasks/main.yml": "[]"},
            ["a reads __b_port, which is private to another role."],
        ),
    ],
    ids=["down", "circle", "private"],
)
def test_what_is_not_allowed_is_found(tmp_path: Path, files: dict[str, str], said: list[str]) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text.replace("X.", f"{COLLECTION}."))
    assert problems(tmp_path) == said
