# SPDX-License-Identifier: GPL-3.0-or-later
"""These tests need a lab of their own, which becomes a cluster with a tunnel first: `make test-tunnel`, or by hand,
with LAB_NUMBER=119, `scripts/lab.sh up master worker1 worker2 worker4 outsider` and `pytest tests/tunnel`."""

from __future__ import annotations

import pytest

from support.lab.hosts import LAB, NUMBER, close_connections, ssh
from tunnel.ends import playbook


def pytest_sessionfinish() -> None:
    close_connections()


@pytest.fixture(scope="session", autouse=True)
def cluster() -> None:
    if not (LAB / "ssh_config").exists():
        pytest.exit(f"Lab {NUMBER} is not up: scripts/tunnel.sh says how it is made.", returncode=1)
    if ssh("master", "test", "-e", "/etc/wireguard/llama-tunnel.conf", check=False).returncode:
        playbook("site", timeout=3600)
