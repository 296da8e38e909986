# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: a text without characters that control a terminal."""

from __future__ import annotations

DOCUMENTATION = r"""
name: safe_text
short_description: Replace characters that control a terminal
version_added: 0.4.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Ansible prints the messages of failed tasks as they are. So this filter is for what a message quotes of a program's
    output, of a log or of a model's answer.
  - It also replaces marks that change the direction of text. Line breaks and tabs stay.
options:
  _input:
    description: The text; anything else is taken as text.
    type: raw
    required: true
"""

EXAMPLES = r"""
- name: Show the last line of a journal
  ansible.builtin.debug:
    msg: "The journal ends: {{ line | llama_cpp.cluster.safe_text }}"
  vars:
    line: "ended\e[2J"
"""

RETURN = r"""
_value:
  description: The text.
  type: str
"""

from typing import Any, Callable

from ansible_collections.llama_cpp.cluster.plugins.module_utils._status.report import safe_text


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"safe_text": safe_text}
