# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of `make test-tunnel` become a cluster with a tunnel first."""

from __future__ import annotations

import pytest

from support.lab.hosts import close_connections, require_lab, ssh
from tunnel.ends import playbook


def pytest_sessionfinish() -> None:
    close_connections()


@pytest.fixture(scope="session", autouse=True)
def cluster() -> None:
    require_lab()
    if ssh("master", "test", "-e", "/etc/wireguard/llama-tunnel.conf", check=False).returncode:
        playbook("site", timeout=3600)
