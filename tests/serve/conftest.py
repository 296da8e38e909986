# SPDX-License-Identifier: GPL-3.0-or-later
"""These tests need a lab of their own, which becomes a cluster with an API first: `make test-serve`, or by hand, with
LAB_NUMBER=107, `scripts/lab.sh up` and `pytest tests/serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from serve.api import API_UNIT, SERVING, playbook
from support.lab.hosts import LAB, NUMBER, close_connections, ssh

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_sessionfinish() -> None:
    close_connections()


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[None]:
    if not (LAB / "ssh_config").exists():
        pytest.exit(f"Lab {NUMBER} is not up: scripts/lab.sh up makes it.", returncode=1)
    if ssh("master", "test", "-e", "/etc/llama_server", check=False).returncode:
        playbook("site", timeout=3600)
    assert SERVING.exists()
    yield
    said = ssh("master", "journalctl", "--no-pager", "--output=cat", f"--unit={API_UNIT}").stdout
    assert "Traceback" not in said, said[said.index("Traceback") :][:2000]
