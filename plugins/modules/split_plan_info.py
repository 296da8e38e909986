#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Divide a model among workers before it is loaded, and say whether it fits."""

from __future__ import annotations

DOCUMENTATION = r"""
module: split_plan_info
short_description: Divide a model among llama.cpp RPC workers and check whether it fits
version_added: 0.3.0
description:
  - For each worker and for the master it returns the layers, the memory that they need (weights, KV cache, compute
    buffers), and the memory that is left.
  - Asks the program C(llama-plan) of the release that will load the model (O(bin_folder)). It loads the model as that
    release would, without its weights, over servers of its own on loopback. It knows each architecture and split mode
    that the release can load. Started by root, it goes on without root's privileges and without the network.
  - Without such a release, the figures are an estimate from the model's header (RV(exact)).
  - Chooses RV(tensor_split) so that the fullest worker has as much memory left as possible. If you give
    O(tensor_split), it checks that one.
  - If the model does not fit, it returns what each host lacks, and the smallest changes with which it fits. It tries
    each change before it names it.
  - Runs on the host that has the model, reads only the header of the model, and contacts no worker.
  - The module does not fail if a model does not fit. RV(fits) and RV(message) say so.
author: The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  model:
    description: The model. For a split model, its first part (C(...-00001-of-00003.gguf)).
    type: path
    required: true
  workers:
    description: The workers, 1 to 15, in the order in which llama.cpp gets them (C(--rpc)).
    type: list
    elements: dict
    required: true
    suboptions:
      endpoint:
        description: The worker as V(host:port).
        type: str
        required: true
      memory_available_bytes:
        description:
          - The memory that its host has available (C(MemAvailable) in C(/proc/meminfo)).
          - Do not use the memory that a worker reports. CPU workers report all memory as free.
        type: int
      host:
        description: A name of its host. Workers with the same name share the memory of that host.
        type: str
      memory_max_bytes:
        description: The most memory that the worker may use (C(MemoryMax) of its service), if there is a limit.
        type: int
      devices:
        description: How many devices it has. llama.cpp gives each of them a part.
        type: int
        default: 1
  options:
    description:
      - The options with which llama.cpp will load the model. Those that change no memory are ignored.
      - Leave out C(--tensor-split), which O(tensor_split) gives, and C(--rpc).
    type: list
    elements: str
    default: []
  program:
    description: >-
      The program that will load the model. V(llama-completion) has one sequence, and may need the output of each token.
    type: str
    choices: [llama-server, llama-completion]
    default: llama-server
  bin_folder:
    description: The folder with the programs of that release, such as V(/opt/llama_cpp/current/bin); empty without one.
    type: path
    default: ""
  master_other_bytes:
    description: Other memory that the program uses on the master, such as for prompts (C(--cache-ram), there in MiB).
    type: int
    default: 0
  tensor_split:
    description: A share for each device of each worker, to be checked. If the list is empty, the module chooses them.
    type: list
    elements: float
    default: []
  fewest_workers:
    description:
      - Whether to divide the model among the fewest workers that have the memory for it, from the first one of
        O(workers). RV(spares) names the others.
      - Not with O(tensor_split), and all are used if the model does not fit.
    type: bool
    default: false
    version_added: 0.4.0
  reserve_bytes:
    description:
      - The memory that stays free on each host, for the worker's program and for everything else that runs there.
      - The greater of this and O(reserve_percent) counts.
    type: int
    default: 268435456
  reserve_percent:
    description: The memory that stays free on each host, in percent of the available memory.
    type: float
    default: 5
  master_memory_available_bytes:
    description: The memory that the master's host has available. Without it, the module shows the master's need and
      does not check it.
    type: int
  master_host:
    description: The O(workers[].host) that is also the master. The master's need is then taken from that host's memory.
    type: str
  variables_of:
    description: Whose variables RV(message) names in the changes that help. They are the options of this module, or
      variables of a role or of the playbook V(size).
    type: str
    choices: [module, inference, llama_server, kubernetes, size]
    default: module
extends_documentation_fragment:
  - llama_cpp.cluster.reads_only
notes:
  - The module does not count checkpoints of a context (C(--ctx-checkpoints)), which C(llama-server) makes for models
    with sliding windows or recurrent layers while it serves, nor pictures while they are unpacked. A projector's buffer
    is that of the picture with which llama.cpp begins. For larger pictures it grows.
  - Weights that llama.cpp leaves in the file (C(--mmap)) count as memory of the master, because they are read for each
    token.
"""

EXAMPLES = r"""
- name: Divide the model between two hosts
  llama_cpp.cluster.split_plan_info:
    model: /srv/models/model.gguf
    bin_folder: /opt/llama_cpp/current/bin
    options: [--ctx-size, 8192, --parallel, 4]
    workers:
      - endpoint: 192.0.2.11:50052
        memory_available_bytes: 16000000000
      - endpoint: 192.0.2.12:50052
        memory_available_bytes: 8000000000
  register: plan

- name: Check that the model fits
  ansible.builtin.assert:
    that: plan.fits
    fail_msg: "{{ plan.message }}"
"""

