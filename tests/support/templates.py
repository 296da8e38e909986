# SPDX-License-Identifier: GPL-3.0-or-later
"""Templates of roles and playbooks, as Ansible evaluates them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

if TYPE_CHECKING:
    from pathlib import Path


def loaded(path: Path) -> Any:
    """Return the content of a YAML file, whose texts are templates."""
    return DataLoader().load_from_file(str(path), trusted_as_template=True)


def worked_out(template: Any, variables: dict[str, Any]) -> Any:
    """Return the value of a template from a loaded file, with these variables."""
    return Templar(DataLoader(), variables).template(template)


def holds(condition: Any, variables: dict[str, Any]) -> bool:
    """Return whether a condition from a loaded file holds, with these variables."""
    return bool(Templar(DataLoader(), variables).evaluate_conditional(condition))


def value_of(expression: Any, variables: dict[str, Any]) -> Any:
    """Return the value of an expression without braces from a loaded file, with these variables."""
    return Templar(DataLoader(), variables).evaluate_expression(expression)
