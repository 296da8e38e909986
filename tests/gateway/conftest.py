# SPDX-License-Identifier: GPL-3.0-or-later
"""These tests need a lab of their own, which becomes two groups and a gateway first: `make test-gateway`, or by hand,
with LAB_NUMBER=109, `scripts/lab.sh up master worker1 worker2 worker3 worker4 worker5 worker6 outsider` and
`pytest tests/gateway`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.door import all_in, playbook
from support.lab.hosts import LAB, NUMBER, close_connections, eventually, ssh

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_sessionfinish() -> None:
    close_connections()


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[None]:
    if not (LAB / "ssh_config").exists():
        pytest.exit(f"Lab {NUMBER} is not up: scripts/gateway.sh says how it is made.", returncode=1)
    if ssh("worker4", "test", "-e", "/etc/llama_gateway", check=False).returncode:
        playbook("site", timeout=3600)
    yield
    for host, unit in (("master", "llama-server@8080"), ("worker3", "llama-server@8080"), ("worker4", "llama-gateway")):
        said = ssh(host, "journalctl", "--no-pager", "--output=cat", f"--unit={unit}").stdout
        assert "Traceback" not in said, said[said.index("Traceback") :][:2000]


@pytest.fixture(autouse=True)
def both_groups() -> None:
    eventually(all_in, 120, "both groups take requests")
