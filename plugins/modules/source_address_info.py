#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: finds the address under which other hosts see this one."""

from __future__ import annotations

DOCUMENTATION = r"""
module: source_address_info
short_description: Find the address under which another host sees this one
version_added: 0.1.0
description:
  - Asks the kernel which source address it uses for packets to each of O(destinations). It sends no packet, so the
    destinations need not exist.
  - It does not detect address translation (NAT) on the way. Behind NAT you have to configure the address that the
    other side sees.
author: The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  destinations:
    description: IPv4 or IPv6 addresses, or names that this host can resolve.
    type: list
    elements: str
    required: true
extends_documentation_fragment:
  - llama_cpp.cluster.reads_only
notes:
  - The module does not fail if there is no route to a destination. RV(addresses[].message) says so.
seealso:
  - plugin: llama_cpp.cluster.trusted_sources
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Find this host's source addresses for two workers
  llama_cpp.cluster.source_address_info:
    destinations: [10.0.0.11, 10.0.1.11]
  register: towards_workers
"""

RETURN = r"""
addresses:
  description: What was found for each of O(destinations), in their order.
  returned: success
  type: list
  elements: dict
  contains:
    destination:
      description: The destination as it was given.
      type: str
    address:
      description: The source address of packets for it; V(null) if there is no route to it.
      type: str
    message:
      description: One sentence about why there is none; V(null) if there is one.
      type: str
"""

import socket
from typing import Any

from ansible.module_utils.basic import AnsibleModule

# The discard port. Any port works, because connecting a datagram socket sends nothing.
_PORT = 9


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"destinations": {"type": "list", "elements": "str", "required": True}}, supports_check_mode=True
    )
    module.exit_json(changed=False, addresses=[_towards(destination) for destination in module.params["destinations"]])


def _towards(destination: str) -> dict[str, Any]:
    problem = "the name has no address"
    try:
        found = socket.getaddrinfo(destination, _PORT, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        found, problem = [], str(error)
    for family, kind, protocol, _name, address in found:
        try:
            with socket.socket(family, kind, protocol) as sock:
                sock.connect(address)
                return {"destination": destination, "address": sock.getsockname()[0], "message": None}
        except OSError as error:
            problem = str(error)
    message = f"There is no route from this host to {destination} ({problem}): check the address and the routes."
    return {"destination": destination, "address": None, "message": message}


if __name__ == "__main__":
    main()
