# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter that reads the figures out of a llama.cpp log."""

from __future__ import annotations

DOCUMENTATION = r"""
name: llama_perf
short_description: Read performance figures, devices, offload and build from a llama.cpp log
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Reads what a llama.cpp program printed in one run and returns its figures as data.
  - Understands C(llama_print_timings), C(llama_perf_sampler_print) and C(llama_perf_context_print),
    C(common_perf_print), and the line C([ Prompt ... | Generation ... ]) of the chat client; with and without time,
    level and colour codes.
  - Of the log of a C(llama-server), it reads the timings that the server writes at the end of each request
    (C(print_timing)), in both of upstream's forms, into RV(_value.requests). RV(_value.perf) is then V(null).
  - Numbers may have a decimal comma, as in a log that was written in another language.
  - Lines may begin as in the output of C(journalctl), C(docker compose logs) and C(kubectl logs --timestamps).
  - Standard output and standard error may be mixed. The filter ignores generated text that looks like a log line if the
    log itself shows that it is text. If you use the figures as proof, pass only standard error.
  - A value that the log does not contain is V(null). So is a figure that llama.cpp printed as C(inf) or C(nan).
notes:
  - llama.cpp prints performance figures only if a run ended by itself. Builds from b9151 on print device, buffer and
    offload lines only with C(-lv 4).
  - In split mode V(tensor), upstream names no single worker in its buffer lines. RV(_value.devices) then contains no
    workers.
options:
  _input:
    description: The log of one run.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show the speed of generation in a saved log
  ansible.builtin.debug:
    msg: "{{ (lookup('ansible.builtin.file', 'run.log') | llama_cpp.cluster.llama_perf).perf.eval.tokens_per_second }}"
"""

RETURN = r"""
_value:
  description: The figures of the run. Every key is always there; a value that the log does not contain is V(null).
  type: dict
  contains:
    perf:
      description:
        - The last performance report in the text, with times in milliseconds.
        - C(load) is loading, as upstream counts it. With C(--no-warmup) this leaves most of the load out. C(sampling)
          is choosing tokens. Builds from b7115 on have C(samplers_time_ms), the samplers alone, and C(tokens) there,
          and earlier ones have C(runs), C(ms_per_token) and C(tokens_per_second).
        - C(prompt_eval) is reading the prompt, C(eval) generating, with C(runs), one for each token that was computed,
          and C(total) all from the end of the load to the report.
        - C(unaccounted) is what of the total is in no other figure (builds from b7115 on), and may be negative.
          C(graphs_reused) says how often a compute graph was used again.
      type: dict
      sample:
        load: {time_ms: 148.68}
        sampling:
          {time_ms: 30.54, samplers_time_ms: 1.92, tokens: 77, runs: null, ms_per_token: null, tokens_per_second: null}
        prompt_eval: {time_ms: 13.37, tokens: 13, ms_per_token: 1.03, tokens_per_second: 972.11}
        eval: {time_ms: 218.51, runs: 63, ms_per_token: 3.47, tokens_per_second: 288.32}
        total: {time_ms: 264.68, tokens: 76}
        unaccounted: {time_ms: 2.26, percent: 0.9}
        graphs_reused: 62
    requests:
      description:
        - The requests that a C(llama-server) has answered, in the order in which they ended; otherwise empty.
        - C(slot) and C(task) are the server's numbers of the slot and the request. C(prompt_eval) leaves out what was
          in the slot's cache, and C(graphs_reused) counts since the server started.
      type: list
      elements: dict
      sample:
        - slot: 3
          task: 0
          prompt_eval: {time_ms: 13.37, tokens: 13, ms_per_token: 1.03, tokens_per_second: 972.11}
          eval: {time_ms: 218.51, runs: 63, ms_per_token: 3.47, tokens_per_second: 288.32}
          total: {time_ms: 231.88, tokens: 76}
          graphs_reused: 62
    devices:
      description:
        - What each device holds, in MiB. The filter adds up several buffers of one device. For the compute buffer, the
          last reservation counts. The KV buffer includes recurrent states.
        - The values come from the buffer lines, or else from the memory table at the end (whole MiB, rounded down).
          Empty if the log has neither.
        - C(endpoint) is the worker's, V(null) for a device of the master.
        - C(layers) counts the output too. It comes from debug output, or else from the share of the KV cache if that
          determines it. Otherwise it is V(null).
      type: list
      elements: dict
      sample:
        - name: RPC0[192.0.2.11:50052]
          endpoint: 192.0.2.11:50052
          layers: 17
          model_buffer_mib: 2190.5
          kv_buffer_mib: 136.0
          compute_buffer_mib: 99.06
    offload:
      description: How many layers were to be offloaded, and how many there are. The output layer counts in both.
        Upstream prints it even without a device.
      type: dict
      sample: {layers: 33, layers_total: 33}
    build:
      description: The upstream build that ran. Builds from an archive have no real C(number), but 0 or 1.
      type: dict
      sample: {number: 1, commit: 0c1e57098, version: null}
"""

from typing import Any, Callable

from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.perf_log import (
    PerfLogError,
    parse_log,
    parse_requests,
)


def llama_perf(text: object) -> dict[str, Any]:
    """Return the figures of a log."""
    if not isinstance(text, str):
        raise AnsibleFilterError("llama_perf needs the text of a log, and got something that is not text.")
    try:
        requests = parse_requests(text)
        return {**parse_log(text, require_perf=not requests), "requests": requests}
    except PerfLogError as error:
        raise AnsibleFilterError(str(error)) from None


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"llama_perf": llama_perf}
