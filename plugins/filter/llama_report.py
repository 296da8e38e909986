# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter that renders the result of a distributed run for people."""

from __future__ import annotations

DOCUMENTATION = r"""
name: llama_report
short_description: Print the result of a distributed run as plain-text tables
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Renders the result of M(llama_cpp.cluster.distributed_inference) as three parts, aligned for a terminal of 100
    columns, namely the workers and what each of them holds, the generated text, and the performance figures.
  - If the run failed, the first line says so.
  - Control characters in the text, in names and in messages are replaced, so that none reaches the terminal.
  - Null is printed as a dash.
options:
  _input:
    description: The result of M(llama_cpp.cluster.distributed_inference).
    type: dict
    required: true
  workers:
    description:
      - RV(llama_cpp.cluster.rpc_worker_info#module:workers), for the state, protocol and memory of each worker.
      - Without it, the table contains only the data of the run itself.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Run the model over the workers
  llama_cpp.cluster.distributed_inference:
    model: /srv/models/model.gguf
    prompt: Here's a knock knock joke for kids
    workers: [192.0.2.11, 192.0.2.12]
  register: run

- name: Show the tables and the text
  ansible.builtin.debug:
    msg: "{{ (run | llama_cpp.cluster.llama_report).splitlines() }}"
"""

RETURN = r"""
_value:
  description:
    - The report, as several lines. Memory is in MiB, free and total as the worker reports it.
    - C(share) is the percentage of the offloaded weights that a worker holds.
    - If devices have C(repacked_mib), which role P(llama_cpp.cluster.inference#role) adds, the report shows how much of
      the weights is repacked.
  type: str
"""

from typing import Any, Callable

from ansible_collections.llama_cpp.cluster.plugins.module_utils._status.report import render_report


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"llama_report": render_report}
