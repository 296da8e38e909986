# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs from Debian's packages, unpacked into the cache folder. Nothing is installed, and root is not needed."""

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
    """Return a program by its path in a package: the installed one, or else an unpacked one."""
    installed = Path("/", path)
    if installed.exists():
        return installed
    folder = CACHE / "debian" / package
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        # Tests that run side by side may want the same package.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / path).exists():
            _unpack(package, folder)
    if not (folder / path).exists():
        # This happens outside Debian's family. CI has apt-get.
        assert not os.environ.get("CI"), f"{package} could not be fetched with apt-get"
        pytest.skip(
            f"there is no {installed.name} here, and Debian's package {package} could not be fetched with apt-get"
        )
    return folder / path


def _unpack(package: str, folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return
    # Try again after an update, which only root may do. Another update may be running, and block this one.
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
