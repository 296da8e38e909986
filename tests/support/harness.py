# SPDX-License-Identifier: GPL-3.0-or-later
"""Real llama.cpp processes for the integration tests: releases, workers and a model."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("LLAMA_CPP_CLUSTER_CACHE") or Path.home() / ".cache" / "llama_cpp_cluster")
# Longer than this is a hang, however busy the host is.
HANG_S = 600
START_LIMIT_S = 20


def run_module(
    name: str,
    arguments: Mapping[str, object],
    *,
    check: bool = False,
    environment: Mapping[str, str] | None = None,
    changes: bool = False,
    prefix: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Run a module of the collection as Ansible does on a host; return its result, which must report `changes`.

    The documented examples run in plays (test_documented_examples.py). A run without a play takes a fifth of the time.
    """
    done = subprocess.run(
        [*prefix, sys.executable, "-m", f"ansible_collections.llama_cpp.cluster.plugins.modules.{name}"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": {**arguments, "_ansible_check_mode": check}}),
        env={**os.environ, "PYTHONPATH": str(ROOT / ".venv/collections"), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    assert "{" in done.stdout, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if result.get("failed") else 0)
    assert result.get("changed", False) is changes
    return result


def play_here(
    playbook: str, folder: Path, host: Mapping[str, Any], *options: str, prefix: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a playbook over this machine, as master and as the host of the workers, from a folder of its own."""
    return play_over(
        playbook,
        folder,
        {"llama_masters": {"hosts": {"here": dict(host)}}, "llama_workers": {"hosts": {"here": {}}}},
        *options,
        prefix=prefix,
    )


def play_over(
    playbook: str, folder: Path, groups: Mapping[str, Any], *options: str, prefix: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a playbook over the hosts of these groups, all of which are this machine, from a folder of its own."""
    connection = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    inventory = {"all": {"children": dict(groups), "vars": connection}}
    (folder / "hosts.json").write_text(json.dumps(inventory))
    done = ansible("-i", "hosts.json", ROOT / "playbooks" / playbook, *options, folder=folder, prefix=prefix)
    done.stdout = " ".join(done.stdout.split())
    return done


def completed(*command: str | Path, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, without input; the caller judges the result."""
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def ansible(
    *arguments: str | Path, folder: Path = ROOT, prefix: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ansible-playbook in a folder; the caller judges the result."""
    settings = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "NO_COLOR": "1"}
    done = subprocess.run(
        [*prefix, Path(sys.executable).with_name("ansible-playbook"), *arguments],
        cwd=folder,
        # Set PWD as a shell does: relative paths start there.
        env={**os.environ, "PWD": str(folder), **settings, **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done


@dataclass(frozen=True)
class Release:
    """A llama.cpp release that `make test` built through the role `llama_cpp`, as release_builds.yml says."""

    version: str
    protocol: str

    @property
    def prefix(self) -> Path:
        return CACHE / "test_releases" / self.version

    @property
    def bin(self) -> Path:
        return self.prefix / "current" / "bin"

    @property
    def rpc_server(self) -> Path:
        return self.bin / "rpc-server"

    @property
    def rpc_cache(self) -> Path:
        return self.prefix / "current" / "libexec" / "rpc-cache"

    @property
    def plan(self) -> Path:
        return self.prefix / "current" / "libexec" / "llama-plan"


class AnyRelease(Protocol):
    """An object that has workers to start: a release, or a build that a test made."""

    @property
    def rpc_server(self) -> Path: ...


DEFAULT = yaml.safe_load((ROOT / "roles/llama_cpp/defaults/main.yml").read_text())["llama_cpp_version"]
ROLE_VARS = yaml.safe_load((ROOT / "roles/llama_cpp/vars/main.yml").read_text())
ARCHIVES = ROLE_VARS["__llama_cpp_archives"]
RELEASE = Release(DEFAULT, ARCHIVES[DEFAULT]["protocol"])


@dataclass
class Worker:
    """A running RPC server, on loopback unless it was given another address."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    address: str = "127.0.0.1"

    @property
    def endpoint(self) -> str:
        return f"{self.address}:{self.port}"

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def held(self) -> bool:
        """Return whether a client's connection to this worker is established, as the kernel says."""
        return any(port == self.port and state == "01" for port, state in _tcp_sockets())


def _tcp_sockets(pid: int | str = "self") -> Iterator[tuple[int, str]]:
    """Yield the port and state of each socket in a process's network namespace."""
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        yield int(fields[1].rsplit(":", 1)[1], 16), fields[3]


def listens(pid: int, port: int) -> bool:
    try:
        return any(found == port and state == "0A" for found, state in _tcp_sockets(pid))
    except OSError:  # The process has ended.
        return False


def free_port() -> int:
    """Return a loopback port that nothing uses, below the range from which the kernel gives ports to clients."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _attempt in range(200):
        port = 1024 + int.from_bytes(os.urandom(2), "big") % (low - 1024)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    msg = "no free port on loopback"
    raise RuntimeError(msg)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, even if it is stopped or ignores SIGTERM."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


@contextmanager
def talking(
    command: Sequence[str | Path], environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start a program; yield it with the lines of its output so far, and end it by its own process id."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as said:
            lines.extend(said)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield process, lines
    finally:
        end(process)  # type: ignore[arg-type]
        reader.join()


def over(workers: Sequence[int]) -> list[str]:
    """Return the options that make a llama.cpp program give workers on these loopback ports equal parts of a model."""
    if not workers:
        return []
    endpoints = ",".join(f"127.0.0.1:{port}" for port in workers)
    devices = ",".join(f"RPC{number}" for number in range(len(workers)))
    return ["--rpc", endpoints, "--device", devices, "-ts", ",".join("1" for _port in workers), "-ngl", "99"]


@contextmanager
def running_worker(
    release: AnyRelease,
    log: Path,
    *options: str,
    threads: int = 1,
    prefix: tuple[str, ...] = (),
    address: str = "127.0.0.1",
    port: int | None = None,
) -> Iterator[Worker]:
    """Start one worker; yield it, and end it by its own process id."""
    port = port or free_port()
    command = [*prefix, str(release.rpc_server), "-H", address, "-p", str(port), "-t", str(threads), *options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not listens(process.pid, port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the worker did not start: {' '.join(command)}\n{log.read_text(errors='replace')}")
            time.sleep(0.02)
        yield Worker(process, port, log, address)
    finally:
        end(process)


def log_of(release: Release, model: Path, *options: str) -> str:
    """Load a model with little to do; return llama.cpp's log."""
    command = [release.bin / "llama-completion", "-m", model, "-n", "1", "-p", "the river", "-no-cnv", "--no-warmup"]
    for _attempt in range(5):
        done = subprocess.run(
            [*command, "-t", "1", "-lv", "4", "--fit", "off", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=HANG_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:]
        # Upstream's logger is not flushed at exit: one run in a hundred loses some of it, or all.
        if "memory breakdown" in done.stdout:
            return done.stdout
    raise AssertionError("llama.cpp lost its log five times: " + done.stdout)
