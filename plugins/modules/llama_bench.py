#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: measures how fast a model runs over RPC workers."""

from __future__ import annotations

DOCUMENTATION = r"""
module: llama_bench
short_description: Measure how fast a model runs over llama.cpp RPC workers
version_added: 0.1.0
description:
  - Runs on the master, the host that has the model file. Measures with upstream's C(llama-bench) how many tokens per
    second the workers read and generate, and returns the figures with their spread.
  - Checks that every worker took part. If a worker held no part of the model, the run has failed, even if the
    program exits with 0.
  - About every ten seconds, shows the phase (loading the model, measuring), as
    M(llama_cpp.cluster.distributed_inference) does.
  - Only O(timeout) ends a run whose worker hangs.
  - Works with the C(llama-bench) of upstream's builds from b8492 on. It is one of the programs that
    role P(llama_cpp.cluster.llama_cpp#role) gives a master.
extends_documentation_fragment:
  - llama_cpp.cluster.worker_run
author: The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  model:
    description: Path of the GGUF file on the master, without a comma. Of a split model, the first part.
  n_prompt:
    description: How many tokens to read, one test for each number. V(0) or an empty list means none.
    type: list
    elements: int
    default: [512]
  n_gen:
    description: How many tokens to generate, one test for each number. V(0) or an empty list means none.
    type: list
    elements: int
    default: [128]
  n_depth:
    description: How many tokens are in the context before the clock starts. Each number repeats all tests.
    type: list
    elements: int
    default: [0]
  batch_size:
    description: Logical batch in tokens. Each number repeats all tests, with the model loaded once.
    type: list
    elements: int
    default: [2048]
  ubatch_size:
    description:
      - Physical batch in tokens. Each number repeats all tests, with the model loaded once.
      - In builds of protocol 7, the workers compute several of them at the same time, each worker its own layers.
    type: list
    elements: int
    default: [512]
  cache_type_k:
    description: Type of the cache of keys.
    type: str
    choices: [f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl]
    default: f16
  cache_type_v:
    description: Type of the cache of values. All but V(f16) and V(bf16) need flash attention.
    type: str
    choices: [f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl]
    default: f16
  flash_attn:
    description: Whether to use flash attention. By default llama.cpp decides. Builds of early 2026 have no V(auto).
    type: str
    choices: ["on", "off", auto]
  split_mode:
    description:
      - V(layer) gives each worker whole layers. V(tensor) gives it a part of each layer; not all builds have it.
    type: str
    choices: [layer, tensor]
    default: layer
  repetitions:
    description: How often each test is repeated after a warm-up. With V(1) there is no spread.
    type: int
    default: 5
"""

EXAMPLES = r"""
- name: Measure the cluster
  llama_cpp.cluster.llama_bench:
    model: /srv/models/model.gguf
    workers: [10.0.0.11, 10.0.0.12]
  register: bench

- name: Show the tokens per second of each test
  ansible.builtin.debug:
    msg: "{{ item.name }}: {{ item.tokens_per_second.mean }} ± {{ item.tokens_per_second.stddev }}"
  loop: "{{ bench.tests }}"
  loop_control:
    label: "{{ item.name }}"

- name: Compare physical batches, with the model loaded once
  llama_cpp.cluster.llama_bench:
    model: /srv/models/model.gguf
    workers: [10.0.0.11, 10.0.0.12]
    n_prompt: [1024]
    n_gen: []
    ubatch_size: [64, 128, 256, 512]
    repetitions: 3
"""

RETURN = r"""
tests:
  description:
    - The figures of each test, in the order in which they ran; after a failure, those of the completed tests.
    - C(name) is upstream's short name, such as V(pp512) for reading 512 tokens and V(tg128) for generating 128, and
      C(kind) is V(prompt) or V(generation). C(n_prompt) tokens were read and C(n_gen) generated, with C(n_depth) in the
      context before. C(batch_size) and C(ubatch_size) are as the options of these names.
    - C(tokens_per_second) has over the repetitions the C(mean), the C(stddev) of the sample (V(null) for one
      repetition), the slowest as C(min), the fastest as C(max), and each as C(samples).
  returned: always
  type: list
  elements: dict
build:
  description:
    - The llama.cpp build that was used, in the form of the filter P(llama_cpp.cluster.llama_perf#filter). Unknown
      values are V(null).
    - C(patches) are the sorted names of the patches that role P(llama_cpp.cluster.llama_cpp#role) built it with;
      V(null) without a manifest that lists them. Builds of one commit with other patches are different builds.
  returned: always
  type: dict
  sample: {number: 1, commit: 0c1e57098, version: null, patches: [rpc-load]}
model:
  description:
    - The model that was measured; V(null) if nothing was measured. Its C(path), upstream's description as C(type), such
      as V(llama 8B Q4_0), the C(size_bytes) of its weights and the number of its parameters as C(n_params).
    - C(sha256) is the digest of the file, if role P(llama_cpp.cluster.gguf_model#role) put it there; V(null) otherwise.
  returned: always
  type: dict
workers:
  description: The workers as V(host:port), in order.
  returned: always
  type: list
  elements: str
devices:
  description: The C(name), C(endpoint), C(layers) and C(model_buffer_mib) of each device, as in
    M(llama_cpp.cluster.distributed_inference).
  returned: always
  type: list
  elements: dict
options:
  description: The options that were in effect and that affect the figures, namely O(split_mode), O(tensor_split),
    O(n_gpu_layers), O(cache_type_k), O(cache_type_v), O(flash_attn), O(threads) and O(repetitions); V(null) if nothing
    was measured.
  returned: always
  type: dict
wall_time_ms:
  description: The time from the start of the program to its end, including the load; V(null) if nothing was run.
  returned: always
  type: float
command:
  description: The command line, in check mode the one that would be run; V(null) if the module failed before.
  returned: always
  type: list
  elements: str
failure:
  description: Why the task failed, in the form of M(llama_cpp.cluster.distributed_inference); V(null) after success.
  returned: always
  type: dict
log_tail:
  description: The last lines of the program's log.
  returned: when the program was run and failed
  type: list
  elements: str
msg:
  description: What happened and what to do about it.
  returned: on failure
  type: str
"""

