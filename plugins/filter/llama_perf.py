# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter that reads the figures out of a llama.cpp log."""

from __future__ import annotations

DOCUMENTATION = r"""
name: llama_perf
short_description: Performance figures, devices, offload and build out of a llama.cpp log
version_added: 0.1.0
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Reads what a llama.cpp program printed in one run and returns its figures as data.
  - Understands C(llama_print_timings), C(llama_perf_sampler_print) and C(llama_perf_context_print),
    C(common_perf_print), and the line C([ Prompt ... | Generation ... ]) of the chat client; with and without time,
    level and colour codes.
  - Standard output and standard error may be mixed. Generated text that looks like a log line is not taken for one
    where the log itself shows it to be text. Where the figures serve as proof, give standard error alone.
  - What a log does not hold is V(null), and so are figures that upstream printed as C(inf) or C(nan).
notes:
  - Performance figures are printed by a run that ended by itself. Device, buffer and offload lines need C(-lv 4) in
    builds from b9151 on.
  - In split mode V(tensor) upstream names no single worker in its buffer lines, so RV(_value.devices) has none then.
options:
  _input:
    description: The log of one run.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Speed of generation in a log that was kept
  ansible.builtin.debug:
    msg: "{{ (lookup('ansible.builtin.file', 'run.log') | llama_cpp.cluster.llama_perf).perf.eval.tokens_per_second }}"

- name: The same through a JMESPath query, which needs jmespath on the controller
  ansible.builtin.debug:
    msg: >-
      {{ lookup('ansible.builtin.file', 'run.log') | llama_cpp.cluster.llama_perf
         | community.general.json_query('perf.eval.tokens_per_second') }}
"""

RETURN = r"""
_value:
  description: The figures of the run; every key is always there, and V(null) where the log does not hold it.
  type: dict
  contains:
    perf:
      description:
        - The last performance report in the text. Each part of it has in C(time_ms) its milliseconds, in C(tokens) or
          C(runs) the number of its tokens, and in C(ms_per_token) and C(tokens_per_second) its speed.
        - C(load) is loading, as upstream counts it. With C(--no-warmup) this leaves most of the load out.
        - C(sampling) is choosing tokens, those that were sampled or accepted. Builds from b7115 on have C(tokens) and
          C(samplers_time_ms), the milliseconds of the samplers alone; builds before have C(runs) and the speed.
        - C(prompt_eval) is reading the prompt.
        - C(eval) is generating. Each of its runs computes one token.
        - C(total) is the time from the end of the load to the report, and the tokens of prompt and generation.
        - C(unaccounted) is what of the total is in no other figure, and how many percent; builds from b7115 on. It may
          be negative.
        - C(graphs_reused) says how often a compute graph was used again.
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
    devices:
      description:
        - What each device holds. Several buffers of one device are summed; of the compute buffer the last reservation
          counts.
        - Taken from the buffer lines, else from the memory table at the end (whole MiB, rounded down). Empty without
          both.
      type: list
      elements: dict
      contains:
        name:
          description: Upstream's name of the device.
          type: str
          sample: RPC0[192.0.2.11:50052]
        endpoint:
          description: The worker's endpoint, V(null) for a device of the master.
          type: str
          sample: 192.0.2.11:50052
        layers:
          description:
            - Layers on the device, the output layer among them.
            - From debug output, else from the share of the KV cache where that determines it, else V(null).
          type: int
        model_buffer_mib:
          description: Weights, in MiB.
          type: float
        kv_buffer_mib:
          description: KV cache and recurrent state, in MiB.
          type: float
        compute_buffer_mib:
          description: Compute buffer, in MiB.
          type: float
    offload:
      description: The offload that was asked for. Upstream prints it also where there is no device.
      type: dict
      contains:
        layers:
          description: Layers offloaded.
          type: int
        layers_total:
          description: Layers of the model, the output layer among them.
          type: int
    build:
      description: Which upstream build ran.
      type: dict
      contains:
        number:
          description: Build number; 0 or 1 in builds from an archive.
          type: int
        commit:
          description: Commit, abbreviated.
          type: str
        version:
          description: Version, in builds that have one.
          type: str
"""


from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.perf_log import PerfLog, PerfLogError, parse_log
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._filters import filter_module


def llama_perf(text: object) -> PerfLog:
    """Return the figures of a log."""
    if not isinstance(text, str):
        raise AnsibleFilterError("llama_perf needs the text of a log, and got something that is no text.")
    try:
        return parse_log(text)
    except PerfLogError as error:
        raise AnsibleFilterError(str(error)) from None


FilterModule = filter_module(llama_perf)
