# SPDX-License-Identifier: GPL-3.0-or-later
"""The test hosts as a user sees them: over SSH, and through Ansible."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("LLAMA_CPP_CLUSTER_CACHE") or Path.home() / ".cache" / "llama_cpp_cluster")
NUMBER = int(os.environ.get("LAB_NUMBER") or 0)
LAB = CACHE / "lab" / str(NUMBER)
INVENTORY = ROOT / "inventories/lab/hosts.yml"
ADDRESS = {
    name: f"10.87.{NUMBER}.{last}"
    for name, last in (("master", 10), ("worker1", 11), ("worker2", 12), ("outsider", 20))
}
WORKERS = ("worker1", "worker2")
PORT = 50052
UNIT = f"llama-rpc-server@{PORT}.service"

# Prints "connected", or why not; from a host that has nothing but Python.
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3).close()
    print("connected")
except OSError as error:
    print(type(error).__name__, error)
"""


def ssh(
    host: str, *argv: str, check: bool = True, timeout: float = 60, text_in: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a program as root on a test host."""
    done = subprocess.run(
        ["ssh", "-F", str(LAB / "ssh_config"), host, "sudo", *(shlex.quote(word) for word in argv)],
        capture_output=True, text=True, timeout=timeout, check=False, input=text_in,
    )  # fmt: skip
    assert not check or done.returncode == 0, f"{host}: {argv}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def connect(host: str, address: str, port: int = PORT) -> str:
    """Tell what a program on a test host sees that connects, and takes its leave at once."""
    return ssh(host, "python3", "-", address, str(port), text_in=CONNECT).stdout.strip()


def eventually(true: Callable[[], Any], limit: float, what: str) -> Any:
    """Return what `true` returns once it is true, within `limit` seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        found = true()
        if found:
            return found
        time.sleep(0.3)
    raise AssertionError(f"not within {limit} s: {what}")


def _ansible(program: str, *arguments: str, timeout: float, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(Path(sys.executable).with_name(program)), *arguments],
        cwd=ROOT, env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "NO_COLOR": "1", **environment},
        capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    return done


def play(
    playbook: str | Path, *options: str, check: bool = True, timeout: float = 1800, inventory: Path = INVENTORY
) -> subprocess.CompletedProcess[str]:
    """Run a playbook (a path, or the name of one in playbooks/) over the lab's inventory."""
    path = playbook if isinstance(playbook, Path) else ROOT / "playbooks" / f"{playbook}.yml"
    done = _ansible("ansible-playbook", "-i", str(inventory), str(path), *options, timeout=timeout)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def module(host: str, name: str, **arguments: Any) -> dict[str, Any]:
    """Return what a module of this collection returns on a test host, failed or not."""
    done = _ansible(
        "ansible", "-i", str(INVENTORY), host, "-m", f"llama_cpp.cluster.{name}", "-a", json.dumps(arguments),
        timeout=300, ANSIBLE_CALLBACK_RESULT_FORMAT="json",
    )  # fmt: skip
    _host, separator, result = done.stdout.partition(" => ")
    assert separator, done.stdout + done.stderr
    return dict(json.loads(result))
