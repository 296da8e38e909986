# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter that makes a report of a benchmark."""

from __future__ import annotations

DOCUMENTATION = r"""
name: benchmark_report
short_description: Make the report of a benchmark, as data, Markdown and a plot
version_added: 0.1.0
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Joins the results of modules of this collection into one report. A sentence at the top summarises the result.
  - The plot is one small SVG file with the speeds of the last runs. The Markdown shows it as C(report.svg).
  - Names of hosts, models and builds are escaped, and control characters and marks that change the direction of writing
    are replaced.
  - A history is used completely or not at all. If you give only a history, the filter only checks it.
positional: _input
options:
  _input:
    description: The results, the plan and earlier runs.
    type: dict
    required: true
    suboptions:
      bench:
        description: The result of M(llama_cpp.cluster.llama_bench).
        type: dict
        required: true
      time:
        description: The time of the run, in UTC, such as V(2026-01-31T23:59:59Z).
        type: str
        required: true
      run:
        description: The result of M(llama_cpp.cluster.distributed_inference), which contains what each worker held.
        type: dict
      plan:
        description: The result of M(llama_cpp.cluster.split_plan_info).
        type: dict
      model:
        description: The result of M(llama_cpp.cluster.gguf_info).
        type: dict
      workers:
        description: RV(llama_cpp.cluster.rpc_worker_info#module:workers).
        type: list
        elements: dict
      hosts:
        description:
          - A dictionary for each host, with its C(name) and, if known, C(master) (whether it is one), C(endpoints) (of
            its workers), C(architecture), C(cpu), C(cores), C(threads) (a list, one for each worker), C(version) and
            C(commit) of its llama.cpp, C(memory_available_bytes) and C(memory_total_bytes).
        type: list
        elements: dict
      history:
        description:
          - The earlier runs, the oldest first, as a text with one JSON object on each line. The playbook
            P(llama_cpp.cluster.benchmark#playbook) keeps them in a file.
        type: str
      tolerance_percent:
        description:
          - By how many percent a mean may be lower than the median of earlier runs with the same build, model
            and shape; V(0) allows anything.
        version_added: 0.2.0
        type: float
        default: 0
      settings:
        description: Further settings of the measurement, by name.
        type: dict
      title:
        description: The heading; by default the model's name and the number of workers.
        type: str
  name:
    description: The file with the history, for messages.
    version_added: 0.2.0
    type: str
    default: history.jsonl
seealso:
  - module: llama_cpp.cluster.llama_bench
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
  description: The report.
  type: dict
  contains:
    problem:
      description:
        - One sentence that names the first invalid line of the history. If it is not empty, there are no other keys.
      version_added: 0.2.0
      type: str
    report:
      description:
        - The report as data. C(schema_version) changes with each incompatible change.
        - C(summary) is the sentence at the top, C(split) compares plan and reality of each worker, and C(history) has
          the last runs, including this one.
      type: dict
    markdown:
      description: The report in Markdown.
      type: str
    plot:
      description: The plot in SVG, without any text from outside.
      type: str
    history_line:
      description: The line to append to the history, without a line end.
      type: str
    slower:
      description: One sentence that says which mean is lower than tolerated; empty if none is.
      version_added: 0.2.0
      type: str
"""

from typing import TYPE_CHECKING, Any, Mapping

from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.benchmark_data import build_report
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.benchmark_history import (
    BenchmarkError,
    history_line,
    number_at,
    parse_history,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.benchmark_markdown import render_markdown
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.benchmark_plot import render_plot
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.benchmark_words import slower_than_before

if TYPE_CHECKING:
    from collections.abc import Callable


def benchmark_report(results: object, name: str = "history.jsonl") -> dict[str, Any]:
    """Return the report in its forms, or the problem of the history."""
    if not isinstance(results, Mapping):
        raise AnsibleFilterError("benchmark_report needs a dictionary with the results of modules, such as bench")
    history = results.get("history", "")
    if not isinstance(history, str):
        raise AnsibleFilterError("benchmark_report needs the history as a text, one JSON object in a line")
    try:
        before = parse_history(history, name)
    except BenchmarkError as error:
        return {"problem": str(error)}
    if results.keys() == {"history"}:
        return {"problem": ""}
    try:
        tolerance = number_at(results.get("tolerance_percent") or 0, "tolerance_percent")
        report = build_report(results, before)
        return {
            "problem": "",
            "report": report,
            "markdown": render_markdown(report, "report.svg"),
            "plot": render_plot(report["history"]),
            "history_line": history_line(report),
            "slower": slower_than_before(report["history"], tolerance),
        }
    except BenchmarkError as error:
        raise AnsibleFilterError(str(error)) from None


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"benchmark_report": benchmark_report}
