# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter that reads the figures out of a llama.cpp log."""

from __future__ import annotations

DOCUMENTATION = r"""
name: llama_perf
short_description: Read performance figures, devices, offload and build from a llama.cpp log
version_added: 0.1.0
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
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

- name: Show it with a JMESPath query, which needs jmespath on the controller
  ansible.builtin.debug:
    msg: >-
      {{ lookup('ansible.builtin.file', 'run.log') | llama_cpp.cluster.llama_perf
         | community.general.json_query('perf.eval.tokens_per_second') }}
"""

RETURN = r"""
_value:
  description: The figures of the run. Every key is always there; a value that the log does not contain is V(null).
  type: dict
  contains:
    perf:
      description: The last performance report in the text.
      type: dict
      contains:
        load:
          description: Loading, as upstream counts it. With C(--no-warmup) this leaves most of the load out.
          type: dict
          contains:
            time_ms: &milliseconds
              description: Milliseconds.
              type: float
        sampling:
          description: Choosing tokens.
          type: dict
          contains:
            time_ms: *milliseconds
            samplers_time_ms:
              description: Milliseconds of the samplers alone; builds from b7115 on.
              type: float
            runs:
              description: Tokens sampled or accepted; builds before b7115.
              type: int
            tokens:
              description: Tokens sampled or accepted; builds from b7115 on.
              type: int
            ms_per_token:
              description: Milliseconds per token; builds before b7115.
              type: float
            tokens_per_second:
              description: Tokens per second; builds before b7115.
              type: float
        prompt_eval: &prompt_eval
          description: Reading the prompt; in a server, the part of it that is not in the slot's cache.
          type: dict
          contains:
            time_ms: *milliseconds
            tokens:
              description: Tokens of the prompt, or of that part.
              type: int
            ms_per_token: &ms_per_token
              description: Milliseconds per token.
              type: float
            tokens_per_second: &tokens_per_second
              description: Tokens per second.
              type: float
        eval: &eval
          description: Generating.
          type: dict
          contains:
            time_ms: *milliseconds
            runs:
              description: Tokens computed, one per run.
              type: int
            ms_per_token: *ms_per_token
            tokens_per_second: *tokens_per_second
        total:
          description: From the end of the load to the report.
          type: dict
          contains:
            time_ms: *milliseconds
            tokens:
              description: Tokens of prompt and generation.
              type: int
        unaccounted:
          description: What of the total is in no other figure; builds from b7115 on. May be negative.
          type: dict
          contains:
            time_ms: *milliseconds
            percent:
              description: Percent of the total.
              type: float
        graphs_reused:
          description: How often a compute graph was used again.
          type: int
    requests:
      description: The requests that a C(llama-server) has answered, in the order in which they ended; otherwise empty.
      type: list
      elements: dict
      version_added: 0.3.0
      contains:
        slot:
          description: The number of the slot that computed the request.
          type: int
        task:
          description: The server's number of the request.
          type: int
        prompt_eval: *prompt_eval
        eval: *eval
        total:
          description: Both together.
          type: dict
          contains:
            time_ms: *milliseconds
            tokens:
              description: Tokens read and generated.
              type: int
        graphs_reused:
          description: How often the server has used a compute graph again, since it started.
          type: int
    devices:
      description:
        - What each device holds. The filter adds up several buffers of one device. For the compute buffer, the last
          reservation counts.
        - The values come from the buffer lines, or else from the memory table at the end (whole MiB, rounded down).
          Empty if the log has neither.
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
            - Layers on the device, including the output layer.
            - The value comes from debug output, or else from the share of the KV cache if that determines it. Otherwise
              it is V(null).
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
      description: The requested offload. Upstream prints it even without a device.
      type: dict
      contains:
        layers:
          description: Layers offloaded.
          type: int
        layers_total:
          description: Layers of the model, including the output layer.
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

from typing import Any, Callable, Mapping

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

    def filters(self) -> Mapping[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"llama_perf": llama_perf}
