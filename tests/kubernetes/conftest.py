# SPDX-License-Identifier: GPL-3.0-or-later
"""These tests need a lab of their own, whose hosts stand in for nodes: `make test-kubernetes`, or by hand, with
LAB_NUMBER=120, what scripts/kubernetes.sh does before it starts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.lab.hosts import LAB, NUMBER, close_connections
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
    if not (LAB / "ssh_config").exists():
        pytest.exit(f"Lab {NUMBER} is not up: scripts/kubernetes.sh says how it is made.", returncode=1)
    return built(tmp_path_factory.mktemp("artifacts"))


@pytest.fixture(scope="session")
def image(artifacts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Image:
    return make_image(artifacts, tmp_path_factory.mktemp("image") / "llama.tar")


@pytest.fixture(scope="session")
def unpacked(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the image as a container runtime does, where all nodes see it; return its root."""
    return shared(image, tmp_path_factory.mktemp("layout"))
