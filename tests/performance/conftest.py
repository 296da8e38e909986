# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds that only these tests need. The first run takes some minutes for them."""

from __future__ import annotations

import pytest

from support.builds import OLD_CPU, PATCHES, RACES, SANITIZED, Build, build


@pytest.fixture(scope="session")
def stock() -> Build:
    """Build upstream's source as it is."""
    return build("native", {}, ["ggml-rpc-server", "llama-results", "llama-completion"], ())


@pytest.fixture(scope="session")
def patched() -> Build:
    return build("native", {}, ["ggml-rpc-server", "llama-results", "llama-completion"], PATCHES)


@pytest.fixture(scope="session")
def sanitized() -> tuple[Build, Build]:
    """Build upstream's workers and ours with AddressSanitizer and UndefinedBehaviorSanitizer."""
    return tuple(build("sanitized", SANITIZED, ["ggml-rpc-server"], patches) for patches in ((), PATCHES))


@pytest.fixture(scope="session")
def sanitized_master() -> Build:
    return build("sanitized", SANITIZED, ["llama-results"], PATCHES)


@pytest.fixture(scope="session")
def racing_master() -> Build:
    """Build our master with ThreadSanitizer."""
    return build("races", RACES, ["llama-results"], PATCHES)


@pytest.fixture(scope="session")
def for_old_cpus() -> Build:
    return build("old-cpu", OLD_CPU, ["ggml-rpc-server"], PATCHES)
