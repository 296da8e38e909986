# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: a small file in which a module tells how far it is, for an action plugin that reads it meanwhile.

The environment has the file's path. A module does not need the file: an error with it is not reported and never ends
the module. Knows nothing of Ansible.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Callable, Iterator, NamedTuple

# The environment variable with the path of the file.
VARIABLE = "LLAMA_CPP_CLUSTER_PROGRESS"
WRITE_EVERY_S = 1.0

DOWNLOADING, VERIFYING, JOINING = "downloading", "verifying", "joining"

# Gets what happens to the bytes of a file, how many it has happened to, and how many there are (None: not known).
Tell = Callable[[str, int, "int | None"], None]


def tell_nobody(what: str, done: int, total: int | None) -> None:
    """Tell nobody."""


class Note:
    """A short text in a file, replaced as a whole."""

    def __init__(self, file: int | None) -> None:
        self.is_read = file is not None
        self._file = file
        self._length = 0

    def write(self, text: str) -> None:
        if self._file is None:
            return
        # One write, never shorter than the last one, so that a reader gets either the old text or the new one.
        data = text.encode().ljust(self._length) + b"\n"
        self._length = len(data) - 1
        with contextlib.suppress(OSError):
            os.pwrite(self._file, data, 0)


class Step(NamedTuple):
    """What a module does, and how much of it is done: bytes, or what `of` names. `total` is 0 if it is not known."""

    what: str
    done: int = 0
    total: int = 0
    of: str = ""

    def noted(self) -> str:
        return json.dumps(self._asdict())


def read_step(text: str) -> Step | None:
    """Return the step in a file's text, None if the text is something else."""
    try:
        found = json.loads(text)
        step = Step(str(found["what"]), int(found["done"]), int(found["total"]), str(found["of"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return step if 0 <= step.done <= 2**60 and 0 <= step.total <= 2**60 else None


class Count:
    """A count of the bytes of several files, which it notes; `sizes` has their sizes, or None, in their order."""

    def __init__(self, note: Note, sizes: list[int | None]) -> None:
        self._note = note
        self._total = sum(size or 0 for size in sizes) if None not in sizes else 0
        self._before = 0
        self._written = 0.0
        self._what = ""

    def tell(self, what: str, done: int, total: int | None) -> None:
        """Note what happens to the current file; not more often than once a second."""
        now = time.monotonic()
        if what == self._what and now - self._written < WRITE_EVERY_S:
            return
        self._what, self._written = what, now
        if self._total:
            done, total = self._before + done, self._total
        self._note.write(Step(what, done, total or 0).noted())

    def next(self, size: int | None) -> None:
        """Go on to the next file."""
        self._before += size or 0


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def noted(path: str | None) -> Iterator[Note]:
    """Yield a note in a new file at this path, if any, and delete the file at the end."""
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600) if path else None
    except OSError:
        file = None
    if path is None or file is None:
        yield Note(None)
        return
    # A connection that ends must not leave the file behind.
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)
    try:
        yield Note(file)
    finally:
        with contextlib.suppress(OSError):
            Path(path).unlink()
        os.close(file)
