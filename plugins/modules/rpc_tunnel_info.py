#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: reports the tunnel between masters and workers on a host, and the state of its links."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rpc_tunnel_info
short_description: Show the state of the tunnel between masters and workers on a host
version_added: 0.2.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Reads the state of the WireGuard interface that the role P(llama_cpp.cluster.rpc_tunnel#role) sets up on this
    host.
  - It never fails because a link is down. RV(links[].message) says what is wrong.
  - It needs root. It reads the private key and does not return it.
options:
  network:
    description: The network of the tunnel's addresses.
    type: str
    default: 10.213.0.0/16
  port:
    description: The UDP port that the tunnel should have. The module checks whether it is free. V(0) skips this check.
    type: int
    default: 0
  preshared_key:
    description: The preshared key that the links should have; empty for none. The module checks which links have it.
    type: str
    default: ""
  links:
    description: Whether to check the links to the peers. Each peer gets a ping.
    type: bool
    default: false
  wait:
    description: How many seconds to wait for the answers of the peers.
    type: float
    default: 3
extends_documentation_fragment:
  - llama_cpp.cluster.reads_only
seealso:
  - plugin: llama_cpp.cluster.tunnel_addresses
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Read the state of the links
  llama_cpp.cluster.rpc_tunnel_info:
    links: true
  become: true
  register: tunnel

- name: Check that all workers answer through the tunnel
  ansible.builtin.assert:
    that: tunnel.links | selectattr('message') | length == 0
    fail_msg: "{{ tunnel.links | map(attribute='message') | select | join(' ') }}"
"""

RETURN = r"""
kernel:
  description: Whether the kernel has WireGuard.
  returned: success
  type: bool
userspace:
  description: Whether wireguard-go is installed.
  returned: success
  type: bool
device:
  description: Whether there is C(/dev/net/tun), which wireguard-go needs.
  returned: success
  type: bool
public_key:
  description: The public key of the host; empty if it has none.
  returned: success
  type: str
new_key:
  description: Whether the interface still has the old key, because a run was killed before it used the new one.
  returned: success
  type: bool
state:
  description: V(current) if the interface matches the key and the configuration, V(outdated) if it has other keys,
    other peers or another port, V(down) if it does not exist or has another address.
  returned: success
  type: str
overlapping:
  description: Other routes of the host into O(network), and addresses there that it is connected to outside of the
    tunnel.
  returned: success
  type: list
  elements: str
port_taken:
  description: Whether another program uses O(port).
  returned: success
  type: bool
port:
  description: The port in the configuration; V(0) without one.
  returned: success
  type: int
address:
  description: The address in the configuration, with its prefix; empty without one.
  returned: success
  type: str
peers:
  description: >-
    The peers in the configuration, each with the name of its C(host), its C(public_key), its C(address) in the tunnel,
    its C(endpoint), and C(same_preshared_key), whether the link has O(preshared_key) in the configuration and in use.
  returned: success
  type: list
  elements: dict
links:
  description:
    - The links to these peers; empty without O(links). C(host), C(address) and C(endpoint) are as in RV(peers).
    - C(handshake_age_s) is how many seconds ago the last handshake was, V(null) if there was none, C(round_trip_ms) how
      long a ping took, V(null) without an answer.
    - C(received_bytes) came from the peer, and C(sent_bytes) went to it. C(through_tunnel) says whether packets to its
      address go into the tunnel, and C(connections) how many TCP connections there are to it.
  returned: success
  type: list
  elements: dict
  contains:
    message:
      description: What is wrong; empty if nothing is.
      type: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.tunnel import NETWORK, TunnelError, look


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "network": {"type": "str", "default": NETWORK},
            "port": {"type": "int", "default": 0},
            "preshared_key": {"type": "str", "default": "", "no_log": True},
            "links": {"type": "bool", "default": False},
            "wait": {"type": "float", "default": 3},
        },
        supports_check_mode=True,
    )

    def run(*command: str, given: str = "") -> str | None:
        path = module.get_bin_path(command[0])
        if path is None:
            return None
        status, out, _err = module.run_command([path, *command[1:]], data=given, environ_update={"LC_ALL": "C"})
        return str(out) if status == 0 else None

    params: dict[str, Any] = module.params
    try:
        found = look(run, **params)
    except TunnelError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
