# SPDX-License-Identifier: GPL-3.0-or-later
"""Send workers requests that no client makes, and find what becomes of the workers.

Upstream says never to expose a worker, as a malformed request may end it. A patch must not add another way to do so: a
session that ends the patched worker has to end upstream's as well.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from support.harness import free_port, listens
from support.malformed_sessions import Message, Recording, send
from support.rpc_session import Session, WorkerClosedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.hostile_requests import Attack

SESSION_S = 20.0


@dataclass(frozen=True)
class Outcome:
    """The state of a worker after a session."""

    status: int | None  # None: it still serves
    log: str

    @property
    def died(self) -> bool:
        """Whether the messages ended the worker; SIGPIPE only means that the client no longer waited for an answer."""
        return self.status not in (None, -signal.SIGPIPE)

    @property
    def errors(self) -> set[str]:
        """The errors that the sanitizers found, by their place.

        Upstream's server reads numbers where they lie in a packed message, and these processors do so, too.
        """
        return set(re.findall(r"(\S+?:\d+):\d+: runtime error: (?!.*misaligned address)", self.log)) | set(
            re.findall(r"ERROR: (AddressSanitizer: \S+)", self.log)
        )

    @property
    def last(self) -> str:
        lines = [line for line in self.log.splitlines() if re.search(r"ASSERT|ERROR: |runtime error|#[0-3] ", line)]
        return "\n".join(lines[-12:])


@contextmanager
def _worker(program: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    port = free_port()
    options = "exitcode=99:allocator_may_return_null=1:max_allocation_size_mb=256:detect_leaks=0"
    with tempfile.TemporaryDirectory() as folder:
        log = type(program)(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [program, "-H", "127.0.0.1", "-p", str(port), "-d", "CPU", "-t", "2"],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, "GGML_NO_BACKTRACE": "1", "ASAN_OPTIONS": options, "HOME": folder},
            )  # fmt: skip
        try:
            while not listens(process.pid, port):
                assert process.poll() is None, log.read_text()
                time.sleep(0.01)
            yield process, port, log
        finally:
            process.kill()
            process.wait(10)


def _outcome(process: subprocess.Popen[bytes], log: Path) -> Outcome:
    """Wait until a worker logs the end of a session, or is dead; return the outcome."""
    deadline = time.monotonic() + SESSION_S
    while process.poll() is None and "connection closed" not in log.read_text(errors="replace"):
        if time.monotonic() > deadline:
            process.kill()
            process.wait(10)
        time.sleep(0.005)
    return Outcome(process.poll(), log.read_text(errors="replace"))


def play(program: Path, recording: Recording, messages: list[Message]) -> Outcome:
    """Send these messages to a new worker, and return the outcome."""
    with _worker(program) as (process, port, log):
        send(port, recording, messages)
        return _outcome(process, log)


def attacked(program: Path, attack: Attack) -> Outcome:
    """Make the requests of an attack to a new worker, and return the outcome."""
    with _worker(program) as (process, port, log):
        with suppress(WorkerClosedError), closing(Session(port)) as session:
            attack(session)
        return _outcome(process, log)
