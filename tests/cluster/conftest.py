# SPDX-License-Identifier: GPL-3.0-or-later
"""These tests look at a lab that playbooks/site.yml has converged: the verify step of the molecule scenario, or by hand
`make lab`, `ansible-playbook -i inventories/lab/hosts.yml playbooks/site.yml`, `pytest tests/cluster`."""

from __future__ import annotations

import pytest
from harness import LAB, NUMBER, WORKERS, ssh


@pytest.fixture(scope="session", autouse=True)
def cluster() -> None:
    if not (LAB / "ssh_config").exists():
        pytest.exit(f"Lab {NUMBER} is not up: `make lab` makes it (LAB_NUMBER names another).", returncode=1)
    if any(ssh(worker, "test", "-e", "/opt/llama_cpp/current", check=False).returncode for worker in WORKERS):
        pytest.exit("The lab is no cluster yet: ansible-playbook -i inventories/lab/hosts.yml playbooks/site.yml", 1)
