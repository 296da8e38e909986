# SPDX-License-Identifier: GPL-3.0-or-later
"""Each playbook has a page in docs/reference/playbooks, with its variables and their defaults."""

from __future__ import annotations

import re
from functools import cache

import pytest
import yaml

from support.tree import PLAYBOOKS, ROLES, ROOT, load_yaml

FOLDER = ROOT / "docs/reference/playbooks"
OPTIONS = {
    name: option
    for role in ROLES
    for entry in load_yaml(ROOT / "roles" / role / "meta/argument_specs.yml")["argument_specs"].values()
    for name, option in entry.get("options", {}).items()
}


@cache
def code() -> str:
    """Return all playbooks and their task files."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "playbooks").rglob("*.yml")))


def rows(playbook: str) -> list[list[str]]:
    """Return the rows of the tables of variables: their cells, the first one with names."""
    text = (FOLDER / f"{playbook}.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| variable \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [line.strip("| ").split(" | ") for table in tables for line in table.splitlines()]


def variables(playbook: str) -> set[str]:
    return {name for cells in rows(playbook) for name in re.findall(r"`([a-z_]+)`", cells[0])}


def test_each_playbook_has_a_page_and_each_page_a_playbook() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == {*PLAYBOOKS, "index"}
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[(\w+)\]\(\w+\.md\)", index, re.MULTILINE)) == PLAYBOOKS


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_a_page_has_the_variables_of_its_playbook_and_no_others(playbook: str) -> None:
    named = re.findall(rf"(?<![\w.])({playbook}_[a-z_]+) \| default\(", code())
    named += re.findall(rf"^ +- ({playbook}_[a-z_]+)$", code(), re.MULTILINE)  # a list of options
    assert set(named) - OPTIONS.keys() <= variables(playbook)
    assert {name for name in variables(playbook) - OPTIONS.keys() if not re.search(rf"\b{name}\b", code())} == set()


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_a_page_has_the_defaults_of_the_code(playbook: str) -> None:
    for cells in rows(playbook):
        names = re.findall(r"`([a-z_]+)`", cells[0])
        if len(names) != 1 or len(cells) < 3 or not re.fullmatch(r"`\S+`|\d+", cells[2]):
            continue  # in words
        [name] = names
        page = yaml.safe_load(cells[2].strip("`"))
        in_code = {yaml.safe_load(found) for found in re.findall(rf"\b{name} \| default\(('?[\w.]+'?)[),]", code())}
        if name in OPTIONS and "default" in OPTIONS[name]:
            in_code = {OPTIONS[name]["default"]}
        assert not in_code or page in in_code, name
