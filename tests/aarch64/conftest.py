# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of the hosts of scenario "aarch64" after playbooks/site.yml has converged them."""

from __future__ import annotations

import json
import platform
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from aarch64 import hosts
from support.lab.hosts import require_lab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHOWN: list[str] = []

# Prints facts of a host as JSON. Needs only Python and the installed release.
FACTS = r"""
import json, os, pathlib, platform, re, shutil, subprocess, sys
unit, current = sys.argv[1:]
def said(*argv):
    return subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout.strip()
def elf(path):
    with open(path, "rb") as program:
        return int.from_bytes(program.read(20)[18:], "little")
cpu = pathlib.Path("/proc/cpuinfo").read_text()
pid = said("systemctl", "show", "--property=MainPID", "--value", unit)
print(json.dumps({
    "uname": said("uname", "-srmn"),
    "machine": platform.machine(),
    "system": platform.freedesktop_os_release()["PRETTY_NAME"],
    "init": os.readlink("/proc/1/exe"),
    "features": re.search(r"^(?:Features|flags)\s*: (.*)$", cpu, re.MULTILINE)[1].split(),
    "processors": os.cpu_count(),
    "virtualization": said("systemd-detect-virt"),
    "boot": pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    "pid": int(pid),
    "running": os.readlink(f"/proc/{pid}/exe") if pid != "0" else None,
    "running_elf": elf(f"/proc/{pid}/exe") if pid != "0" else None,
    "manifest": json.loads(pathlib.Path(current, "manifest.json").read_text()),
    "programs": {path.name: elf(path) for path in pathlib.Path(current, "bin").iterdir()},
    "compilers": [name for name in ("cc", "c++", "gcc", "g++", "cmake", "ninja") if shutil.which(name)],
}))
"""


def facts(host: str) -> dict[str, Any]:
    given = FACTS.encode()
    return dict(json.loads(hosts.said(host, "python3", "-", hosts.UNIT, "/opt/llama_cpp/current", given=given)))


def pytest_report_header() -> str:
    if hosts.NATIVE:
        return f"{', '.join(hosts.ARM)}: containers on this {platform.machine()} machine, not emulated"
    return (
        f"{', '.join(hosts.ARM)}: EMULATED (QEMU, whole systems with Debian's arm64 kernel) on this "
        f"{platform.machine()} machine. What they compute is real, how fast says nothing."
    )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.section("What was seen")
    for line in SHOWN:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def show() -> Callable[[str], None]:
    """Return a function that adds text to the summary at the end, whether tests pass or fail."""
    return lambda text: SHOWN.extend(text.splitlines())


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[None]:
    require_lab()
    yield
    hosts.hang_up()


@pytest.fixture(scope="session")
def seen(cluster: None) -> dict[str, dict[str, Any]]:  # noqa: ARG001
    """Return the facts of each host of the cluster, by its name."""
    names = (*hosts.ARM, hosts.OTHER)
    with ThreadPoolExecutor(len(names)) as threads:
        return dict(zip(names, threads.map(facts, names)))


@pytest.fixture(scope="session")
def models(cluster: None) -> None:  # noqa: ARG001
    """Put the tests' models on the hosts that compute with them."""
    for model in (hosts.FLOATS, hosts.EIGHT_BITS):
        content = (hosts.CACHE / "lab" / model.path.rpartition("/")[2]).read_bytes()
        for host in hosts.ARM:
            there = hosts.ssh(host, "stat", "--format=%s", model.path, check=False).stdout.decode().strip()
            if there != str(len(content)):
                hosts.send(host, content, model.path)
