# SPDX-License-Identifier: GPL-3.0-or-later
"""These tests look at a lab that playbooks/site.yml has converged: the verify step of the molecule scenario, or by hand
`make lab`, `ansible-playbook -i inventories/lab/hosts.yml playbooks/site.yml`, `pytest tests/cluster`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

from support.lab.hosts import WORKERS, close_connections, require_lab, ssh

if TYPE_CHECKING:
    from xdist.remote import Producer

# These tests use a host that no other test uses, so that they can run beside the others.
BESIDE = ("test_system_packages.py",)


class Beside(LoadScopeScheduling):
    """A scheduler that gives each of two processes (`pytest -n 2`) one group of tests, in their order."""

    def _split_scope(self, nodeid: str) -> str:
        return "beside" if nodeid.partition("::")[0].endswith(BESIDE) else "cluster"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Beside:
    return Beside(config, log)


def pytest_sessionfinish() -> None:
    close_connections()


@pytest.fixture(scope="session", autouse=True)
def cluster() -> None:
    require_lab()
    if any(ssh(worker, "test", "-e", "/opt/llama_cpp/current", check=False).returncode for worker in WORKERS):
        pytest.exit("The lab is no cluster yet: ansible-playbook -i inventories/lab/hosts.yml playbooks/site.yml", 1)
