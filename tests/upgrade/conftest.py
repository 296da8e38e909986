# SPDX-License-Identifier: GPL-3.0-or-later
"""These tests break things on the hosts of `make test-upgrade`, which become a cluster of an older release first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.lab.hosts import WORKERS, close_connections, play, require_lab, ssh
from support.pinned_source import OLD

# Only programs that run here are compiled.
TARGETS = ["llama-completion", "llama-bench", "llama-quantize"]


def pytest_sessionfinish() -> None:
    close_connections()


@pytest.fixture(scope="session")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an inventory with a cluster of the old release, unless -e llama_cpp_version says otherwise."""
    path = tmp_path_factory.mktemp("inventory") / "versions.json"
    path.write_text(
        json.dumps(
            {
                "llama_masters": {"vars": {"llama_cpp_version": OLD, "llama_cpp_targets": TARGETS}},
                "llama_workers": {"vars": {"llama_cpp_version": OLD}},
                # Threads that wait for each other crawl if the machine has other work.
                "all": {"vars": {"rpc_server_threads": 1, "inference_threads": 1}},
            }
        )
    )
    return path


@pytest.fixture(scope="session", autouse=True)
def cluster(versions: Path) -> None:
    require_lab()
    if any(ssh(host, "test", "-e", "/opt/llama_cpp/current", check=False).returncode for host in ("master", *WORKERS)):
        play("site", "-i", str(versions), timeout=3600)
