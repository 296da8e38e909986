# SPDX-License-Identifier: GPL-3.0-or-later
"""The watch over a program that waits for another host. tests/faults has the tests on real hosts."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc import keepalive as keepalives
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run import watch as watching

if TYPE_CHECKING:
    from collections.abc import Iterator

CLIENT = """
import socket, sys
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
client.sendall(b"x" * 1000)
print("sent", flush=True)
client.recv(1)
"""
HANG_S = 60


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def waiting(server: socket.socket) -> Iterator[subprocess.Popen[str]]:
    """Yield a program that waits for ever, below coreutils' timeout."""
    limiter = shutil.which("timeout")
    assert limiter
    command = [limiter, str(HANG_S), sys.executable, "-c", CLIENT, str(server.getsockname()[1])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "sent\n"
        yield process
        process.terminate()


def keepalive(sock: socket.socket) -> tuple[int, ...]:
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    return (
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        *(sock.getsockopt(socket.IPPROTO_TCP, option) for option in options),
    )


def child(process: subprocess.Popen[str]) -> int:
    found = watching._child(process.pid)
    assert found
    return found


def test_the_kernel_asks_for_each_connection_and_none_is_kept_open(
    waiting: subprocess.Popen[str], server: socket.socket
) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    watch = watching.Watch()
    assert [keepalive(sock)[0] for sock in keepalives.sockets(child(waiting))] == [0]
    assert watch._traffic(child(waiting)) >= 1000
    assert [keepalive(sock) for sock in keepalives.sockets(child(waiting))] == [(1, 1, 1, 29)]
    assert watch.gone is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    waiting.terminate()
    waiting.wait(HANG_S)
    connection, _address = server.accept()
    with connection:
        connection.settimeout(HANG_S)
        while connection.recv(4096):
            pass


# No kernel has the system call 100000: what else moves is watched where sockets cannot be reached.
@pytest.mark.parametrize("call", [keepalives.PIDFD_GETFD, 100_000], ids=["sockets", "no sockets"])
def test_a_program_that_stands_still_is_ended(
    waiting: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    monkeypatch.setattr(keepalives, "PIDFD_GETFD", call)
    monkeypatch.setattr(watching, "_LOOK_EVERY_S", 0.05)
    watch = watching.Watch(still_s=0.3)
    watch.begin(waiting)
    waiting.wait(HANG_S)
    watch.end()
    assert watch.stood_still


def test_a_process_that_has_ended_has_no_sockets() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(HANG_S)
        pid = process.pid
    assert list(keepalives.sockets(pid)) == []
    assert watching._work(pid) == (0, 0.0)
    assert watching._child(pid) is None
