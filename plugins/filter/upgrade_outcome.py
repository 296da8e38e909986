# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the outcome of an upgrade, in a sentence for each host."""

from __future__ import annotations

DOCUMENTATION = r"""
name: upgrade_outcome
short_description: Report the outcome of an upgrade for each host
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Returns which llama.cpp each host has after an upgrade or a failed upgrade, and what is left to do.
  - The playbook P(llama_cpp.cluster.upgrade#playbook) uses it.
positional: _input, planned
options:
  _input:
    description:
      - A dictionary for each host.
      - The keys are the results of M(llama_cpp.cluster.release_journal_info) at the start (C(before)) and at the end
        (C(after)), the note on the host (C(note)), whether it stopped answering (C(lost)), why it failed (C(failure)),
        and why it could not be repaired (C(rollback_failure)).
    type: dict
    required: true
  planned:
    description: The result of P(llama_cpp.cluster.upgrade_plan#filter).
    type: dict
    required: true
  end:
    description: Which release hosts should have now, V(old) or V(new). V(unknown) leaves the decision to the next run.
    type: str
    choices: [old, new, unknown]
    default: old
  rollback:
    description: Whether the run was a rollback.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Show the outcome
  ansible.builtin.debug:
    msg: "{{ (found | llama_cpp.cluster.upgrade_outcome({'from': '0.3.35', 'to': '0.3.36'})).sentences }}"
  vars:
    found:
      worker1: {before: null, after: null, note: null, lost: true, failure: "", rollback_failure: ""}
"""

RETURN = r"""
_value:
  description: >-
    C(problem) says why the upgrade was not completed (empty if it was), and C(sentences) has one for each host.
  type: dict
"""

from typing import Any, Callable

from ansible_collections.llama_cpp.cluster.plugins.module_utils._release import upgrade


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"upgrade_outcome": upgrade.outcome}
