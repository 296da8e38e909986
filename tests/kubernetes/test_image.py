# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of the image that the playbooks make of real programs and Debian's packages: always the same, and for two
architectures. The programs of the other architecture are emulated one by one."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.endpoint import parse_endpoints
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.prober import probe

from support.debian_programs import debian_program
from support.harness import free_port, talking
from support.kubernetes import MIRROR
from support.lab.hosts import eventually
from support.lab.pod_image import Image, make_image, unpack
from support.lab.pods import FIGURES

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
# The emulator that runs the programs of each architecture, or None if the machine itself runs them.
EMULATORS = {"amd64": None, "arm64": "qemu-aarch64-static"}
PYTHON = ["/usr/bin/python3", "-B", "-E", "-s", "/usr/local/lib/llama_server/llama_pod.py"]


def test_the_image_is_the_same_when_it_is_made_again(image: Image, artifacts: list[Path], tmp_path: Path) -> None:
    again = make_image(artifacts, tmp_path / "again.tar")
    assert again.digest == image.digest
    assert again.path.read_bytes() == image.path.read_bytes()
    FIGURES.append(f"image {image.digest}, made twice from {MIRROR}: {image.path.stat().st_size / MIB:.0f} MiB")


@pytest.mark.parametrize("architecture", EMULATORS)
def test_the_programs_start_with_nothing_but_the_image(image: Image, tmp_path: Path, architecture: str) -> None:
    root = unpack(image, architecture, tmp_path / "layout", tmp_path / "bundle")
    used = sum(path.lstat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    FIGURES.append(f"{architecture}: {used / MIB:.0f} MiB unpacked")
    emulator = EMULATORS[architecture]
    command = ["chroot", str(root)]
    if emulator:
        shutil.copy(shutil.which(emulator) or emulator, root / "emulator")
        command.append("/emulator")
    bin_ = "/opt/llama_cpp/current/bin"
    for program, said in (
        ([f"{bin_}/llama-server", "--version"], "version:"),
        ([*PYTHON, "--help"], "leader,worker,listens,drain"),
    ):
        done = subprocess.run([*command, *program], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert said in done.stdout + done.stderr
    port = free_port()
    with talking([*command, f"{bin_}/rpc-server", "-H", "127.0.0.1", "-p", str(port), "-t", "1", "-d", "CPU"], {}):
        endpoints = parse_endpoints([f"127.0.0.1:{port}"])
        eventually(lambda: probe(endpoints, 10)[0].state == "ready", 120, "the worker speaks the protocol")


def listens(port: int) -> bool:
    """Return whether a program accepts connections at this port of loopback."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_a_registry_knows_it_by_the_digest_that_the_playbook_says(image: Image, tmp_path: Path) -> None:
    port = free_port()
    settings = tmp_path / "registry.json"
    storage = {"filesystem": {"rootdirectory": str(tmp_path / "registry")}}
    settings.write_text(json.dumps({"version": 0.1, "storage": storage, "http": {"addr": f"127.0.0.1:{port}"}}))
    name = f"docker://127.0.0.1:{port}/llama"
    with talking([debian_program("docker-registry", "usr/bin/docker-registry"), "serve", settings], {}):
        eventually(lambda: listens(port), 60, "the registry answers")
        push = ["skopeo", "--insecure-policy", "copy", "--all", "--quiet", "--dest-tls-verify=false"]
        subprocess.run([*push, f"oci-archive:{image.path}", name], check=True)
        for architecture in EMULATORS:
            ask = ["skopeo", f"--override-arch={architecture}", "inspect", "--tls-verify=false"]
            done = subprocess.run([*ask, f"{name}@{image.digest}"], capture_output=True, check=True, text=True)
            assert json.loads(done.stdout)["Architecture"] == architecture
