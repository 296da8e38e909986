# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter that makes a report of a benchmark."""

from __future__ import annotations

DOCUMENTATION = r"""
name: benchmark_report
short_description: Make the report of a benchmark, as data and Markdown
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Joins the results of modules of this collection into one report, and compares it with earlier runs. The playbook
    P(llama_cpp.cluster.benchmark#playbook) uses it.
  - Names of hosts, models and builds are escaped, and control characters and marks that change the direction of writing
    are replaced.
positional: _input
options:
  _input:
    description:
      - C(bench) is the result of M(llama_cpp.cluster.llama_bench), and C(time) the time of the run in UTC.
      - Optional are C(run) of M(llama_cpp.cluster.distributed_inference), C(plan) of
        M(llama_cpp.cluster.split_plan_info), C(model) of M(llama_cpp.cluster.gguf_info), C(workers) of
        M(llama_cpp.cluster.rpc_worker_info), C(hosts) (the facts of each host), C(history) (the earlier runs as a text
        with a JSON object in each line), C(tolerance_percent) (by how much a mean may be below the median of earlier
        runs; V(0) allows anything), C(settings) and C(title).
      - If there is only C(history), the filter only checks it.
    type: dict
    required: true
  name:
    description: The file with the history, for messages.
    type: str
    default: history.jsonl
"""

EXAMPLES = r"""
- name: Write a report of the measurements
  ansible.builtin.copy:
    content: "{{ (results | llama_cpp.cluster.benchmark_report).markdown }}"
    dest: report.md
    mode: "0644"
  vars:
    results:
      time: "2026-01-31T23:59:59Z"
      bench: # as the module llama_bench returned it
        build: {number: 1, commit: 0c1e57098, version: null}
        model: {type: llama 8B Q4_K - Medium}
        workers: ["192.0.2.11:50052", "192.0.2.12:50052"]
        options: {split_mode: layer, repetitions: 2}
        tests:
          - {name: tg64, kind: generation, n_prompt: 0, n_gen: 64, n_depth: 0, batch_size: 2048, ubatch_size: 512,
             tokens_per_second: {mean: 11.9, stddev: 0.14, min: 11.8, max: 12.0, samples: [11.8, 12.0]}}
"""

RETURN = r"""
_value:
  description:
    - C(problem) is a sentence that names the first invalid line of the history. If it is not empty, there is nothing
      else.
    - C(report) is the report as data, and C(markdown) its text. C(history_line) is the line to append to the history,
      and C(slower) a sentence on each mean that is lower than tolerated.
  type: dict
"""

from typing import Any, Callable, Mapping

from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.benchmark_data import build_report
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.benchmark_history import (
    BenchmarkError,
    history_line,
    parse_history,
    slower_than_before,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.benchmark_markdown import render_markdown


def benchmark_report(results: Mapping[str, Any], name: str = "history.jsonl") -> dict[str, Any]:
    """Return the report in its forms, or the problem of the history."""
    try:
        before = parse_history(results.get("history") or "", name)
    except BenchmarkError as error:
        return {"problem": str(error)}
    if results.keys() == {"history"}:
        return {"problem": ""}
    report = build_report(results, before)
    return {
        "problem": "",
        "report": report,
        "markdown": render_markdown(report),
        "history_line": history_line(report["history"][-1]),
        "slower": slower_than_before(report["history"], float(results.get("tolerance_percent") or 0)),
    }


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"benchmark_report": benchmark_report}
