# SPDX-License-Identifier: GPL-3.0-or-later
"""The listeners on TCP ports of this host, and their clients. Private to this collection; may change at any time.

All of it is read from /proc, because a connection to a worker that a client holds harms the worker.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterable, Iterator

MARK = "LLAMA_CPP_CLUSTER_UNIT"

# States of /proc/net/tcp (include/net/tcp_states.h).
_ESTABLISHED = "01"
_LISTEN = "0A"


@dataclass
class Listener:
    """A listening socket and its process; None stands for what could not be read."""

    address: str
    pid: int | None = None
    program: str | None = None
    unit: str | None = None
    unit_digest: str | None = None


@dataclass
class Port:
    """The listeners and the connections of one port."""

    port: int
    listeners: list[Listener] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    """`address:port` of each connection that was accepted."""
    waiting: list[str] = field(default_factory=list)
    """`address:port` of each connection that stands in the queue."""


@dataclass(frozen=True)
class _Socket:
    address: str
    port: int
    peer: str
    state: str
    in_vain: int
    inode: int


def look_at_ports(ports: Iterable[int], root: Path = Path("/")) -> list[Port]:
    """Return the listeners and connections of these ports, in their order."""
    found = {port: Port(port) for port in ports}
    listening: dict[int, Listener] = {}
    for sock in _sockets(root):
        if sock.port not in found:
            continue
        if sock.state == _LISTEN:
            listening[sock.inode] = Listener(sock.address)
            found[sock.port].listeners.append(listening[sock.inode])
        elif sock.state == _ESTABLISHED:
            # A connection that is not accepted yet belongs to no file, so its inode is 0.
            (found[sock.port].clients if sock.inode else found[sock.port].waiting).append(sock.peer)
    if listening:
        for pid, inode in _owners(root, set(listening)):
            if listening[inode].pid is None:
                _describe(listening[inode], root / "proc" / str(pid))
    return list(found.values())


def addresses_of(port: int, root: Path = Path("/")) -> set[str]:
    """Return the addresses on which any process listens on a port."""
    return {sock.address for sock in _sockets(root) if sock.port == port and sock.state == _LISTEN}


def peers(root: Path = Path("/")) -> dict[str, int]:
    """Return the unanswered retransmissions or probes of each established connection, by its other end's address."""
    return {sock.peer: sock.in_vain for sock in _sockets(root) if sock.state == _ESTABLISHED}


def _sockets(root: Path) -> Iterator[_Socket]:
    for name in ("tcp", "tcp6"):
        try:
            lines = (root / "proc/self/net" / name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:  # no IPv6
            continue
        for line in lines:
            columns = line.split()
            address, port = _address(columns[1])
            peer = "{}:{}".format(*_address(columns[2]))
            # Column 6 counts retransmissions. While no data is in flight, column 8 counts unanswered probes instead.
            in_vain = max(int(columns[6], 16), int(columns[8]))
            yield _Socket(address, port, peer, columns[3], in_vain, int(columns[9]))


def _address(text: str) -> tuple[str, int]:
    """Return the address and port of `0100007F:1F90`; each word of 32 bits is in the machine's byte order."""
    words, port = text.split(":")
    raw = b"".join(struct.pack("=I", int(words[start : start + 8], 16)) for start in range(0, len(words), 8))
    if len(raw) == 16 and raw[:12] == bytes(10) + b"\xff\xff":  # IPv4 on a socket of both families
        raw = raw[12:]
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw), int(port, 16)


def _owners(root: Path, inodes: set[int]) -> Iterator[tuple[int, int]]:
    """Yield the ID of each process that has one of these sockets, with the socket's inode."""
    names = {f"socket:[{inode}]": inode for inode in inodes}
    for folder in sorted((root / "proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        # A process may end or close a file meanwhile, or belong to another user.
        with contextlib.suppress(OSError):
            for path in (folder / "fd").iterdir():
                with contextlib.suppress(OSError):
                    inode = names.get(os.readlink(path))
                    if inode is not None:
                        yield int(folder.name), inode


def _describe(listener: Listener, folder: Path) -> None:
    listener.pid = int(folder.name)
    try:
        listener.program = _printable(os.readlink(folder / "exe").replace(" (deleted)", ""))
        variables = (folder / "environ").read_bytes().split(b"\0")
        groups = (folder / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for variable in variables:
        name, __, value = variable.partition(b"=")
        if name == MARK.encode():
            listener.unit_digest = _printable(value.decode("utf-8", "replace"))
    # 0::/system.slice/x.service, or with cgroup v1 1:name=systemd:/system.slice/x.service
    unit = re.search(r"^\d+:(?:name=systemd)?:(?:/[^/\n]*)*?/([^/\n]+\.service)", groups, re.MULTILINE)
    listener.unit = _printable(unit.group(1)) if unit else None


def _printable(text: str) -> str:
    """Return what any account of this host may have chosen without characters that control a terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
