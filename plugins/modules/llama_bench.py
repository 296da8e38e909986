#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: how fast a model runs over RPC workers, and whether it became slower."""

from __future__ import annotations

DOCUMENTATION = r"""
module: llama_bench
short_description: Measure how fast a model runs over llama.cpp RPC workers, and fail if it became slower
version_added: 0.1.0
description:
  - Runs on the master, the host that has the model file. Measures with upstream's C(llama-bench) how many tokens per
    second the workers read and generate, and returns the figures with their spread.
  - Writes them into a baseline file or compares them with those of one. What became slower by more than a tolerance
    fails the task, in one sentence with both figures. Figures of another build, model, shape or number of workers are
    not compared, and it is said what differs.
  - Proves that every named worker took part. A run in which one held no part of the model is a failure, whatever the
    exit status of the program says.
  - Standard input of the program is closed and its time is limited, so the task always ends.
  - Shows about every ten seconds where it is (loading the model, measuring), as
    M(llama_cpp.cluster.distributed_inference) does.
  - Works with the C(llama-bench) of upstream builds since August 2025 (RPC protocol 2.0). It is
    one of the programs that role P(llama_cpp.cluster.llama_cpp#role) gives a master.
  - Environment variables that begin with V(LLAMA_ARG_) or V(LLAMA_LOG_) are not passed on to the program.
extends_documentation_fragment:
  - llama_cpp.cluster.worker_run
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  model:
    description:
      - Path of the GGUF file on the master, without a comma. Of a split model, the first part.
    type: path
    required: true
  n_prompt:
    description:
      - How many tokens to read, one test for each number. V(0) or an empty list means none.
    type: list
    elements: int
    default: [512]
  n_gen:
    description:
      - How many tokens to generate, one test for each number. V(0) or an empty list means none.
    type: list
    elements: int
    default: [128]
  mixed:
    description:
      - Tests that read and then generate, timed together.
    type: list
    elements: dict
    default: []
    suboptions:
      n_prompt:
        description: How many tokens to read.
        type: int
        required: true
      n_gen:
        description: How many tokens to generate.
        type: int
        required: true
  n_depth:
    description:
      - How many tokens are in the context before the clock starts. Each number repeats all tests.
    type: list
    elements: int
    default: [0]
  batch_size:
    description:
      - Logical batch in tokens. Each number repeats all tests, with the model loaded once.
    type: list
    elements: int
    default: [2048]
  ubatch_size:
    description:
      - Physical batch in tokens. Each number repeats all tests, with the model loaded once.
      - Builds of protocol 7 let the workers compute several of them at once, each its own part.
    type: list
    elements: int
    default: [512]
  cache_type_k:
    description:
      - Type of the cache of keys.
    type: str
    choices: [f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl]
    default: f16
  cache_type_v:
    description:
      - Type of the cache of values. All but V(f16) and V(bf16) need flash attention.
    type: str
    choices: [f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl]
    default: f16
  flash_attn:
    description:
      - Whether to use flash attention. By default llama.cpp decides. The oldest builds have no V(auto).
    type: str
    choices: ["on", "off", auto]
  split_mode:
    description:
      - V(layer) gives each worker whole layers, V(tensor) a part of each. Not all builds have the latter.
    type: str
    choices: [layer, tensor]
    default: layer
  repetitions:
    description:
      - How often each test is repeated after a warm-up. With V(1) there is no spread.
    type: int
    default: 5
  timeout:
    description:
      - Limit of the run in seconds. The program is ended when it is reached; what was measured until then is returned.
      - A worker that hangs, or whose host is gone without a word, is noticed by this limit only.
      - A worker that answers a master that is gone dies of it (SIGPIPE), so workers may have to be started again
        then; a service manager should do so.
      - By default 120 s, plus the size of the model (all its parts) divided by 10 MB/s, plus for each test, repetition
        and warm-up one second for each 10 tokens read and 2 s for each token generated.
    type: int
  baseline_path:
    description:
      - A JSON file on the master to compare with. If there is none, this run's figures are written to it.
      - A file that is there and is no baseline of this module fails the task before anything is run, and stays.
    type: path
  baseline_update:
    description:
      - Whether to replace the baseline by the figures of this run, whatever they are. What became slower is
        returned in RV(comparison), and does not fail the task.
    type: bool
    default: false
  baseline_required:
    description:
      - Whether to fail when there is nothing to compare with, since there is no baseline or it is of another build,
        model, shape or number of workers. Nothing is written then.
    type: bool
    default: false
  tolerance_percent:
    description:
      - By how many percent the mean of a test may be lower than that of the baseline, from 0 to below 100.
    type: float
    default: 5.0
  prompt_tolerance_percent:
    description:
      - The same for tests that only read. By default O(tolerance_percent).
    type: float
  generation_tolerance_percent:
    description:
      - The same for tests that only generate. By default O(tolerance_percent).
    type: float
attributes:
  check_mode:
    description: In check mode everything is verified, the workers too, and nothing is run or written.
    support: full
  diff_mode:
    description: The figures of a baseline are returned rather than shown as a difference.
    support: none
  idempotent:
    description: Changes nothing but the baseline, and that only if there is none or with O(baseline_update=true).
    support: partial
seealso:
  - module: llama_cpp.cluster.distributed_inference
  - module: llama_cpp.cluster.rpc_worker_info
"""

