# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of the outcomes of all faults, and the models of the runs that faults strike."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from faults.fault_table import pytest_terminal_summary, saw
from support.harness import HANG_S, ROOT

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["pytest_terminal_summary", "saw"]


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("model") / "small.gguf")


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model of 200 MB with tensors of more than 10 MiB, which workers keep in their caches."""
    return random_model(tmp_path_factory.mktemp("model") / "large.gguf", "--layers", "4", "--width", "2048")


def random_model(path: Path, *options: str) -> Path:
    subprocess.run(
        [sys.executable, ROOT / "playbooks/files/random_model.py", *options, path], check=True, timeout=HANG_S
    )
    return path
