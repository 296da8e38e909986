# SPDX-License-Identifier: GPL-3.0-or-later
"""Templates of roles and playbooks, as Ansible works them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

if TYPE_CHECKING:
    from pathlib import Path


def loaded(path: Path) -> Any:
    """Return what a YAML file holds, whose texts are templates."""
    return DataLoader().load_from_file(str(path), trusted_as_template=True)


def worked_out(template: Any, variables: dict[str, Any]) -> Any:
    """Return what a template of a file that was loaded makes of variables."""
    return Templar(DataLoader(), variables).template(template)


def holds(condition: Any, variables: dict[str, Any]) -> bool:
    """Return whether a condition of a file that was loaded holds."""
    return bool(Templar(DataLoader(), variables).evaluate_conditional(condition))
