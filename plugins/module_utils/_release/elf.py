# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the machine and the loader that a program is for, from the headers of its ELF file."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

# e_machine in the ELF header, by the name that uname gives. (elf.h)
MACHINES = {
    "x86_64": 62,
    "aarch64": 183,
    "arm64": 183,
    "armv7l": 40,
    "armv8l": 40,
    "i686": 3,
    "ppc64le": 21,
    "s390x": 22,
    "riscv64": 243,
    "loongarch64": 258,
}
_NAMES = {number: name for name, number in reversed(list(MACHINES.items()))}
# 32-bit programs that a 64-bit kernel can run as well.
_ALSO = {"x86_64": (3,), "aarch64": (40,), "arm64": (40,)}

_PT_INTERP = 3
# Only a broken file has a table or a name that is larger than this.
_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class Program:
    """The machine and the loader of a program."""

    machine: int
    loader: str | None
    """The path of the program that loads it, None if it is static."""

    @property
    def machine_name(self) -> str:
        """The machine as uname names it."""
        return _NAMES.get(self.machine, f"machine {self.machine}")

    def fits(self, machine: str) -> bool:
        """Return whether a host of this machine, named as by uname, can run it; True for an unknown machine."""
        return machine not in MACHINES or self.machine in (MACHINES[machine], *_ALSO.get(machine, ()))


def read_program(path: Path) -> Program | None:
    """Return the machine and the loader of a program file, None if it is not an ELF file. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(64)
        if len(head) < 20 or head[:4] != b"\x7fELF" or head[4] not in (1, 2) or head[5] not in (1, 2):
            return None
        order, wide = "<" if head[5] == 1 else ">", head[4] == 2
        fields = struct.unpack_from(order + ("HHIQQQIHHH" if wide else "HHIIIIIHHH"), head.ljust(64, b"\0"), 16)
        machine, table, entry_bytes, entries = fields[1], fields[4], fields[8], fields[9]
        loader = b""
        entry = struct.Struct(order + ("IIQQQQ" if wide else "IIIII"))
        headers = _read_at(file, table, entry_bytes * entries)
        for start in range(0, len(headers) - entry.size + 1, max(entry_bytes, entry.size)):
            values = entry.unpack_from(headers, start)
            if values[0] == _PT_INTERP:
                offset, length = (values[2], values[5]) if wide else (values[1], values[4])
                loader = _read_at(file, offset, length).split(b"\0")[0]
                break
    return Program(machine=machine, loader=loader.decode("utf-8", errors="replace") or None)


def _read_at(file: BinaryIO, offset: int, length: int) -> bytes:
    """Return up to `length` bytes from an offset; a broken file gives fewer or none."""
    if offset > file.seek(0, os.SEEK_END):
        return b""
    file.seek(offset)
    return file.read(min(length, _MOST_BYTES))
