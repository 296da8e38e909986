# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of the incident sheet, of the alerts' sections and of the calendar work as they stand on the pages."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from gateway.door import GATEWAY, playbook
from support.examples import commands
from support.lab.hosts import INVENTORY, ROOT, WORKERS, ssh

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = [ROOT / "docs/runbooks" / name for name in ("incident.md", "alerts.md", "calendar.md")]
COMMANDS = list(dict.fromkeys(command for page in PAGES for command in commands(page)))
# Commands that pages give for a host run on one that has the unit.
HOST_OF_UNIT = {"llama-server": "master", "llama-gateway": "worker4", "": "worker1"}
FOLDER = "/var/lib/node_exporter"
# What the output has if the command did what the page says, by a part of the command.
SEEN = {
    "cluster.verify": "healthy",
    "upgrade --check": "failed=0",
    "--check --diff": "changed=0",
    "ansible.builtin.ping": "pong",
    "systemctl status": "active",
    "readlink": "releases/0.",
    "list-timers": "llama-rpc-cache",
    "NRestarts": "NRestarts=0",
    "keys.map": "first",
    "galaxy collection list": "llama_cpp.cluster",
    "ansible-doc": "llama_cpp_version",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a controller's folder, whose `hosts.yml` is the lab's inventory with metrics of the workers."""
    folder = tmp_path_factory.mktemp("controller")
    inventory = folder / "hosts.yml"
    inventory.mkdir()
    for number, path in enumerate((INVENTORY, GATEWAY)):
        (inventory / f"{number}.yml").symlink_to(path)
    metrics = {"all": {"vars": {"rpc_server_metrics_folder": FOLDER}}}
    (inventory / "2.yml").write_text(yaml.safe_dump(metrics))
    subprocess.run(["git", "init", "-q", "-b", "main", folder / "cluster-inventory"], check=True)
    for worker in WORKERS:
        ssh(worker, "mkdir", "-p", FOLDER)
    playbook("site", "-i", str(inventory), "--tags", "rpc_server")
    yield folder
    playbook("site", "--tags", "rpc_server")
    for worker in WORKERS:
        ssh(worker, "rmdir", FOLDER)


def test_the_pages_have_commands() -> None:
    assert [page.name for page in PAGES if len(commands(page)) < 8] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_command_of_a_runbook_works_as_it_stands(command: str, folder: Path) -> None:
    words = shlex.split(command)
    if words[0] in ("systemctl", "journalctl", "df"):
        host = next(host for unit, host in HOST_OF_UNIT.items() if unit in command)
        ssh(host, *words)
        return
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert "Could not match supplied host pattern" not in told
    for part, seen in SEEN.items():
        assert part not in command or seen in told, told
    if "--check --diff" in command:
        assert set(re.findall(r"changed=(\d+)", told)) == {"0"}, told
