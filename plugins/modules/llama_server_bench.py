#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: measures how fast a llama-server over RPC workers answers several clients."""

from __future__ import annotations

DOCUMENTATION = r"""
module: llama_server_bench
short_description: Measure how fast a llama-server over RPC workers answers several clients
version_added: 0.2.0
description:
  - Runs on the master, the host that has the model file. Starts its own C(llama-server) over the workers, on a
    loopback port and with a secret key. Sends it requests as O(clients) clients at the same time, and stops it.
  - Returns the tokens per second of all clients together, the time to the first token, and the time between two
    tokens.
  - Workers serve one master at a time, so pause a service that uses them first. The playbook C(tune) does that.
extends_documentation_fragment:
  - llama_cpp.cluster.worker_run
author: The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  clients:
    description: How many clients ask at the same time.
    type: int
    default: 4
  n_prompt:
    description:
      - How many words a prompt has, unless you set O(prompts).
      - The words are in random order, and no answer ends early.
    type: int
    default: 128
  n_gen:
    description: How many tokens of an answer are generated. With O(prompts), an answer may end earlier.
    type: int
    default: 32
  prompts:
    description: The prompts of the clients, in turn, each as the first message of a chat.
    type: list
    elements: str
    default: []
  repetitions:
    description: How often each client asks. With V(1) there is no spread.
    type: int
    default: 3
  parallel:
    description: How many slots the server has. Further clients wait.
    type: int
    default: 4
  ctx_size:
    description: Context of each slot in tokens.
    type: int
    default: 4096
  extra_args:
    description:
      - Further options of C(llama-server). An option and its value are two items.
      - The module refuses options that it sets itself, and names the option to use instead.
      - It also refuses options that the role P(llama_cpp.cluster.llama_server#role) refuses because they would log
        prompts, fetch files or open more of the API, or because they are not known.
    type: list
    elements: str
    default: []
seealso:
  - module: llama_cpp.cluster.llama_bench
  - module: llama_cpp.cluster.llama_server_info
"""

EXAMPLES = r"""
- name: Measure the answers to eight clients
  llama_cpp.cluster.llama_server_bench:
    model: /srv/models/model.gguf
    workers: [10.0.0.11, 10.0.0.12]
    clients: 8
    parallel: 8
    extra_args: [--split-mode, tensor]
  register: served

- name: Show the tokens per second of all clients
  ansible.builtin.debug:
    msg: "{{ served.tests[0].tokens_per_second.mean }}, the first after {{ served.tests[0].first_token_ms.median }} ms"
"""

RETURN = r"""
tests:
  description:
    - One entry with the figures; empty after a failure. Its C(kind) is V(serving), and C(clients) how many asked.
    - C(tokens_per_second) are the generated tokens per second of all clients together, from the first request to the
      last token, with prompts, with the keys of M(llama_cpp.cluster.llama_bench).
    - C(first_token_ms) is the time from a request to its first token, and C(between_tokens_ms) from one token of an
      answer to the next, each as C(median) and C(p95) of all requests.
  returned: always
  type: list
  elements: dict
build:
  description: The llama.cpp build that was used, in the form of M(llama_cpp.cluster.llama_bench).
  returned: always
  type: dict
model:
  description: The C(path) and the C(sha256) of the model, as in M(llama_cpp.cluster.llama_bench).
  returned: always
  type: dict
workers:
  description: The workers as V(host:port), in order.
  returned: always
  type: list
  elements: str
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
import secrets
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.record import known
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure import serving as serving_of
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.bench import build_of
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run import capabilities as capabilities_of
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.worker_run import check_model, check_split_mode
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.worker_task import WORKER_RUN, WorkerTask
from ansible_collections.llama_cpp.cluster.plugins.module_utils._serve.load import Server


class Task(WorkerTask):
    """One call of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        names = ("build", "model", "wall_time_ms", "command", "failure")
        super().__init__(module, {"changed": False, "tests": [], "workers": [], **dict.fromkeys(names)})

    def main(self) -> None:
        """Check the options, verify the workers, run, and judge the result."""
        options = self.chosen(serving_of.Options, serving_of.check_options)
        self.result["workers"] = options.endpoints
        with self.refusing():
            program = capabilities_of.describe(*self.asked(capabilities_of.SERVER_PROGRAM))
            model_bytes = check_model(options.model)
            check_split_mode(options, options.extra_args, program.protocol)
        self.result["build"] = build_of(program, None)
        timeout = serving_of.time_limit(options, model_bytes)
        statuses = self.verify(options.workers, program.protocol) if self.module.params["verify"] else []
        port = serving_of.free_port()
        self.result["command"] = serving_of.build_command(program, options, statuses, port)
        if self.module.check_mode:
            self.module.exit_json(**self.result)
        self.measure(options, program, port, timeout)
        self.module.exit_json(**self.result)

    def measure(self, options: serving_of.Options, program: capabilities_of.Program, port: int, timeout: int) -> None:
        """Run the server and the clients, and put the figures into the result; fail if there are none."""
        key = secrets.token_hex(16)
        # The key is not an argument, because every account of the host could read it.
        os.environ["LLAMA_API_KEY"] = key
        client = serving_of.Client(Server(serving_of.ADDRESS, port, key), options, timeout)
        ended, ending = self.ended(self.result["command"], timeout, options.workers, watch=client)
        self.result["wall_time_ms"] = ended.wall_time_ms
        failure = serving_of.classify(options, ending, client, program.protocol)
        self.keep_log_tail(ending, failure)
        if failure:
            self.fail(failure)
        record = known(Path(options.model))
        self.result.update(
            tests=[serving_of.figures_of(options, client.repetitions)],
            model={"path": options.model, "sha256": record.sha256 if record else None},
        )


def main() -> None:
    """Declare the options and run."""
    module = AnsibleModule(
        argument_spec={
            **WORKER_RUN,
            "clients": {"type": "int", "default": 4},
            "n_prompt": {"type": "int", "default": 128},
            "n_gen": {"type": "int", "default": 32},
            "prompts": {"type": "list", "elements": "str", "default": []},
            "repetitions": {"type": "int", "default": 3},
            "parallel": {"type": "int", "default": 4},
            "ctx_size": {"type": "int", "default": 4096},
            "extra_args": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    Task(module).main()


if __name__ == "__main__":
    main()
