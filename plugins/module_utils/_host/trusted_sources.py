# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: which addresses are trusted, from what a person wrote."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Union

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]


class SourceError(ValueError):
    """One sentence that names the address."""


def parse_source(text: object) -> Network:
    """Return the network that an address or CIDR stands for."""
    if not isinstance(text, str) or not text.strip():
        raise SourceError(f"{text!r} is no address: write an IPv4 or IPv6 address such as 10.0.0.10, or a CIDR.")
    written = text.strip()
    if "%" in written:
        raise SourceError(f"{written} is tied to an interface: write the address without what follows the %.")
    try:
        network = ipaddress.ip_network(written, strict=False)
        address = ipaddress.ip_address(written.partition("/")[0])
    except ValueError as error:
        raise SourceError(
            f"{written} is neither an IPv4 or IPv6 address nor a CIDR: write one such as 10.0.0.10 or 10.0.0.0/24."
        ) from error
    if address != network.network_address:
        raise SourceError(f"{written} is a host's address with a network's mask: write {network} or {address}.")
    if network.is_multicast or (network.network_address.is_unspecified and network.prefixlen == network.max_prefixlen):
        raise SourceError(f"{written} is the address of no single host: write that of a host or of its network.")
    if isinstance(network, ipaddress.IPv6Network) and network.network_address.ipv4_mapped:
        raise SourceError(f"{written} is an IPv4 address in IPv6 clothes: write {network.network_address.ipv4_mapped}.")
    return network


def normalise(entries: object, allow_any: bool = False) -> tuple[list[str], list[str]]:
    """Return the trusted networks as CIDRs, smallest number of them, IPv4 first, and one sentence per problem."""
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        return [], [f"{entries!r} is no list of addresses: write a list, such as [10.0.0.10, 10.0.1.0/24]."]
    networks = []
    problems = []
    for entry in entries:
        try:
            networks.append(parse_source(entry))
        except SourceError as error:
            problems.append(str(error))
    found: list[Network] = [
        *ipaddress.collapse_addresses(one for one in networks if isinstance(one, ipaddress.IPv4Network)),
        *ipaddress.collapse_addresses(one for one in networks if isinstance(one, ipaddress.IPv6Network)),
    ]
    if not allow_any:
        # Looked at last: two halves of all addresses are all addresses.
        problems += [
            f"{network} is every address there is, and a worker does what anyone who reaches it says: write who is "
            "trusted, or set rpc_firewall_allow_any_source to true."
            for network in found
            if network.prefixlen == 0
        ]
    return [str(network) for network in found], problems
