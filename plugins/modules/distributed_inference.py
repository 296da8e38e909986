#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: generates text with a model that is spread over RPC workers."""

from __future__ import annotations

DOCUMENTATION = r"""
module: distributed_inference
short_description: Generate text with a model that is divided among llama.cpp RPC workers
version_added: 0.1.0
description:
  - Runs on the master, the host that has the model file. Continues a prompt once with C(llama-completion), with the
    layers of the model on RPC workers, and returns the text and the performance figures.
  - Checks that every worker took part. If a worker held no part of the model, the run has failed, even if the
    program exits with 0.
  - About every ten seconds, shows one line with the host, the elapsed time, the phase (verifying, loading the model,
    reading the prompt, generating), how much of the model is loaded or of the text is generated (at least), and an
    estimate of the time that the phase still takes.
  - Shows nothing with C(async), in check mode, in the program C(ansible), or if the callback (C(stdout_callback)) is
    not known to be for people.
  - llama.cpp builds since 2026 can exit before they have written their last lines. The module then repeats the run,
    at most five times and within O(timeout). It never returns a text that may be truncated.
extends_documentation_fragment:
  - llama_cpp.cluster.worker_run
author: The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  prompt:
    description:
      - Text to continue. It is taken as it is, without a chat template and without escape sequences.
      - It is an argument of the program, so other users of the master can see it in the list of processes, unless it
        is longer than 100 kB.
    type: str
    required: true
  n_predict:
    description: How many tokens to generate. The text is shorter if the model ends it earlier.
    type: int
    default: 64
  ctx_size:
    description:
      - The length of the context in tokens, for prompt and generated text together. V(0) means the length that the
        model was trained with.
      - It determines how much memory workers need besides the weights.
    type: int
    default: 2048
  seed:
    description: Seed of the sampler. V(-1) takes a new one each time.
    type: int
    default: 1
  temperature:
    description: The sampling temperature. V(0) always takes the likeliest token.
    type: float
    default: 0.0
  extra_args:
    description:
      - More arguments for the program. They are passed on unchanged, after all others.
      - The module refuses arguments that it sets itself, and names the option to use instead.
    type: list
    elements: str
    default: []
  stall_timeout:
    description:
      - The module ends the run after so many seconds without any progress. Progress is output, data to or from a
        worker, or work of the master. So the module notices a worker that hangs before O(timeout).
      - It notices a worker whose host has disappeared after half a minute anyway, because the kernel probes the
        connection (Linux 5.6 or later).
      - By default 120 s, plus one second for each 40 bytes of the prompt, of which no more than 8192 count. For a
        model of more than 4 GB it is longer in proportion.
    type: int
attributes:
  idempotent:
    description: The module changes no host. The text is the same with O(temperature=0), or with a fixed O(seed).
seealso:
  - module: llama_cpp.cluster.rpc_worker_info
"""

EXAMPLES = r"""
- name: Continue a prompt over two workers
  llama_cpp.cluster.distributed_inference:
    model: /srv/models/model.gguf
    prompt: "Here's a knock knock joke for children:"
    workers:
      - 10.0.0.11
      - 10.0.0.12:50052
  register: inference

- name: Show the text
  ansible.builtin.debug:
    var: inference.text
"""

RETURN = r"""
text:
  description:
    - The generated text, without the prompt. After a failure, the text that was generated until then.
    - V(null) if no program was run.
  returned: always
  type: str
perf:
  description:
    - llama.cpp's own performance figures, as the filter P(llama_cpp.cluster.llama_perf#filter) finds them in its log.
    - A figure that llama.cpp did not report is V(null).
  returned: always
  type: dict
devices:
  description:
    - The layers and buffers of each device, from the same log. C(endpoint) is V(null) for devices of the master.
    - C(layers) counts the output too. If the log does not say it, it is computed as llama.cpp divides the layers. It is
      V(null) in split mode C(tensor), which gives each worker a part of each layer.
  returned: always
  type: list
  elements: dict
offload:
  description:
    - How many layers were offloaded, and how many there are. The output layer counts in both.
    - V(null) if the log does not say.
  returned: always
  type: dict
  sample: {layers: 33, layers_total: 33}
build:
  description: The llama.cpp build that ran, from the same log. V(null) if the log does not say.
  returned: always
  type: dict
  sample: {number: 1, commit: 0c1e57098, version: null}
wall_time_ms:
  description:
    - The time from the start of the program to its end, loading included. After several attempts, that of the last.
    - V(null) if no program was run.
  returned: always
  type: float
attempts:
  description: How often the program was run. It is more than 1 if the last lines of an attempt were lost.
  returned: always
  type: int
command:
  description:
    - The command line. In check mode, the one that would be run.
    - V(null) if the module failed before.
  returned: always
  type: list
  elements: str
failure:
  description: Why there is no reliable result. V(null) after success.
  returned: always
  type: dict
  contains:
    kind:
      description:
        - "V(worker_unreachable): No RPC server answers at the endpoint."
        - "V(worker_busy): Another client holds the worker."
        - "V(worker_lost): The connection to a worker broke during the run."
        - "V(worker_dropped): llama.cpp continued without a worker, which held no part of the model."
        - "V(protocol_mismatch): A worker and the master have different llama.cpp releases."
        - "V(out_of_memory): A worker or the master could not allocate its part."
        - "V(model_invalid): The model is missing, damaged, or of an unknown kind."
        - "V(option_rejected): The module or llama.cpp refused an option, or cannot use it with this model."
        - "V(split_mode_unsupported): llama.cpp cannot divide this model among workers in this split mode."
        - "V(timed_out): The run reached its time limit, or it made no progress."
        - "V(binary_missing): No llama.cpp program can run on the master."
        - "V(engine_assertion): llama.cpp ended itself, because a condition of its code does not hold."
        - "V(unknown): The program failed with a message that the module does not know."
      type: str
    endpoint:
      description: The worker concerned, or the first of several. V(null) if none is known.
      type: str
    message:
      description: What happened and what to do about it. The same as RV(msg).
      type: str
log_tail:
  description: The last lines of llama.cpp's log.
  returned: when the program was run and failed
  type: list
  elements: str
msg:
  description: What happened and what to do about it.
  returned: on failure
  type: str
"""

