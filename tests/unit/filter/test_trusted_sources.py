# SPDX-License-Identifier: GPL-3.0-or-later
"""The trusted sources are those that a user wrote, or the user is told what is wrong with them."""

from __future__ import annotations

import pytest
from ansible_collections.llama_cpp.cluster.plugins.filter.trusted_sources import FilterModule

trusted_sources = FilterModule().filters()["trusted_sources"]

GOOD = {
    "one-address": (["10.0.0.10"], ["10.0.0.10/32"]),
    "network": (["10.0.1.0/24"], ["10.0.1.0/24"]),
    "network-by-mask": (["10.0.1.0/255.255.255.0"], ["10.0.1.0/24"]),
    "ipv6-in-its-short-form-and-last": (["FD00:0:0::0010", "10.0.0.10"], ["10.0.0.10/32", "fd00::10/128"]),
    "twice-is-once": (["10.0.0.10", "10.0.0.10/32"], ["10.0.0.10/32"]),
    "address-of-a-network-that-is-trusted": (["10.0.1.7", "10.0.1.0/24"], ["10.0.1.0/24"]),
    "blanks-around": ([" 10.0.0.10 "], ["10.0.0.10/32"]),
    "nobody": ([], []),
}
BAD = {
    "part-too-large": (["10.0.0.300"], "10.0.0.300 is neither"),
    "name": (["master.lan"], "master.lan is neither"),
    "leading-zero": (["010.0.0.1"], "010.0.0.1 is neither"),
    "mask-too-long": (["10.0.0.0/33"], "10.0.0.0/33 is neither"),
    "host-bits": (
        ["10.0.0.5/24"],
        "10.0.0.5/24 is a host's address with a network's mask: write 10.0.0.0/24 or 10.0.0.5.",
    ),
    "everyone": (["0.0.0.0/0"], "0.0.0.0/0 covers every address"),
    "everyone-ipv6": (["::/0"], "::/0 covers every address"),
    "everyone-in-two-halves": (["0.0.0.0/1", "128.0.0.0/1"], "0.0.0.0/0 covers every address"),
    "no-host": (["0.0.0.0"], "0.0.0.0 is the address of no single host"),
    "multicast": (["224.0.0.0/4"], "224.0.0.0/4 is the address of no single host"),
    "ipv4-in-ipv6": (["::ffff:10.0.0.1"], "write 10.0.0.1"),
    "interface": (["fe80::1%eth0"], "tied to an interface"),
    "number": ([10], "10 is not an address"),
    "empty": ([""], "'' is not an address"),
    "text-instead-of-a-list": ("10.0.0.10", "is not a list"),
}


@pytest.mark.parametrize(("written", "meant"), GOOD.values(), ids=GOOD)
def test_addresses_are_normalised(written: list[str], meant: list[str]) -> None:
    assert trusted_sources(written) == {"sources": meant, "problems": []}


@pytest.mark.parametrize(("written", "said"), BAD.values(), ids=BAD)
def test_bad_addresses_are_named(written: object, said: str) -> None:
    (problem,) = trusted_sources(written)["problems"]
    assert said in problem


def test_all_problems_are_said_at_once() -> None:
    assert len(trusted_sources(["10.0.0.300", "10.0.0.10", "10.0.0.5/24"])["problems"]) == 2


def test_everyone_may_be_trusted_expressly() -> None:
    assert trusted_sources(["0.0.0.0/0", "::/0"], allow_any=True) == {"sources": ["0.0.0.0/0", "::/0"], "problems": []}