RETURN = r"""
fits:
  description: Whether each host has enough memory with its reserve left free, and each worker gets a layer.
  returned: success
  type: bool
message:
  description: The result, with what is missing and what would help, or with the host that could hold the model alone.
  returned: success
  type: str
  sample: It fits; the least room is left on 192.0.2.12:50052, 2.9 GiB.
tensor_split:
  description:
    - The value for llama.cpp's C(--tensor-split), in the order of O(workers). If the module chose it, it contains the
      number of layers of each device, where the output counts as one. llama.cpp's rounding reproduces these exactly.
    - In split mode C(tensor), it contains shares, and each worker has a part of each layer.
    - Empty if there are more workers than layers.
  returned: success
  type: list
  elements: float
  sample: [22, 11]
ctx_size:
  description: The context that is planned for.
  returned: success
  type: int
layers:
  description: The layers of the model, without the output.
  returned: success
  type: int
workers:
  description:
    - What each worker gets; empty if there are more workers than layers. Its C(endpoint), its C(first_layer), from 0
      (V(null) if it gets none), its C(layers) without the output, and C(has_output), whether it computes that.
    - C(weights_bytes) is what llama.cpp's log calls its model buffer, C(kv_bytes) its KV buffer, with the states of
      recurrent layers, C(compute_bytes) its compute buffer, and C(total_bytes) all three.
    - C(memory_available_bytes) is what it can use. Workers of one O(workers[].host) have equal parts of the host's
      memory. C(reserve_bytes) of it stay free, and C(headroom_bytes) are left beyond that; negative if memory is
      missing.
  returned: success
  type: list
  elements: dict
master:
  description:
    - What the master holds itself (the token embedding, buffers, and layers that do not go to workers), with the keys
      of RV(workers); V(null) if there are more workers than layers.
    - The first C(layers) stay there. C(compute_bytes) has the output buffers too, and C(other_bytes) all of a draft
      model and a projector that are on the master, and O(master_other_bytes).
    - The values for available memory are V(null) without O(master_memory_available_bytes). On a worker's host,
      C(reserve_bytes) is V(0), because the worker's reserve counts.
  returned: success
  type: dict
spares:
  description: The workers (C(host:port)) that the model does not need, with O(fewest_workers).
  returned: success
  type: list
  elements: str
arguments:
  description: The options of this task, with which the same plan can be made again.
  returned: success
  type: dict
exact:
  description: Whether the release said it. If not, it is an estimate, and RV(notes) says why.
  returned: success
  type: bool
suggestions:
  description:
    - The smallest change of each C(kind) with which the model fits. Each was tried. Kinds that cannot help are missing.
      If no change alone is enough, up to three pairs of changes.
    - The kinds are V(tensor_split) (do not set it), V(prompts), V(context), V(parallel), V(cache_type), V(speculation)
      and V(projector) (leave it out), V(workers), V(quantisation), and V(pair), which has two of them.
    - C(message) is the change in words, with its value, and with the variables of O(variables_of). C(ctx_size) is the
      context after it, C(parallel) the slots, and C(workers) how many more workers there are, each with the memory of
      the largest one.
  returned: success
  type: list
  elements: dict
notes:
  description: A sentence for each thing that is not as in llama.cpp.
  returned: success
  type: list
  elements: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import GgufError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.asking import plan_of
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.hints import TYPED
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.inputs import SplitError

WORKER: dict[str, dict[str, Any]] = {
    "endpoint": {"type": "str", "required": True},
    "memory_available_bytes": {"type": "int"},
    "host": {"type": "str"},
    "memory_max_bytes": {"type": "int"},
    "devices": {"type": "int", "default": 1},
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "model": {"type": "path", "required": True},
            "workers": {"type": "list", "elements": "dict", "required": True, "options": WORKER},
            "options": {"type": "list", "elements": "str", "default": []},
            "program": {"type": "str", "choices": ["llama-server", "llama-completion"], "default": "llama-server"},
            "bin_folder": {"type": "path", "default": ""},
            "master_other_bytes": {"type": "int", "default": 0},
            "tensor_split": {"type": "list", "elements": "float", "default": []},
            "fewest_workers": {"type": "bool", "default": False},
            "reserve_bytes": {"type": "int", "default": 268435456},
            "reserve_percent": {"type": "float", "default": 5},
            "master_memory_available_bytes": {"type": "int"},
            "master_host": {"type": "str"},
            "variables_of": {"type": "str", "choices": list(TYPED), "default": "module"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        result = plan_of(params)
    except (GgufError, SplitError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or params['model']} cannot be read: {error.strerror}.")
    module.exit_json(changed=False, arguments=params, **result)


if __name__ == "__main__":
    main()
