# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that looks like another machine, for tests that build for that machine elsewhere."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# The content of /proc/cpuinfo on a Neoverse N1.
NEOVERSE_N1 = """\
processor\t: 0
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs
CPU implementer\t: 0x41
CPU part\t: 0xd0c
"""


def masquerade(folder: Path, libc: str = "", cpuinfo: str = "", machine: str = "", bits: str = "") -> str:
    """Write an interpreter that makes a host look like another one, with the tools of BusyBox; return its path."""
    tools = folder / "tools"
    tools.mkdir(parents=True)
    answers = [("getconf", "GNU_LIBC_VERSION", libc), ("uname", "-m", machine), ("getconf", "LONG_BIT", bits)]
    for program in ("getconf", "uname"):
        known = [
            f'[ "$*" != {option} ] || {{ echo "{answer}"; exit; }}'
            for name, option, answer in answers
            if name == program and answer
        ]
        (tools / program).write_text("\n".join(["#!/bin/sh", *known, f'exec {shutil.which(program)} "$@"\n']))
    (tools / "df").write_text(f'#!/bin/sh\ncase "$*" in *--*) exit 1;; esac\nexec {shutil.which("df")} "$@"\n')
    for program in tools.iterdir():
        program.chmod(0o755)
    (folder / "cpuinfo").write_text(cpuinfo)
    mount = f"mount --bind {folder}/cpuinfo /proc/cpuinfo && " if cpuinfo else ""
    python = folder / "python"
    python.write_text(
        f"#!/bin/sh\nexport PATH={tools}:$PATH\n"
        f'exec unshare --mount sh -c \'{mount}exec {sys.executable} "$@"\' sh "$@"\n'
    )
    python.chmod(0o755)
    return str(python)
