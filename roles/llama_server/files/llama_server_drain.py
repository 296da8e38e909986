# SPDX-License-Identifier: GPL-3.0-or-later
"""Let the requests of a llama-server end before it is stopped; new clients wait.

llama-server does not drain: when asked to end, it cuts its streams. So its unit runs this program first, as root. A
filter on the listening socket drops packets that open a connection. The TCP of a new client then tries again by itself
after a second or three, and reaches the next llama-server. Connected clients are still served.
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
from llama_server_prompts import SavedPrompts, answer_of

LOOK_EVERY_S = 0.5
# The unit waits for 30 s longer than for the requests.
SAVE_LIMIT_S = 20
SO_ATTACH_FILTER = 26  # include/uapi/asm-generic/socket.h
# Codes of struct sock_filter (code, jt, jf, k), and the offset at which a filter finds the mark of a packet
# (linux/filter.h).
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
MARK_OF_PACKET = 0xFFFFF000 + 20
WHOLE_PACKET = 0xFFFFFFFF
# The filter recognises packets of this program by this mark. It cannot use the source port, because the unit permits
# binding only to the port of the API.
OWN_MARK = 0x6C6C616D
_BUSY = re.compile(rb"^llamacpp:requests_(?:processing|deferred) (\d+)", re.MULTILINE)


def family_of(pid: int) -> Iterator[int]:
    """Yield the ID of a process, and those of all its descendants."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return
    for child in children:
        yield from family_of(int(child))


class OwnConnection(http.client.HTTPConnection):
    """A connection that the filter lets through, even if it is opened again."""

    def connect(self) -> None:
        """Open the connection."""
        self.sock = socket.socket()
        self.sock.settimeout(self.timeout)
        # If this is not permitted, there is no filter either.
        with suppress(PermissionError):
            mark(self.sock)
        self.sock.connect((self.host, self.port))


def mark(sock: socket.socket) -> None:
    """Make the kernel mark the packets of a socket; raises PermissionError."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, OWN_MARK)


def close_the_door(pid: int, port: int) -> bool:
    """Drop new connections to a port, except those of this program; return whether a process of the unit listens there.

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
    """Return the number of requests that are served or wait, or None if it is not known."""
    try:
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return None
    if answer.status == http.client.SERVICE_UNAVAILABLE:  # It serves nobody while it loads.
        return 0
    return sum(map(int, _BUSY.findall(text))) if answer.status == http.client.OK else None


def first_key(path: Path) -> str:
    """Return the first key of the file, or an empty string."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    return next((line for line in lines if line and not line.startswith("#")), "")


def save_prompts(folder: Path | None, address: str, port: int, api_key: str) -> None:
    """Save the conversations of a llama-server whose requests have ended, if its service keeps them."""
    until = time.monotonic() + SAVE_LIMIT_S

    def ask(method: str, path: str, body: dict[str, str] | None, key: str) -> tuple[int | None, bytes]:
        connection = OwnConnection(address, port, timeout=max(0.1, until - time.monotonic()))
        return answer_of(connection, method, path, body, {"Authorization": f"Bearer {api_key}", "X-Slots-Key": key})

    prompts = SavedPrompts.of_drain(folder, ask) if folder else None
    for sentence in prompts.save() if prompts else ():
        print(sentence, flush=True)


def wait_until_idle(connection: http.client.HTTPConnection, key: str, limit_s: float, deadline: float) -> None:
    """Wait until no request is in progress, or the limit is over; say which."""
    said, idle_looks, count = False, 0, None
    while time.monotonic() < deadline:
        count = under_way(connection, key)
        # Look twice: a request that came just before the filter is counted a moment later.
        idle_looks = idle_looks + 1 if count == 0 else 0
        if idle_looks == 2:
            return
        if count and not said:
            print(f"Requests under way: {count}. They have {limit_s:.0f} s to end; new ones wait.", flush=True)
            said = True
        time.sleep(LOOK_EVERY_S)
    if count is None:
        print(f"Requests under way could not be counted: any that are left after {limit_s:.0f} s are cut off.")
    else:
        print(f"Not all requests ended within {limit_s:.0f} s: those that are left are cut off.")


def main() -> int:
    """Wait until no request is in progress, but not longer than the given limit; return the exit status."""
    parser = argparse.ArgumentParser(description="Let the requests of a llama-server end before it is stopped.")
    parser.add_argument("pid", type=int, help="the main process of the unit")
    parser.add_argument("address", help="where it listens")
    parser.add_argument("port", type=int)
    parser.add_argument("keys", type=Path, help="the file with the keys")
    parser.add_argument("limit", type=float, help="seconds")
    parser.add_argument("prompts", type=Path, nargs="?", help="the folder of saved conversations")
    args = parser.parse_args()
    address = "127.0.0.1" if args.address == "0.0.0.0" else args.address  # noqa: S104 - not bound here
    deadline = time.monotonic() + args.limit
    connection = OwnConnection(address, args.port, timeout=max(1.0, args.limit))
    key = first_key(args.keys)
    # On this signal the service tells gateways that it is about to stop, and they send no new requests.
    with suppress(ProcessLookupError):
        os.kill(args.pid, signal.SIGUSR1)
    try:
        if not close_the_door(args.pid, args.port):
            return 0
    except (NotPermittedError, PermissionError):
        print("The socket of llama-server cannot be reached here: new requests are taken until it is stopped.")
    wait_until_idle(connection, key, args.limit, deadline)
    save_prompts(args.prompts, address, args.port, key)
    return 0


if __name__ == "__main__":
    sys.exit(main())
