# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: has the kernel ask, for sockets of a llama.cpp process, whether the other end is still there.

Upstream's llama.cpp never asks (ggml/src/ggml-rpc sets no SO_KEEPALIVE; with the patch rpc-transport it does, after as
long), so a host that goes without a word leaves the other one waiting for ever. From Linux 5.6 on another process can
set that, if it may trace the first. As a program, PID PORT, which the unit of a worker holds, it does so for the socket
that PID listens on: those that it accepts inherit it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import sys
import time
from typing import Iterator

# The kernel asks for each second without a sign, so that a silent host is seen soon, and gives it up after 30 s.
IDLE_S, EVERY_S, TIMES = 1, 1, 29
GONE_AFTER_S = IDLE_S + EVERY_S * TIMES
# A client that takes nothing of an answer for so long is given up by a worker.
UNTAKEN_MS = 60000
# The same on every architecture. (include/uapi/asm-generic/unistd.h)
PIDFD_OPEN, PIDFD_GETFD = 434, 438


class NotPermittedError(Exception):
    """Neither this kernel nor what confines this process lets it reach the other's sockets."""


def sockets(pid: int) -> Iterator[socket.socket]:
    """Give the TCP sockets of a process, each as a copy that is closed with the next; none if it has ended.

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
        return  # it has ended
    finally:
        os.close(handle)


def _check() -> None:
    if ctypes.get_errno() in (errno.EPERM, errno.ENOSYS):
        raise NotPermittedError


def ask(sock: socket.socket) -> None:
    """Have the kernel ask whether the other end is there."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, TIMES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def main() -> None:
    """Do so for the listening socket of a worker, which may take a moment to be there."""
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
