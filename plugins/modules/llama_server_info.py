#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: reports the state of the API services of a master."""

from __future__ import annotations

DOCUMENTATION = r"""
module: llama_server_info
short_description: Show the state of the OpenAI-compatible API services of a master
version_added: 0.2.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Reads the state of the services that the role P(llama_cpp.cluster.llama_server#role) has set up on this host,
    and asks their API.
  - It never fails because of a bad service. RV(servers[].state) and RV(servers[].message) say what is wrong and
    what to do next.
  - It needs root to read a service's keys. It does not return them.
options:
  ask:
    description:
      - Whether to ask the API for its models and for one token, and to check that it refuses requests without a key. If
        not, the module only checks whether it serves.
      - If all slots are busy, the module does not ask for a token.
    type: bool
    default: true
  prompt:
    description: The text that the API continues, always with the likeliest token.
    type: str
    default: a
  n_predict:
    description: How many tokens the API generates.
    type: int
    default: 1
  timeout:
    description: How long to wait for an answer, in seconds. For generated tokens, at least a minute.
    type: float
    default: 10
  paths:
    description: Files and folders that a service needs, see RV(missing). A folder ends with C(/).
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - llama_cpp.cluster.reads_only
seealso:
  - module: llama_cpp.cluster.rpc_worker_info
"""

EXAMPLES = r"""
- name: Read the state of this master's API services
  llama_cpp.cluster.llama_server_info:
  become: true
  register: api

- name: Check that all of them serve
  ansible.builtin.assert:
    that: api.servers | rejectattr('state', 'eq', 'serving') | length == 0
    fail_msg: "{{ api.servers | map(attribute='message') | join(' ') }}"
"""

RETURN = r"""
servers:
  description:
    - The services of this host, by port, each with its systemd C(unit), its C(address) and C(port), the name of the
      model in the API as C(alias), the C(workers) that it holds or waits for, as C(host:port), and how often systemd
      has started it again by itself as C(restarts).
    - It is C(healthy) if it serves, generates a token with the key, and refuses requests without a key. Checks that
      were not made do not count. C(models) are those that the API names, C(answered) says whether it generated a token,
      C(text) how it continued O(prompt) (both V(null) if it was not asked, and C(text) if it serves only embeddings),
      and C(open_paths) which paths it wrongly answers without a key.
    - C(release) is the id of the llama.cpp release that runs, and C(load) has, while the model is loaded, C(sent_bytes)
      to workers and C(model_bytes) in all. C(plan) is the division of its model that the role has recorded, with
      C(tensor_split), and C(metrics_link) the link to its metrics in the folder of node_exporter. Each is V(null) if
      there is none.
    - C(division) has, as lists of C(host:port), the workers that are C(serving), those that are C(lost), and those that
      are C(excluded), because they were lost three times within an hour. C(spare) are ready and not used, and C(ready)
      are all that are not used and answer. C(degraded) says whether it serves without one of its workers.
    - It is C(outdated) if it started before the last change of its unit, settings, programs or keys, or runs another
      release than the current one. Keys do not count if the release reads them again by itself.
  returned: success
  type: list
  elements: dict
  contains:
    state:
      description:
        - "V(serving): The API answers."
        - "V(loading): C(llama-server) loads the model. Requests get status 503."
        - "V(waiting): A worker is not ready. No program listens on the port."
        - "V(stopped): Somebody, or a playbook, stopped the service."
        - "V(failed): systemd could not start the service."
      type: str
    message:
      description: One sentence about its state, and what to do if it does not serve. If C(llama-server) has ended since
        systemd started the service, a second one with the reason that its log gives.
      type: str
missing:
  description: Those of O(paths) that are not there.
  returned: success
  type: list
  elements: str
files_without_key:
  description: The files of keys that have no key.
  returned: success
  type: list
  elements: str
"""

