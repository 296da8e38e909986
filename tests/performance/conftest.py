# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds that only these tests need. The first run takes some minutes for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from builds import AARCH64, OLD_CPU, PATCHES, RACES, SANITIZED, Build, build

sys.path.append(str(Path(__file__).resolve().parents[2] / "playbooks/files"))


@pytest.fixture(scope="session")
def stock() -> Build:
    """Upstream's source as it is."""
    return build("native", {}, ["ggml-rpc-server", "llama-results", "llama-completion"], ())


@pytest.fixture(scope="session")
def patched() -> Build:
    return build("native", {}, ["ggml-rpc-server", "llama-results", "llama-completion"], PATCHES)


@pytest.fixture(scope="session")
def sanitized() -> tuple[Build, Build]:
    """Upstream's and ours, with AddressSanitizer and UndefinedBehaviorSanitizer."""
    return tuple(build("sanitized", SANITIZED, ["ggml-rpc-server"], patches) for patches in ((), PATCHES))


@pytest.fixture(scope="session")
def sanitized_master() -> Build:
    return build("sanitized", SANITIZED, ["llama-results"], PATCHES)


@pytest.fixture(scope="session")
def racing_master() -> Build:
    """Ours, with ThreadSanitizer."""
    return build("races", RACES, ["llama-results"], PATCHES)


@pytest.fixture(scope="session")
def for_old_cpus() -> Build:
    return build("old-cpu", OLD_CPU, ["ggml-rpc-server"], PATCHES)


@pytest.fixture(scope="session", params=["armv8.2-a+dotprod+fp16", "armv8.2-a+dotprod+fp16+i8mm"])
def aarch64(request: pytest.FixtureRequest) -> Build:
    """For processors with and without multiplications of 8-bit matrices."""
    name = "aarch64-" + request.param.partition("+")[2]
    options = {**AARCH64, "GGML_CPU_ARM_ARCH": request.param}
    return build(name, options, ["ggml-rpc-server"], PATCHES)
