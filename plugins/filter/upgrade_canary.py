# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: whether a prompt is continued as well as before an upgrade."""

from __future__ import annotations

DOCUMENTATION = r"""
name: upgrade_canary
short_description: Whether a prompt is continued as well as before an upgrade
version_added: 0.1.0
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Compares text and tokens per second of the same prompt, with the new release and with the old one.
  - The playbook P(llama_cpp.cluster.upgrade#playbook) is made of it.
positional: _input, before
options:
  _input:
    description:
      - The runs with the new release, the last one last. The quickest counts.
      - Each has C(text), C(tokens_per_second) (or V(null)) and C(failure), a sentence (or empty).
    type: list
    elements: dict
    required: true
  before:
    description: The run with the old release, likewise; V(null) if there was none.
    type: dict
    required: true
  tolerance_percent:
    description: How many percent slower it may be.
    type: float
    default: 25
  text:
    description: V(same) demands the same text, V(any) takes another one, too.
    type: str
    choices: [same, any]
    default: same
"""

EXAMPLES = r"""
- name: All is as it was
  ansible.builtin.assert:
    that: verdict.problem | length == 0
    fail_msg: "{{ verdict.problem }}"
  vars:
    verdict: >-
      {{ [{'text': ' Who is there?', 'tokens_per_second': 11.5, 'failure': ''}]
         | llama_cpp.cluster.upgrade_canary({'text': ' Who is there?', 'tokens_per_second': 12.1, 'failure': ''}) }}
"""

RETURN = r"""
_value:
  description: What the comparison says.
  type: dict
  contains:
    problem:
      description: One sentence that says what is worse; empty if nothing is.
      type: str
    again:
      description: Whether that may be chance, so that one more run is worth it.
      type: bool
    summary:
      description: One sentence that says how it was, if there is no problem.
      type: str
"""

from typing import Any, Callable, Mapping, Sequence

from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release import upgrade


def upgrade_canary(
    after: Sequence[Mapping[str, Any]],
    before: Mapping[str, Any] | None,
    tolerance_percent: float = 25,
    text: str = "same",
) -> dict[str, Any]:
    """Return what the comparison says."""
    if isinstance(after, str) or not isinstance(after, Sequence) or not after:
        raise AnsibleFilterError("upgrade_canary needs a list of at least one run")
    return upgrade.canary(before, after, float(tolerance_percent), text)


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> Mapping[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"upgrade_canary": upgrade_canary}