EXAMPLES = r"""
- name: How fast is the cluster
  llama_cpp.cluster.llama_bench:
    model: /srv/models/model.gguf
    workers: [10.0.0.11, 10.0.0.12]
  register: bench

- name: Tokens per second of each test
  ansible.builtin.debug:
    msg: "{{ item.name }}: {{ item.tokens_per_second.mean }} ± {{ item.tokens_per_second.stddev }}"
  loop: "{{ bench.tests }}"
  loop_control:
    label: "{{ item.name }}"

- name: The first run writes the baseline, later ones fail if reading or generating became slower
  llama_cpp.cluster.llama_bench:
    model: /srv/models/model.gguf
    workers: [10.0.0.11, 10.0.0.12]
    baseline_path: /var/lib/llama_cpp/bench.json
    prompt_tolerance_percent: 10
    generation_tolerance_percent: 5

- name: Which physical batch reads fastest, with the model loaded once
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
  description: The figures of each test in the order in which they were run; after a failure of those that were done.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Upstream's short name, such as V(pp512) for reading 512 tokens and V(tg128) for generating 128.
      type: str
    kind:
      description: V(prompt), V(generation) or V(mixed).
      type: str
    n_prompt:
      description: Tokens read.
      type: int
    n_gen:
      description: Tokens generated.
      type: int
    n_depth:
      description: Tokens in the context before.
      type: int
    batch_size:
      description: Logical batch in tokens.
      type: int
    ubatch_size:
      description: Physical batch in tokens.
      type: int
    tokens_per_second:
      description: The mean over the repetitions, its spread, and each of them.
      type: dict
      contains:
        mean:
          description: The mean.
          type: float
        stddev:
          description: Standard deviation of the sample; V(null) for one repetition.
          type: float
        min:
          description: The slowest.
          type: float
        max:
          description: The fastest.
          type: float
        samples:
          description: Each repetition.
          type: list
          elements: float
build:
  description:
    - The llama.cpp build that was used, as the filter P(llama_cpp.cluster.llama_perf#filter) says it; what it does not
      say is V(null).
    - And C(patches), the names of those that role P(llama_cpp.cluster.llama_cpp#role) built it with, sorted; V(null) if
      there is no manifest beside it that tells. Builds of one commit with other patches are different builds.
  returned: always
  type: dict
  sample: {number: 1, commit: 0c1e57098, version: null, patches: [rpc-dispatcher]}
model:
  description: The model that was measured; V(null) if nothing was.
  returned: always
  type: dict
  contains:
    path:
      description: Where it is.
      type: str
    type:
      description: Upstream's description, such as V(llama 8B Q4_0).
      type: str
    size_bytes:
      description: Size of its weights.
      type: int
    n_params:
      description: Number of its parameters.
      type: int
    sha256:
      description: Digest of the file, if role P(llama_cpp.cluster.gguf_model#role) put it there; V(null) otherwise.
      type: str
workers:
  description: The workers as V(host:port), in order.
  returned: always
  type: list
  elements: str
devices:
  description: What each device held, of what M(llama_cpp.cluster.distributed_inference) says of it.
  returned: always
  type: list
  elements: dict
  sample:
    - {name: "RPC0[10.0.0.11:50052]", endpoint: "10.0.0.11:50052", layers: 17, model_buffer_mib: 2190.5}
options:
  description: What the figures depend on, as it was in effect; V(null) if nothing was measured.
  returned: always
  type: dict
  sample:
    split_mode: layer
    tensor_split: []
    n_gpu_layers: 999
    cache_type_k: f16
    cache_type_v: f16
    flash_attn: auto
    threads: 4
    repetitions: 5
comparison:
  description: What was made of the baseline; V(null) without O(baseline_path) or if it did not come to that.
  returned: always
  type: dict
  contains:
    compared:
      description: Whether the figures were compared.
      type: bool
    differences:
      description: Why they were not.
      type: list
      elements: dict
      contains:
        what:
          description: What differs.
          type: str
        baseline:
          description: Its value in the baseline.
          type: raw
        now:
          description: Its value in this run.
          type: raw
    metrics:
      description: Each test, described as in RV(tests), with both figures.
      type: list
      elements: dict
      contains:
        baseline:
          description: Tokens per second in the baseline, as C(mean), C(stddev), C(min) and C(max).
          type: dict
        now:
          description: Tokens per second in this run, likewise.
          type: dict
        change_percent:
          description: Change of the mean; below 0 is slower.
          type: float
        tolerance_percent:
          description: How much slower it may be.
          type: float
        regression:
          description: Whether it is slower than that.
          type: bool
    baseline_created:
      description: When the baseline was measured, in UTC; V(null) if there was none.
      type: str
    baseline_written:
      description: Whether the figures of this run are the baseline now.
      type: bool
    message:
      description: The outcome, in one sentence.
      type: str
wall_time_ms:
  description: From the start of the program to its end, loading included; V(null) if nothing was run.
  returned: always
  type: float
command:
  description: The command line, in check mode the one that would be run; V(null) if it did not come to that.
  returned: always
  type: list
  elements: str
failure:
  description: Why the task failed; V(null) after success.
  returned: always
  type: dict
  contains:
    kind:
      description:
        - V(regression), a test is slower than its baseline by more than is tolerated;
          V(not_compared), there is nothing to compare with, and O(baseline_required=true);
          V(baseline_invalid), the baseline cannot be read or written, or is none;
          or as M(llama_cpp.cluster.distributed_inference) says it.
      type: str
    endpoint:
      description: The worker concerned, the first if there are several; V(null) if none is known.
      type: str
    message:
      description: What happened and what to do about it. The same as RV(msg).
      type: str
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
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.record import known
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure import baseline as baselines
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure import bench as bench_of
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure import bench_figures, comparison
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.endpoint import parse_endpoints
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run import capabilities as capabilities_of
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.progress import VARIABLE, Progress, told
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.worker_run import Failure, check_model
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.worker_task import WORKER_RUN, WorkerTask


class Task(WorkerTask):
    """One call of the module."""

    def __init__(self, module: AnsibleModule, progress: Progress | None = None) -> None:
        result: dict[str, Any] = {
            "changed": False,
            "tests": [],
            "build": None,
            "model": None,
            "workers": [],
            "devices": [],
            "options": None,
            "comparison": None,
            "wall_time_ms": None,
            "command": None,
            "failure": None,
        }
        super().__init__(module, result, progress)

    def options(self) -> bench_of.Options:
        """Return what to run, or fail with the first value that cannot be."""
        given = self.module.params
        chosen: dict[str, Any] = {field.name: given[field.name] for field in fields(bench_of.Options)}
        for name in ("n_prompt", "n_gen", "n_depth", "batch_size", "ubatch_size"):
            chosen[name] = tuple(dict.fromkeys(given[name]))
        with self.refusing():
            chosen.update(
                model=str(Path(given["model"]).absolute()),
                workers=tuple(parse_endpoints(given["workers"])),
                mixed=tuple(dict.fromkeys((pair["n_prompt"], pair["n_gen"]) for pair in given["mixed"])),
                tensor_split=tuple(given["tensor_split"]),
            )
            options = bench_of.Options(**chosen)
            bench_of.check_options(options)
            baselines.check_baseline_options(
                given["baseline_path"], update=given["baseline_update"], required=given["baseline_required"]
            )
        self.result["workers"] = options.endpoints
        return options

    def bench(self) -> capabilities_of.Bench:
        """Return what the build in `bin_dir` is and can do."""
        with self.refusing():
            described = capabilities_of.describe_bench(*self.asked(*capabilities_of.BENCH_PROGRAMS))
        self.result["build"] = bench_figures.build_of(described, None)
        return described

    def baseline(self) -> baselines.Baseline | None:
        """Return the baseline that is there; fail if it is none, is missing and required, or could not be written."""
        given = self.module.params
        path: str | None = given["baseline_path"]
        if path is None:
            return None
        try:
            found = baselines.read_baseline(path)
            if found is None and given["baseline_required"]:
                message = f"There is no baseline {path} to compare with; write it by a run without baseline_required."
                self.fail(Failure("not_compared", None, message))
            if found is None or given["baseline_update"]:
                baselines.check_baseline_place(path)
        except baselines.BaselineError as error:
            self.fail(Failure("baseline_invalid", None, str(error)))
        return found

    def main(self) -> None:
        """Check, verify, run, judge, compare."""
        options = self.options()
        given = self.module.params
        with self.refusing():
            tolerance = comparison.check_tolerance(
                given["tolerance_percent"], given["prompt_tolerance_percent"], given["generation_tolerance_percent"]
            )
        baseline = self.baseline()
        bench = self.bench()
        with self.refusing():
            bench_of.check_build(options, bench)
            model_bytes = check_model(options.model)
        timeout = bench_of.time_limit(options, model_bytes)
        statuses = self.verify(options.workers, bench.protocol) if given["verify"] else []
        self.result["command"] = bench_of.build_command(bench, options, statuses)
        path = given["baseline_path"]
        writes = path is not None and (baseline is None or given["baseline_update"])
        if self.module.check_mode:
            self.result["changed"] = writes
            self.module.exit_json(**self.result)
        self.progress.begin(1, model_bytes, 0, [f"{status.address}:{status.port}" for status in statuses])
        now = self.measure(options, bench, timeout)
        if path is not None:
            self.compare(path, baseline, now, tolerance, writes=writes)
        self.module.exit_json(**self.result)

    def measure(self, options: bench_of.Options, bench: capabilities_of.Bench, timeout: int) -> baselines.Baseline:
        """Run the tests, put what they gave into the result, and return that; fail if it is not to be trusted."""
        ended, ending = self.ended(self.result["command"], timeout, options.workers)
        failure = bench_of.classify(options, ending, bench.protocol)
        lines: list[dict[str, Any]] = []
        try:
            lines = bench_figures.parse_lines(ended.stdout, whole=failure is None)
            if not lines and failure is None:
                failure = Failure("unknown", None, "llama-bench ended well and printed no result; see log_tail.")
        except bench_figures.OutputError as error:
            failure = failure or Failure("unknown", None, str(error))
        self.result.update(
            tests=bench_figures.figures_of(lines),
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
                build=bench_figures.build_of(bench, lines[0]),
                model=bench_figures.model_of(options.model, record.sha256 if record else None, lines[0]),
                options=bench_figures.options_of(options, lines[0]),
            )
        if failure:
            self.fail(failure)
        parts = {name: self.result[name] for name in ("build", "model", "workers", "options", "tests")}
        return baselines.Baseline(**parts, created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))

    def compare(
        self,
        path: str,
        baseline: baselines.Baseline | None,
        now: baselines.Baseline,
        tolerance: comparison.Tolerance,
        *,
        writes: bool,
    ) -> None:
        """Compare with the baseline, write it if that was asked for, and fail if that is what the figures call for."""
        differences = comparison.differences(baseline, now) if baseline else []
        metrics = comparison.metrics(baseline, now, tolerance) if baseline and not differences else []
        slower = comparison.regression_message(metrics, path)
        if baseline is None:
            message = f"There was no baseline {path}; it was written from this run."
        elif differences:
            message = comparison.difference_message(differences, path)
        else:
            message = slower or f"No test is slower than the baseline {path} by more than is tolerated."
        self.result["comparison"] = {
            "compared": bool(metrics),
            "differences": differences,
            "metrics": metrics,
            "baseline_created": baseline.created if baseline else None,
            "baseline_written": False,
            "message": message,
        }
        if writes:
            try:
                baselines.write_baseline(path, now)
            except baselines.BaselineError as error:
                self.fail(Failure("baseline_invalid", None, str(error)))
            self.result["comparison"]["baseline_written"] = True
            self.result["changed"] = True
        elif slower:
            self.fail(Failure("regression", None, slower))
        elif differences and self.module.params["baseline_required"]:
            self.fail(Failure("not_compared", None, message))
        elif differences:
            self.module.warn(message)


def main() -> None:
    """Declare the options and run."""
    module = AnsibleModule(
        argument_spec={
            **WORKER_RUN,
            "model": {"type": "path", "required": True},
            "n_prompt": {"type": "list", "elements": "int", "default": [512]},
            "n_gen": {"type": "list", "elements": "int", "default": [128]},
            "mixed": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "n_prompt": {"type": "int", "required": True},
                    "n_gen": {"type": "int", "required": True},
                },
            },
            "n_depth": {"type": "list", "elements": "int", "default": [0]},
            "batch_size": {"type": "list", "elements": "int", "default": [2048]},
            "ubatch_size": {"type": "list", "elements": "int", "default": [512]},
            "cache_type_k": {"type": "str", "choices": list(bench_of.CACHE_TYPES), "default": "f16"},
            "cache_type_v": {"type": "str", "choices": list(bench_of.CACHE_TYPES), "default": "f16"},
            "flash_attn": {"type": "str", "choices": ["on", "off", "auto"]},
            "split_mode": {"type": "str", "choices": ["layer", "tensor"], "default": "layer"},
            "repetitions": {"type": "int", "default": 5},
            "timeout": {"type": "int"},
            "baseline_path": {"type": "path"},
            "baseline_update": {"type": "bool", "default": False},
            "baseline_required": {"type": "bool", "default": False},
            "tolerance_percent": {"type": "float", "default": 5.0},
            "prompt_tolerance_percent": {"type": "float"},
            "generation_tolerance_percent": {"type": "float"},
        },
        supports_check_mode=True,
    )
    with told(os.environ.pop(VARIABLE, None)) as progress:
        Task(module, progress).main()


if __name__ == "__main__":
    main()
