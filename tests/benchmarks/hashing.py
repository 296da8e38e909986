# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure how fast one core hashes tensors with `rpc-cache`.

rpc-cache hashes a tensor before it puts it into a worker's cache or trusts an entry. Each byte's step of FNV-1a needs
the digest of all bytes before it, so a core mostly waits. For that reason `rpc-cache` hashes four tensors at a time.
The figures are the processor time of the program, from the release that `make test` builds, over files in memory: for
four tensors, and for one as large as all four. Python computes the same digest for comparison.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.loopback import CORES, compared, in_rounds, keep, release, report
from benchmarks.measure import BenchError, asked, output_of, run_to_end

if TYPE_CHECKING:
    from collections.abc import Sequence

MB = 1_000_000
# Bytes of each of the four tensors, and of the data for Python.
SIZE, SMOKE_SIZE, PYTHON_SIZE = 256 * MB, MB, MB
UNIT = "mb_per_second"
LEAST_MB_S = 500
LIMIT_S = 300
MEMORY = Path("/dev/shm")
FOUR, ONE, PYTHON = "rpc-cache, four tensors at a time", "rpc-cache, one tensor", "Python, byte by byte"


def hashed(parts: Sequence[tuple[int, int]], data: Path, cache: Path) -> float:
    """Let rpc-cache look for tensors in an empty cache; return the megabytes hashed per second of processor time."""
    wanted = data.with_name("wanted")
    wanted.write_text("".join(f"{offset} {size} {data}\n" for offset, size in parts))
    command = ["taskset", "-c", str(CORES[0]), release().rpc_cache, "add", cache, "--check", "yes"]
    with wanted.open() as lines:
        before = os.times()
        said = output_of(command, "rpc-cache failed", LIMIT_S, stdin=lines)
        after = os.times()
    if [line.split()[2] for line in said.splitlines()] != ["missing"] * len(parts):
        raise BenchError(f'rpc-cache has not hashed all tensors; it said "{said.strip()[-200:]}".')
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    # The kernel counts processor time in hundredths of a second.
    return sum(size for _offset, size in parts) / MB / max(seconds, 0.01)


def hashed_in_python(data: bytes) -> float:
    began = time.process_time()
    digest = 0xCBF29CE484222325
    for byte in data:
        digest = (digest ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return len(data) / MB / (time.process_time() - began)


def measure(size: int, repetitions: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        data, cache = Path(folder, "data"), Path(folder, "cache")
        cache.mkdir()
        with data.open("wb") as file:
            for _part in range(4):
                file.write(os.urandom(size))
        some = os.urandom(min(size, PYTHON_SIZE))
        rounds = in_rounds(
            {
                FOUR: lambda: {"hashing": hashed([(part * size, size) for part in range(4)], data, cache)},
                ONE: lambda: {"hashing": hashed([(0, 4 * size)], data, cache)},
                PYTHON: lambda: {"hashing": hashed_in_python(some)},
            },
            repetitions,
            "hashing",
        )
    cases = compared(rounds, UNIT, lambda _case: ONE)
    found = cases[FOUR]["hashing"][UNIT]["median"]
    missed = [f"rpc-cache hashes {found:.0f} MB/s on one core, less than {LEAST_MB_S}."] if found < LEAST_MB_S else []
    return {"cases": cases, "bytes": 4 * size, "missed": missed}


def main() -> int:
    args = asked(__doc__, "few bytes, once: whether it runs, not how fast")
    results = measure(SMOKE_SIZE if args.smoke else SIZE, args.repetitions)
    kept = keep("hashing", args, results)
    met = f"Met: rpc-cache hashes at least {LEAST_MB_S} MB/s on one core."
    said = "\n".join(results["missed"]) or met
    print(f"{report(results['cases'], UNIT, ONE, {})}\n\n{said}\n\nAll values: {kept}")
    return 1 if results["missed"] and not args.smoke else 0


if __name__ == "__main__":
    run_to_end(main)
