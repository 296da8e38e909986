# SPDX-License-Identifier: GPL-3.0-or-later
"""These tests break things on a lab of their own, which becomes a cluster of the release before the default one first:
`make test-upgrade`, or by hand, with LAB_NUMBER=105, `scripts/lab.sh up master worker1 worker2` and `pytest
tests/upgrade`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.lab.hosts import LAB, NUMBER, ROOT, WORKERS, close_connections, play, ssh
from upgrade.generations import OLD

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
    if not (LAB / "ssh_config").exists():
        pytest.exit(f"Lab {NUMBER} is not up: scripts/lab.sh up master worker1 worker2 makes it.", returncode=1)
    if any(ssh(host, "test", "-e", "/opt/llama_cpp/current", check=False).returncode for host in ("master", *WORKERS)):
        # The limit skips the list of what is on clean hosts: no test here checks whether they are clean again.
        play(ROOT / "extensions/molecule/cluster/prepare.yml", "--limit", "llama_masters:llama_workers")
        play("site", "-i", str(versions), timeout=3600)
