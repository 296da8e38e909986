# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of `make test-kubernetes` stand in for nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.lab.hosts import close_connections, require_lab
from support.lab.pod_image import Image, built, make_image, shared
from support.lab.pods import FIGURES

if TYPE_CHECKING:
    from pathlib import Path


def pytest_sessionfinish() -> None:
    close_connections()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures, and name the stand-ins for parts of Kubernetes."""
    if FIGURES:
        terminalreporter.section(
            "measured; stand-ins are in the place of the kubelet and of LeaderWorkerSet's controller"
        )
        for line in FIGURES:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the artifacts for leaders and workers that playbook build makes for two classes of processors."""
    require_lab()
    return built(tmp_path_factory.mktemp("artifacts"))


@pytest.fixture(scope="session")
def image(artifacts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Image:
    return make_image(artifacts, tmp_path_factory.mktemp("image") / "llama.tar")


@pytest.fixture(scope="session")
def unpacked(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the image as a container runtime does, where all nodes see it; return its root."""
    return shared(image, tmp_path_factory.mktemp("layout"))
