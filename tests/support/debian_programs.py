# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs out of Debian's packages, unpacked into the cache folder: nothing is installed, and no root is needed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from support.harness import CACHE

LIMIT_S = 300


def debian_program(package: str, path: str) -> Path:
    """Return a program by its path in a package."""
    installed = Path("/", path)
    if installed.exists():
        return installed
    folder = CACHE / "debian" / package
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        # Tests that run side by side want the same one.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / path).exists():
            _unpack(package, folder)
    if not (folder / path).exists():
        # Outside of Debian's family. CI has apt-get.
        assert not os.environ.get("CI"), f"{package} could not be fetched with apt-get"
        pytest.skip(
            f"there is no {installed.name} here, and Debian's package {package} could not be fetched with apt-get"
        )
    return folder / path


def _unpack(package: str, folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return
    # Once more after an update, which is for root alone; others may be at one at the moment, and keep this one from it.
    for attempt in range(4 if os.geteuid() == 0 else 1):
        time.sleep(5 * max(0, attempt - 1))
        if attempt:
            subprocess.run(["apt-get", "-qq", "update"], check=False, timeout=LIMIT_S)
        subprocess.run(
            ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package],
            cwd=folder, check=False, timeout=LIMIT_S,
        )  # fmt: skip
        found = sorted(folder.glob("*.deb"))
        if found:
            subprocess.run(["dpkg-deb", "--extract", found[-1], folder], check=True, timeout=LIMIT_S)
            for archive in found:
                archive.unlink()
            return
