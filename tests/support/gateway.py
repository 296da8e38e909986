# SPDX-License-Identifier: GPL-3.0-or-later
"""A real HAProxy with the configuration that role llama_gateway writes, on loopback and without systemd."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import sysconfig
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from support.api_client import Client
from support.debian_programs import debian_program
from support.harness import ROOT, end, free_port, play_over
from support.runs import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

PLAY = ROOT / "playbooks/files/gateway_files.yml"
CLIENT_KEY = "key-of-the-first-client"
GROUP_KEY = "key-of-the-group-alone"
# Debian's package of each library that HAProxy needs and a small system lacks.
LIBRARIES = {
    "liblua5.3-0": "liblua5.3.so.0",
    "libopentracing-c-wrapper0": "libopentracing-c-wrapper.so.0",
    "libopentracing1": "libopentracing.so.1",
}
# Like the unit's MemoryDenyWriteExecute= (PR_SET_MDWE of linux/prctl.h), under which HAProxy compiles no regular
# expression. It has no effect before Linux 6.3.
CONFINED = "import ctypes, os, sys; ctypes.CDLL(None).prctl(65, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"


def make_program(folder: Path) -> Path:
    """Write a program that runs HAProxy, from Debian's packages if HAProxy is not installed; return its path."""
    program = debian_program("haproxy", "usr/sbin/haproxy")
    place = f"usr/lib/{sysconfig.get_config_var('MULTIARCH')}"
    paths = {debian_program(package, f"{place}/{name}").parent for package, name in LIBRARIES.items()}
    script = folder / "haproxy"
    libraries = ":".join(str(path) for path in sorted(paths))
    script.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {sys.executable} -c "{CONFINED}" {program} "$@"\n')
    script.chmod(0o755)
    return script


@dataclass
class Gateway:
    """A running gateway."""

    process: subprocess.Popen[bytes]
    folder: Path
    variables: dict[str, Any]
    port: int

    @property
    def client(self) -> Client:
        """A client that has the first key."""
        return Client("127.0.0.1", self.port, CLIENT_KEY)

    def write(self, **variables: Any) -> None:
        """Write another configuration, as the role does."""
        self.variables |= variables
        result = write_configuration(self.folder, self.variables)
        assert result.returncode == 0, result.stdout + result.stderr

    def reload(self) -> None:
        """Make HAProxy read its configuration again."""
        before = self.worker
        self.process.send_signal(signal.SIGUSR2)
        wait_for(lambda: self.worker not in ("", before), 20)

    @property
    def worker(self) -> str:
        """The line with the id of the process that takes requests; empty while the next one starts."""
        try:
            lines = self.tell("show info").splitlines()
        except OSError:
            return ""
        return next((line for line in lines if line.startswith("Pid:")), "")

    def tell(self, command: str) -> str:
        """Send a command to HAProxy's own socket; return the answer."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(10)
            sock.connect(str(self.folder / "admin.sock"))
            sock.sendall(f"{command}\n".encode())
            parts = []
            while part := sock.recv(65536):
                parts.append(part)
        return b"".join(parts).decode()

    def log(self) -> str:
        """Return the log."""
        return (self.folder / "log").read_text()


def write_configuration(folder: Path, variables: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run the role's tasks that write the configuration."""
    place = {"gateway_folder": str(folder), "gateway_program": str(folder / "haproxy")}
    (folder / "variables.json").write_text(json.dumps({**place, **variables}))
    hosts = {"llama_gateways": {"hosts": {"gateway": {}}}}
    return play_over(str(PLAY), folder, hosts, "-e", f"@{folder}/variables.json")


def make_certificate(folder: Path, name: str) -> tuple[str, str]:
    """Write a self-signed certificate of 30 days, and its key; return both as texts."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*command, "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    return (folder / f"{name}.crt").read_text(), (folder / f"{name}.key").read_text()


@contextmanager
def running_gateway(folder: Path, groups: Sequence[dict[str, Any]], **variables: Any) -> Iterator[Gateway]:
    """Start a gateway in front of groups, with variables of the role; yield it, and end it by its own process id."""
    port = free_port()
    chosen = {
        "llama_gateway_port": port,
        "llama_gateway_groups": list(groups),
        "llama_gateway_group_key": GROUP_KEY,
        "llama_gateway_api_keys": [{"name": "first", "key": CLIENT_KEY}],
        "llama_gateway_queue_timeout": 10,
        **variables,
    }
    program = make_program(folder)
    result = write_configuration(folder, chosen)
    assert result.returncode == 0, result.stdout + result.stderr
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "-W", "-f", folder / "haproxy.cfg"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    gateway = Gateway(process, folder, chosen, port)
    try:
        wait_for(lambda: gateway.worker, 20)
        yield gateway
    finally:
        end(process)
