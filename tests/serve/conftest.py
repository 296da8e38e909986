# SPDX-License-Identifier: GPL-3.0-or-later
"""These tests need a lab of their own, which becomes a cluster with an API first: `make test-serve`, or by hand, with
LAB_NUMBER=107, `scripts/lab.sh up` and `pytest tests/serve`."""

from __future__ import annotations

import pytest

from serve.api import SERVING, playbook
from support.lab.hosts import LAB, NUMBER, close_connections, ssh


def pytest_sessionfinish() -> None:
    close_connections()


@pytest.fixture(scope="session", autouse=True)
def cluster() -> None:
    if not (LAB / "ssh_config").exists():
        pytest.exit(f"Lab {NUMBER} is not up: scripts/lab.sh up makes it.", returncode=1)
    if ssh("master", "test", "-e", "/etc/llama_server", check=False).returncode:
        playbook("site", timeout=3600)
    assert SERVING.exists()
