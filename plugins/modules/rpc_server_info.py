#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: who listens on the RPC ports of this host, and whom it serves."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rpc_server_info
short_description: Who listens on the RPC ports of a host, and whom it serves
version_added: 0.1.0
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Says which process and which systemd unit listen on each port, and which clients are connected, from C(/proc) alone.
  - No connection is made. That matters, since each connection to a worker that serves a client waits in its queue until
    that client is gone.
  - What a worker answers is the business of M(llama_cpp.cluster.rpc_worker_info).
options:
  ports:
    description: The TCP ports.
    type: list
    elements: int
    required: true
attributes:
  check_mode:
    support: full
    description: Reads only, so it does the same in check mode.
  diff_mode:
    support: none
    description: There is nothing to show a difference of.
  idempotent:
    support: full
    description: Changes nothing.
notes:
  - Without root, processes of other users are not known; what is not known is V(null).
  - Only the network namespace of the module itself is seen, not that of a container.
seealso:
  - module: llama_cpp.cluster.rpc_worker_info
"""

EXAMPLES = r"""
- name: The worker's clients are known
  llama_cpp.cluster.rpc_server_info:
    ports: [50052]
  register: worker
  become: true

- name: Nobody is using the worker
  ansible.builtin.assert:
    that: worker.servers[0].clients | length == 0
    fail_msg: "The worker serves {{ worker.servers[0].clients | join(', ') }}."
"""

RETURN = r"""
servers:
  description: What is going on at each of O(ports), in their order.
  returned: success
  type: list
  elements: dict
  contains:
    port:
      description: The port.
      type: int
      sample: 50052
    listeners:
      description: The sockets that listen on it; there can be one for each address.
      type: list
      elements: dict
      contains:
        address:
          description: The address that it is bound to.
          type: str
          sample: 10.0.0.11
        pid:
          description: The process.
          type: int
          sample: 4711
        program:
          description: The path of its program.
          type: str
          sample: /opt/llama_cpp/releases/0.3.36-0c1e57098-5f2c/bin/rpc-server
        unit:
          description: The systemd service that it belongs to; V(null) if it belongs to none.
          type: str
          sample: llama-rpc-server@50052.service
        unit_digest:
          description: The value of E(LLAMA_CPP_CLUSTER_UNIT) in the environment of the process, with which the role
            P(llama_cpp.cluster.rpc_server#role) tells whether the process was started from the present unit.
          type: str
          sample: 3f786850e387550f
    clients:
      description: Connections that the server has accepted, each as C(address:port).
      type: list
      elements: str
      sample: ["10.0.0.10:41324"]
    waiting:
      description: Connections that the server has not accepted yet, each as C(address:port). A worker serves one client
        at a time.
      type: list
      elements: str
      sample: []
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._listeners import look_at_ports


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"ports": {"type": "list", "elements": "int", "required": True}},
        supports_check_mode=True,
    )
    wrong = [port for port in module.params["ports"] if not 1 <= port <= 65535]
    if wrong:
        module.fail_json(msg=f"ports: {wrong[0]} is not a number from 1 to 65535")
    module.exit_json(changed=False, servers=[port.as_dict() for port in look_at_ports(module.params["ports"])])


if __name__ == "__main__":
    main()
