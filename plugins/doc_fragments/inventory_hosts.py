# SPDX-License-Identifier: GPL-3.0-or-later
"""What filters of hosts in the inventory have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """Found by its name: C(extends_documentation_fragment)."""

    DOCUMENTATION = r"""
options:
  _input:
    description: Names of inventory hosts.
    type: list
    elements: str
    required: true
  hostvars:
    description: The variables of the hosts by name, Ansible's C(hostvars).
    type: dict
    required: true
"""
