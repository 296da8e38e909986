# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernels of the other architecture, emulated program by program. (`make test-aarch64` has whole hosts.)"""

from __future__ import annotations

import platform
import shutil
from typing import TYPE_CHECKING

import pytest
from builds import Build
from logits import compare
from quantised_models import TYPES, Type, write_quantised
from results import TEXT, results
from test_repack import watched

if TYPE_CHECKING:
    from pathlib import Path

EMULATOR = ("qemu-aarch64-static", "-cpu", "max")
pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(
        platform.machine() == "aarch64" or not shutil.which(EMULATOR[0]) or not shutil.which("aarch64-linux-gnu-g++"),
        reason="needs qemu-aarch64-static and aarch64-linux-gnu-g++, on another architecture",
    ),
]
# Kernels of the other architecture add in other orders, and so do its plain ones.
OTHER_KERNELS = 0.1
SHORT = " ".join(TEXT.split()[:39])
ALL = {Type.Q4_0, Type.Q8_0, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_NL, Type.MXFP4}


@pytest.mark.parametrize("experts", [0, 4], ids=["dense", "experts"])
def test_a_worker_of_the_other_architecture_repacks(stock: Build, aarch64: Build, tmp_path: Path, experts: int) -> None:
    """It says what it says without, and what this machine says, but for rounding."""
    model, _tokens = write_quantised(tmp_path / "model", TYPES, layers=len(TYPES), experts=experts)
    here = results(stock, model, text=SHORT)
    with watched(aarch64, tmp_path / "on", under=EMULATOR) as worker:
        there = results(stock, model, [worker.port], text=SHORT)
        assert worker.kernels == ALL
        assert worker.repack["of_weights"] > worker.repack["weights"] > worker.repack["of_weights"] / 2
    with watched(aarch64, tmp_path / "off", "GGML_RPC_REPACK=0", under=EMULATOR) as worker:
        plain = results(stock, model, [worker.port], text=SHORT)
    for first, second in (here, there), (plain, there):
        found = compare(first, second, OTHER_KERNELS)
        assert found.is_rounding, str(found)
