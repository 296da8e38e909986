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
  - A line that is no run is an error that names the line and what is wrong with it; none is left out.
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
    msg: >-
      {{ lookup('ansible.builtin.file', 'benchmark/history.jsonl')
         | llama_cpp.cluster.benchmark_history(name='benchmark/history.jsonl') | length }}
"""

RETURN = r"""
_value:
  description: The runs, as they are in the file; what O(_input) has that is of no use here is left out.
  type: list
  elements: dict
"""

from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._benchmark_data import BenchmarkError, parse_history

if TYPE_CHECKING:
    from collections.abc import Callable


def benchmark_history(text: object, name: str = "history.jsonl") -> list[Any]:
    """Return the runs of a history."""
    if not isinstance(text, str):
        raise AnsibleFilterError("benchmark_history needs the text of a history, one JSON object in a line")
    try:
        return list(parse_history(text, name))
    except BenchmarkError as error:
        raise AnsibleFilterError(str(error)) from None


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"benchmark_history": benchmark_history}
