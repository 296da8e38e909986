#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: reports the groups that a gateway sends requests to."""

from __future__ import annotations

DOCUMENTATION = r"""
module: llama_gateway_info
short_description: Show which groups a gateway sends requests to
version_added: 0.2.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Asks the HAProxy that role P(llama_cpp.cluster.llama_gateway#role) has set up on this host.
  - It never fails because of a bad gateway or group. RV(message) says what is wrong.
  - It needs root to reach HAProxy's own socket.
options:
  paths:
    description: Files that a gateway needs, see RV(missing).
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - llama_cpp.cluster.reads_only
seealso:
  - module: llama_cpp.cluster.llama_server_info
"""

EXAMPLES = r"""
- name: Read the state of the gateway
  llama_cpp.cluster.llama_gateway_info:
  become: true
  register: gateway

- name: Check that all groups take requests
  ansible.builtin.assert:
    that: gateway.healthy
    fail_msg: "{{ gateway.message }}"
"""

RETURN = r"""
running:
  description: Whether the gateway runs and answers.
  returned: success
  type: bool
healthy:
  description: Whether it runs, all groups take requests, its certificate does not expire soon, and it can take the
    virtual address if there is one.
  returned: success
  type: bool
groups:
  description: The groups behind it.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: The name of the group. It serves C(model), and has C(busy) of the C(slots) requests that it may have.
      type: str
    state:
      description:
        - "V(in): The group takes requests."
        - "V(leaving): Requests in progress may end, and no new one begins."
        - "V(drained): An operator took the group out with HAProxy's own commands."
        - "V(out): The API of the group does not serve, its host does not answer, or the playbook C(drain) stopped it."
      type: str
    reason:
      description: Why no request goes there; empty if it is V(in).
      type: str
queued:
  description: How many requests wait for each model.
  returned: success
  type: dict
  sample: {llama-70b-q4_0: 0}
certificate_days:
  description: In how many days the certificate expires; V(null) without one.
  returned: success
  type: int
outdated:
  description: What has changed since HAProxy started with it, V(unit) or V(configuration); empty if nothing has. A
    changed configuration needs a reload, and a changed unit a restart.
  returned: success
  type: str
missing:
  description: Those of O(paths) that are not there.
  returned: success
  type: list
  elements: str
message:
  description: What is wrong, or that all groups take requests.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._serve.gateway import look
from ansible_collections.llama_cpp.cluster.plugins.module_utils._serve.service import missing


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"paths": {"type": "list", "elements": "str", "default": []}}, supports_check_mode=True
    )
    module.exit_json(changed=False, missing=missing(module.params["paths"]), **look())


if __name__ == "__main__":
    main()
