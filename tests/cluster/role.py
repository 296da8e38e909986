# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers that apply role rpc_server to hosts of the lab, and look at the result."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.lab.hosts import (
    UNIT,
    WORKERS,
    play,
    ssh,
    ssh_command,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ROLE = "llama_cpp.cluster.rpc_server"
BOTH = ":".join(WORKERS)
# Stays a client of the worker until its input ends, and prints its own address first.
HOLD = """
import socket, sys
client = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10)
client.sendall(bytes([14, 24] + [0] * 31))
print(client.recv(1) and "%s:%d" % client.getsockname(), flush=True)
sys.stdin.read()
"""


class Role:
    """The role, applied by a play to one worker or to several: `worker1:worker2`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.touched: set[str] = set()

    def __call__(
        self, worker: str, *options: str, check: bool = True, entry: str = "main", **variables: Any
    ) -> subprocess.CompletedProcess[str]:
        self.touched.update(worker.split(":"))
        tasks = [{"ansible.builtin.include_role": {"name": ROLE, "tasks_from": entry}}]
        done = self.play(worker, tasks, "--extra-vars", json.dumps(variables), *options, check=check)
        if check and entry == "main" and not variables and not options:
            self.touched.difference_update(worker.split(":"))
        return done

    def play(
        self, worker: str, tasks: list[dict[str, Any]], *options: str, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        path = self.folder / "play.yml"
        path.write_text(json.dumps([{"hosts": "llama_workers", "gather_facts": False, "tasks": tasks}]))
        return play(path, "--limit", worker, *options, check=check, timeout=300)


def recap(done: subprocess.CompletedProcess[str]) -> int:
    """Return how much a play changed, which must be the same on each host."""
    found = set(re.findall(r"changed=(\d+)", done.stdout))
    assert len(found) == 1, done.stdout
    return int(found.pop())


def show(worker: str, name: str, unit: str = UNIT) -> str:
    return ssh(worker, "systemctl", "show", f"--property={name}", "--value", unit).stdout.strip()


@contextmanager
def running(host: str, program: str, *arguments: object) -> Iterator[str]:
    """Run Python on a host until its input ends; yield the line that it prints first."""
    command = shlex.join(["sudo", "python3", "-c", program, *map(str, arguments)])
    with subprocess.Popen(
        [*ssh_command(host), command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
