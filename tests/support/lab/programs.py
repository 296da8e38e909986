# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts that all programs that make test hosts share."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PROGRAM_LIMIT_S = 900
IN_NAMESPACE = ("unshare", "--mount", "--propagation", "private")
# Everything that is started in it ends with its first process.
IN_PROCESS_NAMESPACE = (*IN_NAMESPACE, "--pid", "--fork", "--kill-child", "--mount-proc")
# A program that helps to make a lab ends with the program that makes the lab, however that ends.
WITH_THIS = ("setpriv", "--pdeathsig", "KILL")


class LabError(Exception):
    """One sentence for the person who asked."""


def run(*argv: str, check: bool = True, text_in: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(
            argv, input=text_in or "", capture_output=True, text=True, check=False, timeout=PROGRAM_LIMIT_S
        )
    except FileNotFoundError as error:
        raise LabError(f"there is no program {argv[0]} on this machine; install it.") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{' '.join(argv[:5])} did not end within {PROGRAM_LIMIT_S} s.") from error
    if check and done.returncode:
        said = (done.stderr or done.stdout).strip()[-800:]
        raise LabError(f"{' '.join(argv[:5])} failed ({done.returncode}): {said}")
    return done


def say(text: str) -> None:
    print(f"lab: {text}", flush=True)


def make_folders(root: Path, model: Path, places: Iterable[str]) -> None:
    """Make folders and their parents, with the owners and modes that they have in another tree."""
    for place in places:
        for folder in reversed([root / place, *(root / place).parents]):
            if root in folder.parents and not folder.exists():
                owner = (model / folder.relative_to(root)).stat()
                folder.mkdir()
                folder.chmod(owner.st_mode & 0o7777)
                os.chown(folder, owner.st_uid, owner.st_gid)
