# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: look up the names of workers in parallel, without waiting for any of them."""

from __future__ import annotations

import socket
import threading
from collections import deque
from contextlib import suppress
from typing import Iterable, Iterator

_RESOLVER_THREADS = 100
_ADDRESS_LIMIT = 8


class Resolver:
    """A look-up of names in daemon threads, because getaddrinfo can block for minutes and cannot be cancelled."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = deque(names)
        self._answers: deque[tuple[str, list[str], str]] = deque()
        self.pending = len(self._names)
        for _thread in range(min(self.pending, _RESOLVER_THREADS)):
            with suppress(RuntimeError):  # the system grants no more threads; those that run do the work
                threading.Thread(target=self._work, daemon=True).start()

    def answers(self) -> Iterator[tuple[str, list[str], str]]:
        """Yield the answers so far: name, addresses, and the reason if there are none."""
        while self._answers:
            self.pending -= 1
            yield self._answers.popleft()

    def stop(self) -> None:
        """Start no further look-up."""
        self._names.clear()

    def _work(self) -> None:
        while True:
            try:
                name = self._names.popleft()
            except IndexError:
                return
            self._answers.append((name, *self._look_up(name)))

    @staticmethod
    def _look_up(name: str) -> tuple[list[str], str]:
        try:
            found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
        except OSError as error:
            return [], str(error.strerror or error)
        except UnicodeError:
            return [], "not a host name"
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))[:_ADDRESS_LIMIT], "no IPv4 address"
