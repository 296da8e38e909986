# SPDX-License-Identifier: GPL-3.0-or-later
"""Who listens on a TCP port of this host, and whom it serves. Private to this collection; may change at any time.

All of it is read from /proc, because a connection to a worker that is held by a client harms it.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MARK = "LLAMA_CPP_CLUSTER_UNIT"

# States of /proc/net/tcp (include/net/tcp_states.h).
_ESTABLISHED = "01"
_LISTEN = "0A"


@dataclass
class Listener:
    """A socket that listens, and the process that has it; None is what could not be read."""

    address: str
    pid: int | None = None
    program: str | None = None
    unit: str | None = None
    unit_digest: str | None = None


@dataclass
class Port:
    """What is going on at one port."""

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
    """Return what is going on at these ports, in their order."""
    found = {port: Port(port) for port in ports}
    listening: dict[int, Listener] = {}
    for sock in _sockets(root):
        if sock.port not in found:
            continue
        if sock.state == _LISTEN:
            listening[sock.inode] = Listener(sock.address)
            found[sock.port].listeners.append(listening[sock.inode])
        elif sock.state == _ESTABLISHED:
            # A connection that nobody has accepted yet belongs to no file, so its inode is 0.
            (found[sock.port].clients if sock.inode else found[sock.port].waiting).append(sock.peer)
    if listening:
        for pid, inode in _owners(root, set(listening)):
            if listening[inode].pid is None:
                _describe(listening[inode], root / "proc" / str(pid))
    return list(found.values())


def addresses_of(port: int, root: Path = Path("/")) -> set[str]:
    """Return the addresses on which somebody listens on a port, whoever it is."""
    return {sock.address for sock in _sockets(root) if sock.port == port and sock.state == _LISTEN}


def peers(root: Path = Path("/")) -> dict[str, int]:
    """Return the other end of each established connection, and how often it was sent the same, or asked, in vain."""
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
            # Nothing is sent again while nothing is under way; then the kernel asks whether the other end is there.
            in_vain = max(int(columns[6], 16), int(columns[8]))
            yield _Socket(address, port, peer, columns[3], in_vain, int(columns[9]))


def _address(text: str) -> tuple[str, int]:
    """Turn `0100007F:1F90` into an address and a port: words of 32 bits, each as the machine has it in memory."""
    words, port = text.split(":")
    raw = b"".join(struct.pack("=I", int(words[start : start + 8], 16)) for start in range(0, len(words), 8))
    if len(raw) == 16 and raw[:12] == bytes(10) + b"\xff\xff":  # IPv4 on a socket of both families
        raw = raw[12:]
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw), int(port, 16)


def _owners(root: Path, inodes: set[int]) -> Iterator[tuple[int, int]]:
    """Give each process that has one of these sockets, with the socket's inode."""
    names = {f"socket:[{inode}]": inode for inode in inodes}
    for folder in sorted((root / "proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        # A process may end, or close a file, while it is looked at; and it may be another user's.
        with contextlib.suppress(OSError):
            for path in (folder / "fd").iterdir():
                with contextlib.suppress(OSError):
                    inode = names.get(os.readlink(path))
                    if inode is not None:
                        yield int(folder.name), inode


def _describe(listener: Listener, folder: Path) -> None:
    listener.pid = int(folder.name)
    try:
        listener.program = os.readlink(folder / "exe").replace(" (deleted)", "")
        variables = (folder / "environ").read_bytes().split(b"\0")
        groups = (folder / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for variable in variables:
        name, __, value = variable.partition(b"=")
        if name == MARK.encode():
            listener.unit_digest = value.decode("utf-8", "replace")
    # 0::/system.slice/x.service, on systems with the old tree 1:name=systemd:/system.slice/x.service
    unit = re.search(r"^\d+:(?:name=systemd)?:(?:/[^/\n]*)*?/([^/\n]+\.service)", groups, re.MULTILINE)
    listener.unit = unit.group(1) if unit else None
