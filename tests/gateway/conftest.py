# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of `make test-gateway` become two groups and a gateway first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.door import all_in, playbook
from support.lab.hosts import close_connections, eventually, require_lab, ssh

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_sessionfinish() -> None:
    close_connections()


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[None]:
    require_lab()
    if ssh("worker4", "test", "-e", "/etc/llama_gateway", check=False).returncode:
        playbook("site", timeout=3600)
    yield
    for host, unit in (("master", "llama-server@8080"), ("worker3", "llama-server@8080"), ("worker4", "llama-gateway")):
        said = ssh(host, "journalctl", "--no-pager", "--output=cat", f"--unit={unit}").stdout
        assert "Traceback" not in said, said[said.index("Traceback") :][:2000]


@pytest.fixture(autouse=True)
def both_groups() -> None:
    eventually(all_in, 120, "both groups take requests")