from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import GgufError, model_parts
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.numbers import printable
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.watch import sent_bytes
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.worker_run import cause
from ansible_collections.llama_cpp.cluster.plugins.module_utils._serve import service as services
from ansible_collections.llama_cpp.cluster.plugins.module_utils._serve.api import Answer, Api


def load_of(service: services.Service, main_pid: int) -> dict[str, int] | None:
    """Return how much of its model a service has sent to its workers; None if that is not visible."""
    program = next(iter(services.programs_of(main_pid)), None)
    sent = None if program is None else sent_bytes(program)
    if sent is None:
        return None
    try:
        return {"sent_bytes": sent, "model_bytes": sum(part.stat().st_size for part in model_parts(service.model))}
    except (GgufError, OSError):
        return None


def why_it_ended(journal: str) -> str:
    """Return a sentence with the reason of the last llama-server that a service has run and that ended, or nothing."""
    run, ended, _rest = journal.rpartition("; its last lines are above.")
    found = cause(run.rpartition("\nLoading ")[2]) if ended else ""
    return f" llama-server has ended before: {printable(found)}." if found else ""


def journal_of(module: AnsibleModule, unit: str) -> str:
    """Return the last lines of a unit since the host's start; nothing if they cannot be read."""
    program = module.get_bin_path("journalctl")
    if program is None:
        return ""
    _code, text, _error = module.run_command([program, "-b", "-n", "500", "-o", "cat", "--no-pager", "-u", unit])
    return str(text)


def look_at(module: AnsibleModule, service: services.Service) -> dict[str, Any]:
    """Return the state of a service."""
    command = ["systemctl", "show", f"--property={','.join(services.PROPERTIES)}", service.unit]
    _code, text, _error = module.run_command(command)
    properties = services.read_properties(text)
    key = services.read_key(service.keys_file)
    answer = Answer("silent")
    if properties.get("ActiveState") in ("active", "reloading", "activating"):
        asked = {name: module.params[name] for name in ("prompt", "n_predict")}
        api = Api(service.own_address, service.port, key or "", module.params["timeout"], **asked)
        answer = api.look(ask=module.params["ask"])
    if key is None and answer.state == "serving":
        answer.problem = f"its keys in {service.keys_file} cannot be read"
    state = services.state_of(properties, answer.state)
    main_pid = int(properties.get("MainPID") or 0)
    restarts = int(properties.get("NRestarts") or 0)
    division = services.read_division(service)
    message = services.message_of(service, state, properties, asdict(answer), division)
    if restarts and state in ("waiting", "loading", "failed"):
        message += why_it_ended(journal_of(module, service.unit))
    return {
        "unit": service.unit,
        "address": service.address,
        "port": service.port,
        "alias": service.alias,
        "workers": service.workers,
        "state": state,
        "healthy": state == "serving" and not answer.problem and not answer.open_paths,
        "restarts": restarts,
        "models": answer.models,
        "answered": answer.answered,
        "text": answer.text,
        "release": services.release_of(main_pid),
        "load": load_of(service, main_pid) if state == "loading" else None,
        "outdated": services.is_outdated(service, properties),
        "plan": services.read_plan(service),
        "division": division,
        "metrics_link": services.metrics_link(service),
        "open_paths": answer.open_paths,
        "message": message,
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "ask": {"type": "bool", "default": True},
            "prompt": {"type": "str", "default": "a"},
            "n_predict": {"type": "int", "default": 1},
            "timeout": {"type": "float", "default": 10},
            "paths": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    if not 1 <= module.params["n_predict"] <= 4096:
        module.fail_json(msg=f"n_predict is {module.params['n_predict']}; give a number from 1 to 4096.")
    if not 0 < module.params["timeout"] <= 3600:
        module.fail_json(msg=f"timeout is {module.params['timeout']:g}; give seconds from more than 0 to 3600.")
    module.exit_json(
        changed=False,
        servers=[look_at(module, service) for service in services.read_services()],
        missing=services.missing(module.params["paths"]),
        files_without_key=services.files_without_key(),
    )


if __name__ == "__main__":
    main()
