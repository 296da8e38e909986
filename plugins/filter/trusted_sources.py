# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the networks of the addresses that a user wrote."""

from __future__ import annotations

import ipaddress
from typing import Any, Callable, Iterable, Union

DOCUMENTATION = r"""
name: trusted_sources
short_description: Turn trusted addresses into a list of networks
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Turns IPv4 and IPv6 addresses and CIDRs into the smallest list of CIDRs that covers the same, IPv4 first.
  - The filter does not fail for a wrong address. It returns one sentence for each, so that you can correct all of
    them at once.
options:
  _input:
    description: The addresses and CIDRs.
    type: list
    elements: str
    required: true
  allow_any:
    description: Whether all addresses (V(0.0.0.0/0) or V(::/0)) are allowed.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Show the trusted networks, here 10.0.0.10/32, 10.0.1.0/24 and fd00::10/128
  ansible.builtin.debug:
    msg: "{{ (['10.0.0.10', 'fd00::10', '10.0.1.0/24', '10.0.1.7'] | llama_cpp.cluster.trusted_sources).sources }}"
"""

RETURN = r"""
_value:
  description: C(sources), the networks as CIDRs, and C(problems), a sentence for each wrong address.
  type: dict
"""


_Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]


class _SourceError(ValueError):
    """An error whose message is one sentence that names the address."""


def _network(text: object) -> _Network:
    """Return the network that an address or CIDR stands for."""
    if not isinstance(text, str) or not text.strip():
        raise _SourceError(f"{text!r} is not an address: write an IPv4 or IPv6 address such as 10.0.0.10, or a CIDR.")
    written = text.strip()
    if "%" in written:
        raise _SourceError(f"{written} is tied to an interface: write the address without what follows the %.")
    try:
        network = ipaddress.ip_network(written, strict=False)
        address = ipaddress.ip_address(written.partition("/")[0])
    except ValueError as error:
        raise _SourceError(
            f"{written} is neither an IPv4 or IPv6 address nor a CIDR: write one such as 10.0.0.10 or 10.0.0.0/24."
        ) from error
    if address != network.network_address:
        raise _SourceError(f"{written} is a host's address with a network's mask: write {network} or {address}.")
    if network.is_multicast or (network.network_address.is_unspecified and network.prefixlen == network.max_prefixlen):
        raise _SourceError(f"{written} is the address of no single host: write that of a host or of its network.")
    if isinstance(network, ipaddress.IPv6Network) and network.network_address.ipv4_mapped:
        mapped = network.network_address.ipv4_mapped
        raise _SourceError(f"{written} is an IPv4 address in the form of an IPv6 address: write {mapped}.")
    return network


def trusted_sources(addresses: object, allow_any: bool = False) -> dict[str, list[str]]:
    """Return the smallest number of CIDRs for the trusted networks, IPv4 first, and one sentence per problem."""
    if isinstance(addresses, str) or not isinstance(addresses, Iterable):
        problem = f"{addresses!r} is not a list of addresses: write a list, such as [10.0.0.10, 10.0.1.0/24]."
        return {"sources": [], "problems": [problem]}
    networks = []
    problems = []
    for entry in addresses:
        try:
            networks.append(_network(entry))
        except _SourceError as error:
            problems.append(str(error))
    found: list[_Network] = [
        *ipaddress.collapse_addresses(one for one in networks if isinstance(one, ipaddress.IPv4Network)),
        *ipaddress.collapse_addresses(one for one in networks if isinstance(one, ipaddress.IPv6Network)),
    ]
    if not allow_any:
        # Check this after the networks are merged, because two halves of all addresses are all addresses.
        problems += [
            f"{network} covers every address, and a worker obeys anyone who reaches it: name the trusted addresses, "
            "or set rpc_firewall_allow_any_source to true."
            for network in found
            if network.prefixlen == 0
        ]
    return {"sources": [str(network) for network in found], "problems": problems}


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"trusted_sources": trusted_sources}
