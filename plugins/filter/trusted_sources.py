# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: addresses that a person wrote, as the networks they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.trusted_sources import normalise

if TYPE_CHECKING:
    from collections.abc import Callable

DOCUMENTATION = r"""
name: trusted_sources
short_description: Trusted addresses as the networks they stand for
version_added: 0.1.0
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Turns IPv4 and IPv6 addresses and CIDRs into the smallest list of CIDRs that covers the same, IPv4 first.
  - What is wrong is returned rather than raised, one sentence for each address, so that all can be mended at once.
options:
  _input:
    description: The addresses and CIDRs.
    type: list
    elements: str
    required: true
  allow_any:
    description: Whether all addresses (V(0.0.0.0/0) or V(::/0)) are a fair answer.
    type: bool
    default: false
seealso:
  - module: llama_cpp.cluster.source_address_info
"""

EXAMPLES = r"""
- name: What is trusted is shown, here 10.0.0.10/32, 10.0.1.0/24 and fd00::10/128
  ansible.builtin.debug:
    msg: "{{ (['10.0.0.10', 'fd00::10', '10.0.1.0/24', '10.0.1.7'] | llama_cpp.cluster.trusted_sources).sources }}"
"""

RETURN = r"""
_value:
  description: The networks, and what is wrong.
  type: dict
  contains:
    sources:
      description: The networks as CIDRs.
      type: list
      elements: str
      sample: [10.0.0.10/32, 10.0.1.0/24, "fd00::10/128"]
    problems:
      description: One sentence for each address that is none; empty if all is well.
      type: list
      elements: str
      sample: []
"""


def trusted_sources(addresses: object, allow_any: bool = False) -> dict[str, list[str]]:
    """Return the networks and what is wrong."""
    sources, problems = normalise(addresses, allow_any)
    return {"sources": sources, "problems": problems}


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return them by name."""
        return {"trusted_sources": trusted_sources}
