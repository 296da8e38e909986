#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The address under which other hosts see this one."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: source_address_info
short_description: The address under which another host sees this one
version_added: 0.1.0
description:
  - Asks the kernel which source address it puts into packets for O(destination). No packet is sent, so it does not
    matter whether anything is there.
  - A translation of addresses (NAT) on the way is not seen; who sits behind one has to say what the other side sees.
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  destination:
    description: An IPv4 or IPv6 address, or a name that this host can resolve.
    type: str
    required: true
extends_documentation_fragment:
  - llama_cpp.cluster.reads_only
notes:
  - Works with Python 3.8 and newer on the host and needs nothing but its standard library.
seealso:
  - plugin: llama_cpp.cluster.trusted_sources
    plugin_type: filter
"""

EXAMPLES = r"""
- name: The address is known that this host uses towards a worker
  llama_cpp.cluster.source_address_info:
    destination: 10.0.0.11
  register: towards_worker
"""

RETURN = r"""
address:
  description: The source address of packets for O(destination).
  returned: success
  type: str
  sample: 10.0.0.10
destination:
  description: The address that O(destination) stands for here.
  returned: success
  type: str
  sample: 10.0.0.11
"""

import socket

from ansible.module_utils.basic import AnsibleModule

# The discard port: any will do, for connecting a datagram socket sends nothing.
_PORT = 9


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={"destination": {"type": "str", "required": True}}, supports_check_mode=True)
    destination = module.params["destination"]
    problem = "the name has no address"
    try:
        found = socket.getaddrinfo(destination, _PORT, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        found, problem = [], str(error)
    for family, kind, protocol, _name, address in found:
        try:
            with socket.socket(family, kind, protocol) as sock:
                sock.connect(address)
                module.exit_json(changed=False, address=sock.getsockname()[0], destination=address[0])
        except OSError as error:
            problem = str(error)
    module.fail_json(msg=f"There is no way from here to {destination} ({problem}): check the address and the routes.")


if __name__ == "__main__":
    main()
