# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of `make test-serve` become a cluster with an API first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from serve.api import API_UNIT, SERVING, playbook
from support.lab.hosts import close_connections, require_lab, ssh

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_sessionfinish() -> None:
    close_connections()


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[None]:
    require_lab()
    if ssh("master", "test", "-e", "/etc/llama_server", check=False).returncode:
        playbook("site", timeout=3600)
    assert SERVING.exists()
    yield
    said = ssh("master", "journalctl", "--no-pager", "--output=cat", f"--unit={API_UNIT}").stdout
    assert "Traceback" not in said, said[said.index("Traceback") :][:2000]
