# SPDX-License-Identifier: GPL-3.0-or-later
"""Let the requests of a llama-server end before it is stopped; new ones wait at the door.

llama-server drains nothing: asked to end, it cuts its streams. Its unit runs this first, as root. A filter on the
listening socket drops what opens a connection, so a client that comes now tries again after a second or three, as TCP
does by itself, and gets through to the next llama-server. Who is connected is served.
"""

from __future__ import annotations

import argparse
import ctypes
import http.client
import os
import re
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Iterator

from _rpc.keepalive import NotPermittedError, sockets

LOOK_EVERY_S = 0.5
SO_ATTACH_FILTER = 26  # include/uapi/asm-generic/socket.h
# struct sock_filter: code, jt, jf, k; and where a filter finds the mark of a packet (linux/filter.h).
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
MARK_OF_PACKET = 0xFFFFF000 + 20
WHOLE_PACKET = 0xFFFFFFFF
# By this the filter knows what this program sends. It cannot know it by a port: the unit lets nobody bind to another
# one than that of the API.
OWN_MARK = 0x6C6C616D
_BUSY = re.compile(rb"^llamacpp:requests_(?:processing|deferred) (\d+)", re.MULTILINE)


def family_of(pid: int) -> Iterator[int]:
    """Give a process and those that it has started."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return
    for child in children:
        yield from family_of(int(child))


class OwnConnection(http.client.HTTPConnection):
    """A connection that the filter lets through, also when it is opened again."""

    def connect(self) -> None:
        """Open it."""
        self.sock = socket.socket()
        self.sock.settimeout(self.timeout)
        # Where this is not permitted there is no filter.
        with suppress(PermissionError):
            mark(self.sock)
        self.sock.connect((self.host, self.port))


def mark(sock: socket.socket) -> None:
    """Have the kernel mark what this socket sends; raises PermissionError."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, OWN_MARK)


def close_the_door(pid: int, port: int) -> bool:
    """Drop what opens a connection to this port, but for those of this program; returns whether somebody listens.

    Raises NotPermittedError and PermissionError.
    """
    with socket.socket() as own:
        mark(own)
    program = [
        (LOAD_WORD, 0, 0, MARK_OF_PACKET),
        (JUMP_IF_EQUAL, 0, 1, OWN_MARK),
        (RETURN, 0, 0, WHOLE_PACKET),
        (RETURN, 0, 0, 0),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    for member in family_of(pid):
        for sock in sockets(member):
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and sock.getsockname()[1] == port:
                option = struct.pack("HL", len(program), ctypes.addressof(code))
                sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, option)
                return True
    return False


def under_way(connection: http.client.HTTPConnection, key: str) -> int | None:
    """Return how many requests are served or wait; None if that is not known."""
    try:
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return None
    if answer.status == http.client.SERVICE_UNAVAILABLE:  # While it loads it serves nobody.
        return 0
    return sum(map(int, _BUSY.findall(text))) if answer.status == http.client.OK else None


def first_key(path: Path) -> str:
    """Return a key of the file, or nothing."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    return next((line for line in lines if line and not line.startswith("#")), "")


def main() -> int:
    """Wait until no request is under way, but not longer than told."""
    parser = argparse.ArgumentParser(description="Let the requests of a llama-server end before it is stopped.")
    parser.add_argument("pid", type=int, help="the main process of the unit")
    parser.add_argument("address", help="where it listens")
    parser.add_argument("port", type=int)
    parser.add_argument("keys", type=Path, help="the file with the keys")
    parser.add_argument("limit", type=float, help="seconds")
    args = parser.parse_args()
    address = "127.0.0.1" if args.address == "0.0.0.0" else args.address  # noqa: S104 - not bound here
    deadline = time.monotonic() + args.limit
    connection = OwnConnection(address, args.port, timeout=max(1.0, args.limit))
    key = first_key(args.keys)
    # The service tells gateways, which then send nothing more.
    with suppress(ProcessLookupError):
        os.kill(args.pid, signal.SIGUSR1)
    try:
        if not close_the_door(args.pid, args.port):
            return 0
    except (NotPermittedError, PermissionError):
        print("The socket of llama-server cannot be reached here: new requests are taken until it is stopped.")
    said, idle_looks, count = False, 0, None
    while time.monotonic() < deadline:
        count = under_way(connection, key)
        # A request that came as the door closed is counted a moment later.
        idle_looks = idle_looks + 1 if count == 0 else 0
        if idle_looks == 2:
            return 0
        if count and not said:
            print(f"Requests under way: {count}. They have {args.limit:.0f} s to end; new ones wait.", flush=True)
            said = True
        time.sleep(LOOK_EVERY_S)
    if count is None:
        print(f"Requests under way could not be counted: any that are left after {args.limit:.0f} s are cut off.")
    else:
        print(f"Not all requests ended within {args.limit:.0f} s: those that are left are cut off.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
