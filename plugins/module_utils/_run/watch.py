# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: watches a running program, so that it does not wait for ever for a host that is gone or that stands still.

What it is told is the process of coreutils' `timeout`, whose child the program is.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._rpc.keepalive import GONE_AFTER_S, NotPermittedError, ask, sockets

if TYPE_CHECKING:
    from typing import Callable

_LOOK_EVERY_S = 1.0
# Less is what any process takes now and then.
_CPU_S = 0.1
# Where struct tcp_info (include/uapi/linux/tcp.h) has how often the same was sent again in vain, what is on its way,
# and the bytes that have arrived there and here.
_RETRANSMITS, _UNACKED, _ARRIVED = 2, 24, 120
_IN_VAIN = 3


class Watch:
    """Looks at a program every second; ends it if a worker's host is gone, or if nothing has moved for `still_s`."""

    def __init__(self, still_s: float | None = None) -> None:
        self.still_s = still_s
        # The worker whose host answers no more, as address and port.
        self.gone: tuple[str, int] | None = None
        self.stood_still = False
        self._moved = 0.0
        self._sees = True
        # By the port of a connection: what has arrived at the worker, and since when it is no more.
        self._arrived: dict[int, tuple[int, float]] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, process: Any) -> None:  # noqa: ANN401 (a Popen, of whatever pipes)
        """Watch the child of this process."""
        self.moved()
        self._thread = threading.Thread(target=self._watch, args=(process,), daemon=True)
        self._thread.start()

    def moved(self) -> None:
        """Take note of a sign of life."""
        self._moved = time.monotonic()

    def heard(self, listener: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Return a listener to output that takes it for a sign of life."""

        def listen(data: bytes) -> None:
            self.moved()
            listener(data)

        return listen

    def end(self) -> None:
        """Watch no longer."""
        self._over.set()
        if self._thread:
            self._thread.join()

    def _watch(self, process: Any) -> None:  # noqa: ANN401
        seen: tuple[int, int, float] | None = None
        while not self._over.wait(_LOOK_EVERY_S):
            pid = _child(process.pid)
            if pid is None:
                continue
            now = (self._traffic(pid) if self._sees else 0, *_work(pid))
            if seen is None or now[:2] != seen[:2] or now[2] - seen[2] > _CPU_S:
                seen = now
                self.moved()
            self.stood_still = self.still_s is not None and time.monotonic() - self._moved > self.still_s
            if self.gone or self.stood_still:
                process.terminate()
                return

    def _traffic(self, pid: int) -> int:
        """Return how much has arrived over the connections of a process, and see to it that the lost are noticed."""
        try:
            return sum(self._arrivals(sock) for sock in sockets(pid))
        except NotPermittedError:
            self._sees = False
            return 0

    def _arrivals(self, sock: socket.socket) -> int:
        try:
            peer, port = sock.getpeername(), sock.getsockname()[1]
            if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
                ask(sock)
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
        except OSError:
            return 0  # it is not connected yet, or no longer
        (unacked,) = struct.unpack_from("=I", info, _UNACKED)
        arrived, received = struct.unpack_from("=QQ", info, _ARRIVED)
        now = time.monotonic()
        before, since = self._arrived.get(port, (-1, now))
        self._arrived[port] = (arrived, now if arrived != before or not unacked else since)
        # While something is on its way the kernel does not ask, and goes on sending it for 15 minutes. What the other
        # end says meanwhile is no sign that it hears.
        if now - since > GONE_AFTER_S and unacked and arrived == before and info[_RETRANSMITS] >= _IN_VAIN:
            self.gone = (peer[0], peer[1])
        return int(arrived + received)


def _child(pid: int) -> int | None:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return None
    return int(children[0]) if children else None


def _work(pid: int) -> tuple[int, float]:
    """Return how often a process had to wait for its disk, and how much CPU time it has had, in seconds."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0, 0.0
    # proc(5): majflt, utime and stime are the fields 12, 14 and 15, of which the first two were cut off.
    return int(fields[9]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
