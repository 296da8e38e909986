#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: reports the state of the RPC workers of a cluster."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rpc_worker_info
short_description: Check llama.cpp RPC workers over their own protocol
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Connects to each endpoint, does the handshake of the llama.cpp RPC protocol, and reports the protocol version, the
    devices and their memory.
  - It never fails because of a bad worker. RV(workers[].state) and RV(workers[].message) say what is wrong and what
    to do next.
  - It checks all endpoints at the same time, so it takes little more than O(timeout), even if many do not answer.
  - It works on any host that the workers admit. Run it on the master, because that is the host that uses the
    workers.
options:
  endpoints:
    description:
      - The workers, each as C(host) or C(host:port), with a host name or an IPv4 address. The default port is
        50052.
      - llama.cpp's RPC does not support IPv6.
    type: list
    elements: str
    required: true
  timeout:
    description:
      - How long to wait for each endpoint, including name resolution, in seconds.
      - More than 0, and at most 3600.
    type: float
    default: 5
  expected_protocol:
    description:
      - The protocol version that workers must have, or its first parts, such as V(7), V(7.0) or V(7.0.0).
      - A worker with another version is V(incompatible). Without this option, the module accepts every version.
      - Write it in quotes, or YAML reads it as a number.
    type: str
  wait:
    description: How many seconds, from 0 to 3600, to wait for workers that are not ready. The module checks them every
      second, and stops as soon as all workers are ready.
    type: float
    default: 0
extends_documentation_fragment:
  - llama_cpp.cluster.reads_only
notes:
  - It is safe on a cluster that serves. A worker serves one client at a time. If a client holds it, the module reports
    V(busy) and does not disturb it.
  - Each check of a worker that a client holds takes one of the two places in the worker's queue of waiting clients,
    until that client is done. From the third check on, the worker's kernel no longer answers. From another host this
    looks like a firewall that drops packets, so the worker is then V(unreachable), and the message names both causes.
    On the worker's own host the module asks the kernel, and the worker stays V(busy).
  - If a name has several addresses, the module tries each in turn within the time-out. llama.cpp itself tries only the
    first one. The message says so if it matters.
  - Understands protocol 2.0 and later. Warns of a worker with a newer protocol than this collection is tested with.
seealso:
  - plugin: llama_cpp.cluster.rpc_endpoints
    plugin_type: filter
    description: Makes the list of endpoints from the inventory.
"""

EXAMPLES = r"""
- name: Ask the workers of the inventory
  llama_cpp.cluster.rpc_worker_info:
    endpoints: "{{ groups['llama_workers'] | llama_cpp.cluster.rpc_endpoints(hostvars) }}"
    expected_protocol: "8.0"
  register: cluster

- name: Check that all workers are ready
  ansible.builtin.assert:
    that: cluster.all_ready
    fail_msg: "{{ cluster.workers | rejectattr('state', 'eq', 'ready') | map(attribute='message') | join(' ') }}"
"""

RETURN = r"""
workers:
  description: What was found at each endpoint, in the order of O(endpoints).
  returned: success
  type: list
  elements: dict
  contains:
    endpoint:
      description: The endpoint, always with its port.
      type: str
    host:
      description: The host part of the endpoint, as given.
      type: str
    port:
      description: The port.
      type: int
    address:
      description: The IPv4 address that was used; V(null) if the name could not be resolved.
      type: str
    state:
      description:
        - "V(ready): The worker answered, and can be used."
        - "V(busy): The worker accepts connections but does not answer, because a client holds it. This is usually the
          master of its own group, and then the worker is healthy."
        - "V(refused): The host answers, but no program listens on the port."
        - "V(unreachable): No connection within the time-out. The host is down, there is no route, or a firewall drops
          packets."
        - "V(unresolved): The name has no IPv4 address."
        - "V(not_rpc): Something other than an RPC worker answers."
        - "V(incompatible): The worker speaks another protocol than O(expected_protocol)."
      type: str
    reachable:
      description: Whether a connection was made.
      type: bool
    protocol:
      description: The protocol that the worker speaks; V(null) if it did not say.
      type: dict
      sample: {version: 7.0.0, major: 7, minor: 0, patch: 0}
    devices:
      description:
        - The devices that the worker offers, numbered from 0; empty unless RV(workers[].state) is V(ready).
        - Workers that compute on the CPU report all of their memory as free.
      type: list
      elements: dict
      sample:
        - {index: 0, memory_free_bytes: 67430023168, memory_total_bytes: 67430023168}
    message:
      description: One sentence that tells what to do next.
      type: str
all_ready:
  description: Whether every worker is V(ready).
  returned: success
  type: bool
counts:
  description: How many workers are in each state.
  returned: success
  type: dict
  sample: {"ready": 1, "busy": 0, "refused": 1, "unreachable": 0, "unresolved": 0, "not_rpc": 0, "incompatible": 0}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.endpoint import EndpointError, parse_endpoints
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.prober import probe_until_ready
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.protocol import (
    ProtocolVersionError,
    parse_protocol,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.sentences import newer_than_tested
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.worker_status import summarize


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "endpoints": {"type": "list", "elements": "str", "required": True},
            "timeout": {"type": "float", "default": 5},
            "expected_protocol": {"type": "str"},
            "wait": {"type": "float", "default": 0},
        },
        supports_check_mode=True,
    )
    timeout = module.params["timeout"]
    expected = module.params["expected_protocol"]
    if not module.params["endpoints"]:
        module.fail_json(msg="endpoints is empty: name at least one worker as host or host:port")
    if not 0 < timeout <= 3600:
        module.fail_json(
            msg=f"timeout is {timeout:g}: give the seconds to wait for each endpoint, above 0, at most 3600"
        )
    wait = module.params["wait"]
    if not 0 <= wait <= 3600:
        module.fail_json(msg=f"wait is {wait:g}: give the seconds to wait until all are ready, 0 to 3600")
    try:
        endpoints = parse_endpoints(module.params["endpoints"])
        if expected is not None:
            parse_protocol(expected)
    except EndpointError as error:
        module.fail_json(msg=str(error))
    except ProtocolVersionError as error:
        module.fail_json(msg=f"expected_protocol: {error}")
    statuses = probe_until_ready(endpoints, timeout, expected, wait)
    for warning in newer_than_tested(statuses):
        module.warn(warning)
    module.exit_json(changed=False, **summarize(statuses))


if __name__ == "__main__":
    main()
