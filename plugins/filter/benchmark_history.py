# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter that reads the history of benchmarks."""

from __future__ import annotations

DOCUMENTATION = r"""
name: benchmark_history
short_description: The runs in a history of benchmarks
version_added: 0.1.0
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Reads what the playbook P(llama_cpp.cluster.benchmark#playbook) appends to for each run, a text with one JSON object
    in a line.
  - If there is a line that is no run, it gives no runs but a sentence that names the line and what is wrong with it, so
    that a history is either used as a whole or not at all.
positional: _input
options:
  _input:
    description: The text of the file.
    type: str
    required: true
  name:
    description: The file, for messages.
    type: str
    default: history.jsonl
"""

EXAMPLES = r"""
- name: How often the cluster was measured
  ansible.builtin.debug:
    msg: "{{ (text | llama_cpp.cluster.benchmark_history(name='history.jsonl')).runs | length }}"
  vars:
    text: "{{ lookup('ansible.builtin.file', 'history.jsonl', errors='ignore') | default('', true) }}"
"""

RETURN = r"""
_value:
  description: What is in the history.
  type: dict
  contains:
    runs:
      description: The runs, the oldest first; what a line has beyond what makes a run is left out.
      type: list
      elements: dict
    problem:
      description: One sentence that names the first line that is no run; empty if there is none.
      type: str
"""

from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.benchmark_history import (
    BenchmarkError,
    parse_history,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def benchmark_history(text: object, name: str = "history.jsonl") -> dict[str, Any]:
    """Return the runs of a history, or what is wrong with it."""
    if not isinstance(text, str):
        raise AnsibleFilterError("benchmark_history needs the text of a history, one JSON object in a line")
    try:
        return {"runs": parse_history(text, name), "problem": ""}
    except BenchmarkError as error:
        return {"runs": [], "problem": str(error)}


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"benchmark_history": benchmark_history}
