# SPDX-License-Identifier: GPL-3.0-or-later
"""A disk of its own in a folder: nothing else writes to it, and it is soon full."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """Mount a tmpfs with these options, such as "size=8m"; skip the test if that is not permitted."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True, timeout=10)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True, timeout=10)
