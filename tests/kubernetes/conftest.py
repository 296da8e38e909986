# SPDX-License-Identifier: GPL-3.0-or-later
"""These tests need a lab of their own, whose hosts stand in for nodes: `make test-kubernetes`, or by hand, with
LAB_NUMBER=120, what scripts/kubernetes.sh does before it starts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.api_client import Client
from support.kubernetes import rendered
from support.lab.hosts import LAB, NUMBER, close_connections, eventually
from support.lab.pod_image import Image, built, make_image, unpack
from support.lab.pods import ADDRESS, API_PORT, FIGURES, LEADER, Controller, apply_policies, pods_of, prepare_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = "key-of-this-test-alone"
VARIABLES: dict[str, Any] = {
    "kubernetes_worker_cpu": 1,
    "kubernetes_worker_memory": "1Gi",
    "kubernetes_leader_cpu": 1,
    "kubernetes_leader_memory": "2Gi",
    "kubernetes_model_volume": {"hostPath": {"path": "/mnt/shared/models", "type": "Directory"}},
    "kubernetes_cache_volume": {"hostPath": {"path": "/var/cache/llama_rpc", "type": "Directory"}},
    "kubernetes_trusted_peers": [{"podSelector": {"matchLabels": {"app": "chat"}}}],
    "llama_server_model_path": "/models/random-weights.gguf",
    "llama_server_alias": "random",
    "llama_server_parallel": 2,
    "llama_server_ctx_size": 512,
    "llama_server_cache_ram": 64,
    "llama_server_api_keys": [KEY],
}


def pytest_sessionfinish() -> None:
    close_connections()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was measured, and with what in the place of Kubernetes."""
    if FIGURES:
        terminalreporter.section(
            "measured; stand-ins are in the place of the kubelet and of LeaderWorkerSet's controller"
        )
        for line in FIGURES:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The programs of leaders and workers, as playbook build makes them for this machine's class of processors."""
    if not (LAB / "ssh_config").exists():
        pytest.exit(f"Lab {NUMBER} is not up: scripts/kubernetes.sh says how it is made.", returncode=1)
    return built(tmp_path_factory.mktemp("artifacts"))


@pytest.fixture(scope="session")
def image(artifacts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Image:
    return make_image(artifacts, tmp_path_factory.mktemp("image") / "llama.tar")


@pytest.fixture(scope="session")
def unpacked(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image as a container runtime unpacks it, where all nodes see it; returns its root."""
    return unpack(image, tmp_path_factory.mktemp("layout"))


@pytest.fixture(scope="session")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return rendered(tmp_path_factory.mktemp("rendered"), VARIABLES)


@pytest.fixture(scope="session")
def client() -> Client:
    return Client(ADDRESS[LEADER], API_PORT, KEY)


@pytest.fixture(scope="session")
def group(unpacked: Path, manifests: list[dict[str, Any]], client: Client) -> Iterator[Controller]:
    """A group that the stand-in for a controller keeps; nobody has asked it anything."""
    assert unpacked.exists()
    prepare_nodes()
    apply_policies(manifests)
    controller = Controller(pods_of(manifests))
    with controller.running():
        eventually(client.answers, 300, "the API answers")
        yield controller
        for pod in controller.pods.values():
            assert "Traceback" not in pod.said()