import os
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.progress import VARIABLE
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.record import known
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure import bench as bench_of
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run import capabilities as capabilities_of
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.progress import Progress, progress_in
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.worker_run import (
    Failure,
    check_model,
    check_split_mode,
    divided_by,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.worker_task import WORKER_RUN, WorkerTask


class Task(WorkerTask):
    """One call of the module."""

    def __init__(self, module: AnsibleModule, progress: Progress | None = None) -> None:
        names = ("build", "model", "options", "wall_time_ms", "command", "failure")
        lists: dict[str, Any] = {"tests": [], "workers": [], "devices": []}
        super().__init__(module, {"changed": False, **lists, **dict.fromkeys(names)}, progress)

    def main(self) -> None:
        """Check the options, verify the workers, run, and judge the result."""
        for name in ("n_prompt", "n_gen", "n_depth", "batch_size", "ubatch_size"):
            self.module.params[name] = list(dict.fromkeys(self.module.params[name]))
        options = self.chosen(bench_of.Options, bench_of.check_options)
        self.result["workers"] = options.endpoints
        with self.refusing():
            bench = capabilities_of.describe_bench(*self.asked(capabilities_of.BENCH_PROGRAM))
            self.result["build"] = bench_of.build_of(bench, None)
            bench_of.check_build(options, bench)
            model_bytes = check_model(options.model)
            check_split_mode(options, ("-sm", options.split_mode), bench.protocol)
        timeout = bench_of.time_limit(options, model_bytes)
        statuses = self.verify(options.workers, bench.protocol) if self.module.params["verify"] else []
        self.shares = divided_by(options, statuses)
        self.result["command"] = bench_of.build_command(bench, options, statuses)
        if self.module.check_mode:
            self.module.exit_json(**self.result)
        self.progress.begin(1, model_bytes, 0)
        self.measure(options, bench, timeout)
        self.module.exit_json(**self.result)

    def measure(self, options: bench_of.Options, bench: capabilities_of.Program, timeout: int) -> None:
        """Run the tests, and put their figures into the result; fail if the figures cannot be trusted."""
        ended, ending = self.ended(self.result["command"], timeout, options.workers)
        failure = bench_of.classify(options, ending, bench.protocol)
        lines: list[dict[str, Any]] = []
        try:
            lines = bench_of.parse_lines(ended.stdout, whole=failure is None)
            if not lines and failure is None:
                failure = Failure("unknown", None, "llama-bench exited with 0 and printed no result; see log_tail.")
        except bench_of.OutputError as error:
            failure = failure or Failure("unknown", None, str(error))
        self.result.update(
            tests=[bench_of.figures_of(line) for line in lines],
            wall_time_ms=ended.wall_time_ms,
            devices=[
                {name: device[name] for name in ("name", "endpoint", "layers", "model_buffer_mib")}
                for device in ending.log["devices"]
            ],
        )
        self.keep_log_tail(ending, failure)
        if lines:
            record = known(Path(options.model))
            self.result.update(
                build=bench_of.build_of(bench, lines[0]),
                model=bench_of.model_of(options.model, record.sha256 if record else None, lines[0]),
                options=bench_of.options_of(options, lines[0]),
            )
        if failure:
            self.fail(failure)


def main() -> None:
    """Declare the options and run."""
    module = AnsibleModule(
        argument_spec={
            **WORKER_RUN,
            "n_prompt": {"type": "list", "elements": "int", "default": [512]},
            "n_gen": {"type": "list", "elements": "int", "default": [128]},
            "n_depth": {"type": "list", "elements": "int", "default": [0]},
            "batch_size": {"type": "list", "elements": "int", "default": [2048]},
            "ubatch_size": {"type": "list", "elements": "int", "default": [512]},
            "cache_type_k": {"type": "str", "choices": list(bench_of.CACHE_TYPES), "default": "f16"},
            "cache_type_v": {"type": "str", "choices": list(bench_of.CACHE_TYPES), "default": "f16"},
            "flash_attn": {"type": "str", "choices": ["on", "off", "auto"]},
            "split_mode": {"type": "str", "choices": ["layer", "tensor"], "default": "layer"},
            "repetitions": {"type": "int", "default": 5},
        },
        supports_check_mode=True,
    )
    with progress_in(os.environ.pop(VARIABLE, None)) as progress:
        Task(module, progress).main()


if __name__ == "__main__":
    main()
