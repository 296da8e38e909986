# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the options of llama-server that a user may not add, with the reasons."""

from __future__ import annotations

from typing import Any, Callable, Sequence

DOCUMENTATION = r"""
name: refused_options
short_description: Find options that the API of a master refuses
version_added: 0.4.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Returns one sentence for each option of C(llama-server) that the role P(llama_cpp.cluster.llama_server#role) does
    not pass on. The role sets it itself, the option breaks what the pages say of the API, or the llama.cpp version that
    this collection pins does not have it.
  - A word counts as an option if it begins with C(-) and is no number, wherever it stands.
options:
  _input:
    description: The options and their values, as in C(llama_server_extra_args).
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Check the options
  ansible.builtin.assert:
    that: refused | length == 0
    fail_msg: "{{ refused | join(' ') }}"
  vars:
    refused: "{{ ['--top-k', '20'] | llama_cpp.cluster.refused_options }}"
"""

RETURN = r"""
_value:
  description: One sentence for each option that is refused; empty if there is none.
  type: list
  elements: str
"""

from ansible_collections.llama_cpp.cluster.plugins.module_utils._serve.options import VARIABLE, refusals


def refused_options(extra_args: Any) -> list[str]:  # noqa: ANN401 - whatever a user has written
    """Return one sentence for each option that is refused."""
    if isinstance(extra_args, str) or not isinstance(extra_args, Sequence):
        return [f'{VARIABLE} is {extra_args}, which is no list: give words, such as [--top-k, "20"].']
    return refusals(extra_args)


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"refused_options": refused_options}