import math
import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.progress import VARIABLE
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run import capabilities as capabilities_of
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run import inference
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.progress import Progress, progress_in
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.worker_run import (
    Failure,
    check_model,
    check_split_mode,
    divided_by,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.worker_task import WORKER_RUN, WorkerTask

# Short runs over loopback lose their last lines in 1 of 100 runs on an idle master, and in 1 of 2 to 6 runs on a master
# whose cores each run two other programs.
REPETITIONS = 5


class Task(WorkerTask):
    """One call of the module."""

    def __init__(self, module: AnsibleModule, progress: Progress | None = None) -> None:
        names = ("text", "perf", "offload", "build", "wall_time_ms", "command", "failure")
        super().__init__(module, {"changed": False, "devices": [], "attempts": 0, **dict.fromkeys(names)}, progress)
        self.model_bytes = 0

    def capabilities(self) -> capabilities_of.Program:
        """Return the identity and the capabilities of the build in `bin_folder`."""
        with self.refusing():
            described = capabilities_of.describe(*self.asked(capabilities_of.COMPLETION_PROGRAM))
        self.result["build"] = {
            "number": described.build_number,
            "commit": described.commit,
            "version": described.version,
        }
        return described

    def prompt_file(self, prompt: str) -> str | None:
        """Return the path of a temporary file with the prompt if it is too long for a command line, else None."""
        data = prompt.encode()
        if len(data) <= inference.MAX_PROMPT_ARGUMENT_BYTES:
            return None
        path = Path(self.module.tmpdir) / "prompt"
        path.write_bytes(data)
        return str(path)

    def main(self) -> None:
        """Check the options, verify the workers, run, and judge the result."""
        options = self.chosen(inference.Options, inference.check_options)
        capabilities = self.capabilities()
        with self.refusing():
            inference.check_extra_args(options.extra_args, capabilities)
            self.model_bytes = check_model(options.model)
            check_split_mode(options, options.extra_args, capabilities.protocol)
        timeout = inference.time_limit(options, self.model_bytes)
        statuses = self.verify(options.workers, capabilities.protocol) if self.module.params["verify"] else []
        self.shares = divided_by(options, statuses)
        command = inference.build_command(capabilities, options, statuses, self.prompt_file(options.prompt))
        self.result["command"] = command
        if self.module.check_mode:
            self.module.exit_json(**self.result)
        failure = self.attempt(options, capabilities, command, timeout)
        left_s = float(timeout)
        for _repetition in range(REPETITIONS):
            taken_s = self.result["wall_time_ms"] / 1000
            left_s -= taken_s
            if not inference.output_lost(failure, self.result["perf"]) or left_s <= taken_s:
                break
            before, failed_before = dict(self.result), failure
            failure = self.attempt(options, capabilities, command, math.ceil(left_s))
            if failure and not failed_before:
                # The earlier run gave a complete text: do not discard it for the sake of the figures.
                self.result, failure = {**before, "attempts": self.result["attempts"]}, None
                break
        if failure:
            self.fail(failure)
        self.module.exit_json(**self.result)

    def attempt(
        self,
        options: inference.Options,
        capabilities: capabilities_of.Program,
        command: list[str],
        timeout: int,
    ) -> Failure | None:
        """Run once, put the output into the result, and return the failure, if any."""
        self.progress.begin(self.result["attempts"] + 1, self.model_bytes, options.n_predict)
        still_s = inference.stall_limit(options, self.model_bytes)
        ended, ending = self.ended(command, timeout, options.workers, still_s)
        self.result["attempts"] += 1
        self.result.update(
            text=inference.generated_text(ended.stdout),
            perf=ending.log["perf"],
            devices=ending.log["devices"],
            offload=ending.log["offload"],
            wall_time_ms=ended.wall_time_ms,
        )
        failure = inference.classify(options, ending, capabilities.protocol)
        self.keep_log_tail(ending, failure)
        return failure


def main() -> None:
    """Declare the options and run."""
    module = AnsibleModule(
        argument_spec={
            **WORKER_RUN,
            "prompt": {"type": "str", "required": True},
            "n_predict": {"type": "int", "default": 64},
            "ctx_size": {"type": "int", "default": 2048},
            "seed": {"type": "int", "default": 1},
            "temperature": {"type": "float", "default": 0.0},
            "extra_args": {"type": "list", "elements": "str", "default": []},
            "stall_timeout": {"type": "int"},
        },
        supports_check_mode=True,
    )
    with progress_in(os.environ.pop(VARIABLE, None)) as progress:
        Task(module, progress).main()


if __name__ == "__main__":
    main()
