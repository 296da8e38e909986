# SPDX-License-Identifier: GPL-3.0-or-later
"""Every variable of a role is described and typed, has its documented default, and carries the role's name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.tree import ROLES, ROOT, load_yaml

# Keywords that hold tasks.
NESTED = ("block", "rescue", "always")
OTHER_ROLE = ("include_role", "import_role")


def specs(role: str) -> dict[str, Any]:
    return dict(load_yaml(ROOT / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"])


def settings(role: str) -> dict[str, Any]:
    """Return the options of main, or of a role without it, those of its other entry points."""
    entries = specs(role)
    if "main" in entries:
        return dict(entries["main"].get("options", {}))
    return {name: option for entry in entries.values() for name, option in (entry.get("options") or {}).items()}


def variables(role: str, kind: str) -> dict[str, Any]:
    """Return the variables of `defaults` or `vars`, all files."""
    found: dict[str, Any] = {}
    for path in sorted((ROOT / "roles" / role / kind).rglob("*.yml")):
        found.update(load_yaml(path) or {})
    return found


def tasks(role: str) -> Iterator[dict[str, Any]]:
    def walk(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for entry in entries:
            yield entry
            for key in NESTED:
                yield from walk(entry.get(key, []))

    for folder in ("tasks", "handlers"):
        for path in sorted((ROOT / "roles" / role / folder).rglob("*.yml")):
            yield from walk(load_yaml(path) or [])


def options(spec: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, option in (spec.get("options") or {}).items():
        yield prefix + name, option
        yield from options(option, f"{prefix}{name}.")


@pytest.mark.parametrize("role", ROLES)
def test_documented_defaults_are_the_defaults(role: str) -> None:
    declared = settings(role)
    required = {name for name, option in declared.items() if option.get("required")}
    assert variables(role, "defaults") == {
        name: option.get("default") for name, option in declared.items() if name not in required
    }


@pytest.mark.parametrize("role", ROLES)
def test_other_entry_points_take_variables_of_the_role_with_the_same_defaults(role: str) -> None:
    main = settings(role)
    for entry, spec in specs(role).items():
        for name, option in (spec.get("options") or {}).items():
            if name not in main and option.get("required"):
                continue  # an argument, not a setting
            assert (entry, name, option.get("default")) == (entry, name, main[name].get("default"))


@pytest.mark.parametrize("role", ROLES)
def test_each_option_is_described_and_typed(role: str) -> None:
    for entry, spec in specs(role).items():
        for field in ("short_description", "description"):
            assert spec.get(field), f"entry point {entry} has no {field}"
        for name, option in options(spec):
            assert option.get("description"), f"{entry}: {name} has no description"
            assert option.get("type"), f"{entry}: {name} has no type"
            if option["type"] == "list":
                assert option.get("elements"), f"{entry}: {name} does not say what it is a list of"


@pytest.mark.parametrize("role", ROLES)
def test_what_tasks_set_is_internal_or_a_fact_that_the_role_describes(role: str) -> None:
    described = str(specs(role))
    named = []
    for task in tasks(role):
        named.append(task.get("register"))
        named.extend(task.get("ansible.builtin.set_fact", {}))
        if not any(f"ansible.builtin.{name}" in task for name in OTHER_ROLE):
            named.extend(task.get("vars", {}))
    public = {name for name in named if name and not name.startswith(("__", "ansible_")) and name != "cacheable"}
    assert [name for name in sorted(public) if f"the fact C({name})" not in described] == []


@pytest.mark.parametrize("role", ROLES)
def test_conditions_stand_without_braces(role: str) -> None:
    # ansible-core 2.23 refuses braces in conditions.
    for task in tasks(role):
        conditions = [task.get(key) for key in ("when", "until", "failed_when", "changed_when")]
        conditions.append(task.get("ansible.builtin.assert", {}).get("that"))
        for condition in conditions:
            for text in condition if isinstance(condition, list) else [condition]:
                assert not str(text).lstrip().startswith("{{"), f"{task['name']}: {text}"
