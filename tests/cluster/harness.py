# SPDX-License-Identifier: GPL-3.0-or-later
"""The test hosts as a user sees them: over SSH, and through ansible-playbook."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("LLAMA_CPP_CLUSTER_CACHE") or Path.home() / ".cache" / "llama_cpp_cluster")
NUMBER = int(os.environ.get("LAB_NUMBER") or 0)
LAB = CACHE / "lab" / str(NUMBER)
INVENTORY = ROOT / "inventories/lab/hosts.yml"
ADDRESS = {name: f"10.87.{NUMBER}.{last}" for name, last in (("master", 10), ("worker1", 11), ("worker2", 12), ("outsider", 20))}
WORKERS = ("worker1", "worker2")
PORT = 50052


def ssh(host: str, *argv: str, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a program as root on a test host."""
    done = subprocess.run(
        ["ssh", "-F", str(LAB / "ssh_config"), host, "sudo", *(shlex.quote(word) for word in argv)],
        capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert not check or done.returncode == 0, f"{host}: {argv}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def play(
    playbook: str | Path, *options: str, check: bool = True, timeout: float = 1800, inventory: Path = INVENTORY
) -> subprocess.CompletedProcess[str]:
    """Run a playbook (a path, or the name of one in playbooks/) over the lab's inventory."""
    path = playbook if isinstance(playbook, Path) else ROOT / "playbooks" / f"{playbook}.yml"
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(inventory), str(path), *options],
        cwd=ROOT, env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "NO_COLOR": "1"},
        capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done
