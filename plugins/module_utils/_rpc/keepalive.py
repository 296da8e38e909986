# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: turn on TCP keepalive for sockets of a llama.cpp process, so that its kernel checks the other end.

llama.cpp does not (ggml/src/ggml-rpc sets no SO_KEEPALIVE), so a host that disappears silently leaves the other one
waiting for ever. From Linux 5.6 on, another process can set it if it may trace the first one. The unit of a worker
contains this file and runs it as a program with the arguments PID and PORT. It then sets keepalive on the socket on
which PID listens; accepted sockets inherit it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import sys
import time
from typing import Iterator

# The kernel probes after each silent second, so that a silent host is noticed soon, and drops it after 30 s.
IDLE_S, EVERY_S, TIMES = 1, 1, 29
GONE_AFTER_S = IDLE_S + EVERY_S * TIMES
# A worker drops a client that accepts nothing of an answer for this long.
UNTAKEN_MS = 60000
# System calls, with the same numbers on every architecture. (include/uapi/asm-generic/unistd.h)
PIDFD_OPEN, PIDFD_GETFD = 434, 438


class NotPermittedError(Exception):
    """The kernel or the confinement of this process does not let it reach the other process's sockets."""


def sockets(pid: int) -> Iterator[socket.socket]:
    """Yield a copy of each TCP socket of a process, closed before the next; none if the process has ended.

    A copy that outlives the process would keep its connection open. Raises NotPermittedError.
    """
    call = ctypes.CDLL(None, use_errno=True).syscall
    handle = call(PIDFD_OPEN, pid, 0)
    if handle < 0:
        _check()
        return
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 (as quick as can be)
            if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                continue
            copy = call(PIDFD_GETFD, handle, int(name), 0)
            if copy < 0:
                _check()
                continue
            with socket.socket(fileno=copy) as found:
                if (found.family, found.type) == (socket.AF_INET, socket.SOCK_STREAM):
                    yield found
    except OSError:
        return  # the process has ended
    finally:
        os.close(handle)


def _check() -> None:
    if ctypes.get_errno() in (errno.EPERM, errno.ENOSYS):
        raise NotPermittedError


def ask(sock: socket.socket) -> None:
    """Turn on keepalive for a socket."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, TIMES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def main() -> None:
    """Turn on keepalive for the listening socket of a worker; wait up to 20 s for that socket."""
    pid, port = int(sys.argv[1]), int(sys.argv[2])
    end = time.monotonic() + 20
    try:
        while time.monotonic() < end and os.path.isdir(f"/proc/{pid}"):  # noqa: PTH112
            for sock in sockets(pid):
                if sock.getsockname()[1] == port and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNTAKEN_MS)
                    ask(sock)
                    return
            time.sleep(0.05)
    except NotPermittedError:
        why = "The socket of the worker cannot be reached here: it will wait for ever for a client that is gone."
        raise SystemExit(why) from None
    raise SystemExit("The worker does not listen.")


if __name__ == "__main__":
    main()
