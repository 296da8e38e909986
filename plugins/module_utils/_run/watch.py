# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: watch a running program, so that it does not wait for ever for a host that is gone or stands still.

It gets the process of coreutils' `timeout`; the program is the child of that process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any, Callable

from .._rpc.keepalive import GONE_AFTER_S, NotPermittedError, ask, sockets

_LOOK_EVERY_S = 1.0
# Any process uses less than this now and then, so less is no sign of life.
_CPU_S = 0.1
# Offsets in struct tcp_info (include/uapi/linux/tcp.h): unanswered retransmissions, unacknowledged data, and the bytes
# that have arrived at the other end and here.
_RETRANSMITS, _UNACKED, _ARRIVED = 2, 24, 120
_INFO_BYTES = 136
_IN_VAIN = 3


def sent_bytes(pid: int) -> int | None:
    """Return the bytes that have arrived at the other ends of a process's connections; None if that is not visible."""
    found = 0
    try:
        for sock in sockets(pid):
            with contextlib.suppress(OSError):  # it is not connected
                sock.getpeername()
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
                found += struct.unpack_from("=Q", info, _ARRIVED)[0]
    except NotPermittedError:
        return None
    return found


class Watch:
    """A check of a program every second; ends it if a worker's host is gone, or if nothing has moved for `still_s`."""

    def __init__(self, still_s: float | None = None) -> None:
        self.still_s = still_s
        # The worker whose host no longer answers, as address and port.
        self.gone: tuple[str, int] | None = None
        self.stood_still = False
        self._moved = 0.0
        self._sees = True
        # By the port of a connection: the bytes that have arrived at the worker, and since when there are no more.
        self._arrived: dict[int, tuple[int, float]] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, process: Any) -> None:  # noqa: ANN401 (a Popen, of whatever pipes)
        self.moved()
        self._thread = threading.Thread(target=self._watch, args=(process,), daemon=True)
        self._thread.start()

    def moved(self) -> None:
        """Record a sign of life."""
        self._moved = time.monotonic()

    def heard(self, listener: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Return a listener to output that also records it as a sign of life."""

        def listen(data: bytes) -> None:
            self.moved()
            listener(data)

        return listen

    def end(self) -> None:
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
        """Return the bytes that have arrived over the connections of a process; check that their hosts still answer."""
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
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        except OSError:
            return 0  # it is not connected yet, or no longer
        (unacked,) = struct.unpack_from("=I", info, _UNACKED)
        arrived, received = struct.unpack_from("=QQ", info, _ARRIVED)
        now = time.monotonic()
        before, since = self._arrived.get(port, (-1, now))
        self._arrived[port] = (arrived, now if arrived != before or not unacked else since)
        # While data is unacknowledged, the kernel sends no keepalive probes and retransmits for 15 minutes. Data from
        # the other end is meanwhile no sign that it receives ours.
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
    """Return how often a process had to wait for its disk, and its CPU time in seconds."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0, 0.0
    # proc(5): majflt, utime and stime are fields 12, 14 and 15 of the line; its first two fields were cut off.
    return int(fields[9]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
