# SPDX-License-Identifier: GPL-3.0-or-later
"""The listeners on a port and their clients, on real sockets and on trees of /proc."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.listeners import look_at_ports, peers


def test_a_listener_and_its_clients_are_seen_without_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=4) as server, contextlib.ExitStack() as stack:
        port = server.getsockname()[1]
        first = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        accepted = server.accept()[0]
        stack.enter_context(accepted)
        second = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        (found,) = look_at_ports([port])
        names = ["{}:{}".format(*sock.getsockname()) for sock in (first, second)]
        assert (found.clients, found.waiting) == ([names[0]], [names[1]])
        (listener,) = found.listeners
        assert (listener.address, listener.pid) == ("127.0.0.1", os.getpid())
        assert listener.program == os.path.realpath(sys.executable)


def test_a_port_where_nobody_listens_is_empty() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        (found,) = look_at_ports([sock.getsockname()[1]])
    assert asdict(found) == {"port": found.port, "listeners": [], "clients": [], "waiting": []}


LITTLE = sys.byteorder == "little"
HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
# Addresses as the kernel of this machine writes them.
V4 = "0B00000A" if LITTLE else "0A00000B"
ANY6 = "0" * 32
MAPPED = "0000000000000000FFFF00000A00000A" if LITTLE else "00000000000000000000FFFF0A00000A"


def line(local: str, remote: str, state: str, inode: int, in_vain: int = 0, asked: int = 0) -> str:
    return f"   0: {local} {remote} {state} 00000000:00000000 00:00000000 {in_vain:08X}   990 {asked:8d} {inode} 1 0\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a tree with a worker (PID 4711) on 10.0.0.11:50052, and one (PID 4712) on all addresses, port 50053."""
    net = tmp_path / "proc/self/net"
    net.mkdir(parents=True)
    (net / "tcp").write_text(HEADER + line(f"{V4}:C384", "00000000:0000", "0A", 111))
    (net / "tcp6").write_text(
        HEADER + line(f"{ANY6}:C385", f"{ANY6}:0000", "0A", 222) + line(f"{MAPPED}:C385", f"{MAPPED}:A16C", "01", 333)
    )
    for pid, inode, group in (
        (4711, 111, "0::/system.slice/system-llama.slice/llama-rpc-server@50052.service\n"),
        (4712, 222, "9:cpu:/x.service\n1:name=systemd:/user.slice/session-1.scope\n"),
    ):
        folder = tmp_path / f"proc/{pid}"
        (folder / "fd").mkdir(parents=True)
        (folder / "fd/3").symlink_to(f"socket:[{inode}]")
        (folder / "exe").symlink_to("/opt/llama_cpp/releases/a/bin/rpc-server" + (" (deleted)" if pid == 4711 else ""))
        (folder / "environ").write_bytes(b"A=1\0LLAMA_CPP_CLUSTER_UNIT=3f78\0" if pid == 4711 else b"")
        (folder / "cgroup").write_text(group)
    return tmp_path


def test_the_process_its_unit_and_its_mark_are_named(proc: Path) -> None:
    service, session = look_at_ports([50052, 50053], proc)
    program = "/opt/llama_cpp/releases/a/bin/rpc-server"
    unit = {"unit": "llama-rpc-server@50052.service", "unit_digest": "3f78"}
    listener = {"address": "10.0.0.11", "pid": 4711, "program": program, **unit}
    assert asdict(service) == {"port": 50052, "listeners": [listener], "clients": [], "waiting": []}
    other = {**listener, "address": "::", "pid": 4712, "unit": None, "unit_digest": None}
    assert asdict(session) == {"port": 50053, "listeners": [other], "clients": ["10.0.0.10:41324"], "waiting": []}


def test_whom_the_host_is_connected_to_and_what_is_sent_in_vain(proc: Path) -> None:
    with (proc / "proc/self/net/tcp").open("a") as table:
        table.write(line(f"{V4}:A16C", f"{V4}:C384", "01", 444, in_vain=12))
        table.write(line(f"{V4}:A16D", f"{V4}:C385", "06", 555))
        table.write(line(f"{V4}:A16E", f"{V4}:C386", "01", 666, asked=11))
    assert peers(proc) == {"10.0.0.11:50052": 12, "10.0.0.11:50054": 11, "10.0.0.10:41324": 0}


def test_what_may_not_be_read_is_not_known_and_a_name_does_not_control_the_terminal(proc: Path) -> None:
    (proc / "proc/4711/fd/3").unlink()
    (proc / "proc/4712/exe").unlink()
    (proc / "proc/4712/exe").symlink_to("/opt/some/\x1b]0;x\x07server")
    first, second = (found.listeners[0] for found in look_at_ports([50052, 50053], proc))
    assert (first.address, first.pid, first.unit) == ("10.0.0.11", None, None)
    assert second.program == "/opt/some/\ufffd]0;x\ufffdserver"
