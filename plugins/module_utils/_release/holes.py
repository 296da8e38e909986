# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: known vulnerabilities ("holes") of llama.cpp with a CVE, and which of them a build has.

docs/reference/rpc-server-holes.md and docs/explanation/api-security.md name the sources of these facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Collection


@dataclass(frozen=True)
class Hole:
    """A hole of a program.

    `fixed_build` is the number of upstream's first build without it. It is surely not there from the major version
    `closed_from` of the RPC protocol on, and surely there below `open_below`. `option`: it concerns only a program with
    this option. `serious`: it may let a client run code; others let a client end the process.
    """

    cve: str
    program: str
    fixed_build: int
    closed_from: int
    open_below: int = 0
    option: str = ""
    serious: bool = False
    advisory: str = ""


# Anyone who reaches rpc-server can use its holes. Those of llama-server need a key.
HOLES = (
    Hole("CVE-2024-42477", "rpc-server", 3561, 1, serious=True, advisory="GHSA-mqp6-7pv6-fqjf"),
    Hole("CVE-2024-42478", "rpc-server", 3561, 1, serious=True, advisory="GHSA-5vm9-p64x-gqw9"),
    Hole("CVE-2024-42479", "rpc-server", 3561, 1, serious=True, advisory="GHSA-wcr5-566p-9cwj"),
    Hole("CVE-2026-34159", "rpc-server", 8492, 4, open_below=3, serious=True, advisory="GHSA-j8rj-fmpv-wcxw"),
    Hole("CVE-2026-21869", "llama-server", 8908, 5, option="--context-shift", serious=True),
    Hole("CVE-2026-43629", "llama-server", 9059, 5, option="--slot-save-path", serious=True),
    Hole("CVE-2026-43631", "llama-server", 9061, 5, option="--sleep-idle-seconds", serious=True),
    Hole("CVE-2026-43632", "llama-server", 9061, 5, option="--sleep-idle-seconds", serious=True),
    # The first build without this hole is not known. It is older than this one.
    Hole("CVE-2026-2069", "llama-server", 8908, 5),
)
# The sources that we have read: none has a hole. They are the commits of the versions that llama_cpp_version accepts.
READ_COMMITS = (
    "f449e0553708b895adbd94a301431cef691f632d",
    "e3546c7948e3af463d0b401e6421d5a4c2faf565",
    "4df29be4f4c3673f428170fda944a5b19f743bb8",
    "0c1e57098bba43ac29e6e3b677cdceebdd22334f",
)


def judge(hole: Hole, number: int, protocol: str, options: Collection[str] | None) -> str | None:
    """Return `open`, `unknown` or `idle`, or None if a build surely lacks the hole; a number of 0 is not known."""
    major = int(protocol.partition(".")[0] or 0) if protocol else 0
    if number >= hole.fixed_build if number else protocol and major >= hole.closed_from:
        return None
    if hole.option and options is not None and hole.option not in options:
        return "idle"
    return "open" if number or (protocol and major < hole.open_below) else "unknown"


def holes_of(
    program: str, commit: str = "", number: int = 0, protocol: str = "", options: Collection[str] | None = None
) -> dict[str, list[Hole]]:
    """Return the holes that a build has, those that it may have, and those that its options keep closed."""
    found: dict[str, list[Hole]] = {"open": [], "unknown": [], "idle": []}
    if len(commit) >= 7 and any(read.startswith(commit) for read in READ_COMMITS):
        return found
    for hole in HOLES:
        verdict = judge(hole, number, protocol, options) if hole.program == program else None
        if verdict:
            found[verdict].append(hole)
    return found
