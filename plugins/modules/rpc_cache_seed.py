#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: puts a model's tensors into a worker's cache before the first load."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rpc_cache_seed
short_description: Put a model's tensors into the tensor cache of a worker
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Puts the tensors of a GGUF model that a master would otherwise send into the cache of a worker. The first load
    then finds them there and does not send them over the network.
  - The model is a file on the worker's host. Tensors that the cache already has are only read, unless they are
    corrupted.
  - The module writes each tensor under another name and then renames it, so that each entry is complete. After an
    interrupted run, the next run continues with the next tensor.
  - The entries are those of llama.cpp's default split mode, C(layer). In split mode C(tensor) workers get slices of
    tensors, which are different entries. Tensors of up to 10 MiB never come from the cache.
options:
  model:
    description: The model. For a split model, its first part (C(...-00001-of-00003.gguf)).
    type: path
    required: true
  port:
    description: The port of the worker, a service of the role P(llama_cpp.cluster.rpc_server#role). Its unit says
      where its cache is.
    type: int
  folder:
    description: The folder of the entries, C($LLAMA_CACHE/rpc), of a worker that does not run as a service.
    type: path
  part:
    description: Which part of the model the worker gets, in the form of
      RV(llama_cpp.cluster.split_plan_info#module:workers); by default all of it.
    type: dict
    suboptions:
      first_layer:
        description: The first layer, from 0.
        type: int
      layers:
        description: How many layers.
        type: int
        default: 0
      has_output:
        description: Whether it computes the output.
        type: bool
        default: false
  min_free:
    description: How much of the cache's disk stays free, such as V(20G) or V(10%).
    type: str
    default: 10%
  program:
    description: The program C(rpc-cache) of the host's llama.cpp release.
    type: path
    default: /opt/llama_cpp/current/libexec/rpc-cache
attributes:
  check_mode:
    description: Reads the model and returns what would be added.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
  idempotent:
    description: Tensors that the cache has are not added again.
    support: full
notes:
  - Limit its time with the C(timeout) of the task. A disk reads some 500 MB in a second.
seealso:
  - module: llama_cpp.cluster.rpc_server_info
"""

EXAMPLES = r"""
- name: Copy the tensors of its layers to the worker
  llama_cpp.cluster.rpc_cache_seed:
    model: /srv/models/model.gguf
    port: 50052
    part: {first_layer: 0, layers: 16}
  timeout: 3600
  become: true
"""

RETURN = r"""
entries:
  description: The names of the entries, which are hashes of their contents.
  returned: success
  type: list
  elements: str
added:
  description: How many were added.
  returned: success
  type: int
added_bytes:
  description: Their bytes.
  returned: success
  type: int
replaced:
  description: How many of these replaced a damaged entry; unknown in check mode.
  returned: success
  type: int
there:
  description: How many were there.
  returned: success
  type: int
"""

import os
import pwd
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import GgufError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.cache_seed import (
    Part,
    Piece,
    counted,
    lines,
    pieces,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.units import read_cache


def main() -> None:
    """Run the module."""
    part = {
        "first_layer": {"type": "int"},
        "layers": {"type": "int", "default": 0},
        "has_output": {"type": "bool", "default": False},
    }
    module = AnsibleModule(
        argument_spec={
            "model": {"type": "path", "required": True},
            "port": {"type": "int"},
            "folder": {"type": "path"},
            "part": {"type": "dict", "options": part},
            "min_free": {"type": "str", "default": "10%"},
            "program": {"type": "path", "default": "/opt/llama_cpp/current/libexec/rpc-cache"},
        },
        required_one_of=[("port", "folder")],
        mutually_exclusive=[("port", "folder")],
        supports_check_mode=True,
    )
    program = module.params["program"]
    if not os.access(program, os.X_OK):
        module.fail_json(
            msg=f"There is no program {program}: releases that the role llama_cpp has built have it; "
            "without it, the first load fills the worker's cache."
        )
    folder = _folder(module)
    module.exit_json(**_add(module, folder, _of_model(module)))


def _of_model(module: AnsibleModule) -> list[Piece]:
    """Return the tensors of a model on this host that the worker would get."""
    params = module.params
    try:
        wanted = pieces(Path(params["model"]), Part(**params["part"]) if params["part"] else None)
    except GgufError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"{error.filename or params['model']} cannot be read as {_account()} ({error.strerror}): let it be "
            "read by that account; a network file system may refuse root."
        )
    port, size = params["port"], sum(piece.bytes for piece in wanted)
    most = ((read_cache(port) or {}) if port else {}).get("max_bytes")
    if most and size > most:
        # The next tidying would remove them again.
        module.fail_json(
            msg=f"The tensors take {size >> 20} MiB, and the worker's cache is kept to {most >> 20} MiB: raise "
            "rpc_server_cache_max there, or seed fewer layers."
        )
    return wanted


def _folder(module: AnsibleModule) -> Path:
    folder, port = module.params["folder"], module.params["port"]
    if port:
        folder = (read_cache(port) or {}).get("folder")
        if folder is None:
            module.fail_json(
                msg=f"There is no worker with a cache on port {port} of this host: "
                "install it with the role rpc_server, with rpc_server_cache_max above 0."
            )
    try:
        os.scandir(folder).close()
    except PermissionError:
        module.fail_json(msg=f"{_account()} may not read the cache {folder}: run the task with become: true.")
    except OSError:
        module.fail_json(
            msg=f"There is no folder {folder}: a worker with a cache makes it when it starts, so start the worker."
        )
    return Path(folder)


def _account() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _add(module: AnsibleModule, folder: Path, wanted: list[Piece]) -> dict[str, Any]:
    """Let rpc-cache add the missing tensors, and return what it did."""
    command = [module.params["program"], "add", str(folder), "--min-free", module.params["min_free"]]
    command += ["--check", "yes"] if module.check_mode else []
    code, said, complaint = module.run_command(command, data=lines(wanted), binary_data=True)
    result = counted(said)
    if code:
        words = complaint.strip() or f"it ended with {code}"
        module.fail_json(
            msg=f"The cache {folder} got only {result['added']} of {len(wanted)} tensors: {words}.", **result
        )
    return {**result, "changed": result["added"] > 0}


if __name__ == "__main__":
    main()
