# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: where a run of a llama.cpp program is, read from its output as it comes, and told through a small file.

The file is for an action plugin that looks while the module runs; its name comes in the environment. No file is no
harm: what goes wrong with it is never said, and never ends a run. Knows neither Ansible nor processes.

What is told is never too much. llama.cpp prints at most one dot for each percent of the bytes that it has handed out,
and fewer where one tensor is several percent. Text is counted by the pieces in which it arrives: one for each token,
but on a busy host several tokens may be one piece.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# The environment variable with the path of the file.
VARIABLE = "LLAMA_CPP_CLUSTER_PROGRESS"

VERIFYING, LOADING, PREPARING, PROMPT, GENERATING = "verifying", "loading", "preparing", "prompt", "generating"
MEASURING = "measuring"

# Of tokens, which come one by one; all else is written as it comes.
_WRITE_EVERY_S = 1.0
# A line longer than this is none that is looked for.
_LONGEST_LINE = 4096

# src/llama.cpp, the progress callback: dots, and a line feed after the last.
_DOTS = re.compile(rb"\.{1,100}\r?")
# tools/completion/completion.cpp (once examples/main/main.cpp): the context is there, the prompt is next.
_GENERATE = re.compile(rb"\bgenerate: n_ctx = \d")
# tools/llama-bench/llama-bench.cpp, with --progress: what a run begins with. A test begins with a warm-up.
_BENCH_RUN = re.compile(
    rb"llama-bench: benchmark (\d{1,6})/([1-9]\d{0,5}): (?:warmup|depth|prompt|generation) (?:prompt |generation )?run"
    rb"(?: (\d{1,6})/(\d{1,6}))?"
)


@dataclass(frozen=True)
class State:
    """Where a run is."""

    phase: str
    attempt: int = 1
    # Of the bytes of the model; at least so many are where they belong.
    loaded_percent: float = 0.0
    # The size of its files.
    model_bytes: int = 0
    # Generated so far, at least, and at most asked for; of a benchmark the runs that are done, and all of them.
    tokens: int = 0
    tokens_asked: int = 0
    # The addresses of the workers to which the model is sent, as IPv4:port; none if they were not asked.
    peers: str = ""


def read_state(text: str) -> State | None:
    """Return what a file says, or None if that is no state."""
    try:
        found = json.loads(text)
        state = State(**{name: type(value)(found[name]) for name, value in asdict(State(VERIFYING)).items()})
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    numbers = (state.attempt, state.loaded_percent, state.model_bytes, state.tokens, state.tokens_asked)
    return state if all(0 <= number <= 2**60 for number in numbers) else None


class Progress:
    """Follows one call of a module, and writes to a file where it is."""

    def __init__(self, file: int | None = None) -> None:
        self.state = State(VERIFYING)
        self._file = file
        self._line = b""
        self._written = 0.0
        self._length = 0
        self._tell(self.state)

    def begin(self, attempt: int, model_bytes: int, tokens_asked: int, peers: Sequence[str]) -> None:
        """Tell that the program starts."""
        self._line = b""
        self._tell(State(LOADING, attempt, 0.0, model_bytes, 0, tokens_asked, " ".join(peers)))

    def text(self, data: bytes) -> None:
        """Take note of what has come from standard output."""
        if data and self._file is not None and self.state.phase != MEASURING:
            begun = self.state.phase == GENERATING
            state = replace(self.state, phase=GENERATING, tokens=min(self.state.tokens + 1, self.state.tokens_asked))
            self._tell(state, now=not begun)

    def log(self, data: bytes) -> None:
        """Take note of what has come from standard error."""
        if self._file is None or self.state.phase in (PROMPT, GENERATING):
            return
        *lines, rest = (self._line + data).split(b"\n")
        for line in lines:
            self._whole_line(line)
        self._line = rest[:_LONGEST_LINE]
        if self.state.phase == LOADING and _DOTS.fullmatch(rest):
            # A percent is counted as it begins.
            self._tell(replace(self.state, loaded_percent=float(len(rest))))

    def _whole_line(self, line: bytes) -> None:
        state = self.state
        if state.phase == LOADING and _DOTS.fullmatch(line):
            self._tell(replace(state, phase=PREPARING, loaded_percent=100.0))
        elif _GENERATE.search(line):
            self._tell(replace(state, phase=PROMPT, loaded_percent=100.0))
        else:
            run = _BENCH_RUN.match(line)
            if run:
                self._measuring(*(int(number or 0) for number in run.groups()))

    def _measuring(self, test: int, tests: int, run: int, runs: int) -> None:
        """Tell which run of which test begins; a warm-up is one, and has no number."""
        state = self.state
        # Only a run with a number says how many there are.
        each = runs + 1 if runs else state.tokens_asked // tests
        done = max(state.tokens if state.phase == MEASURING else 0, (test - 1) * each + run)
        self._tell(replace(state, phase=MEASURING, loaded_percent=100.0, tokens=done, tokens_asked=tests * each))

    def _tell(self, state: State, now: bool = True) -> None:
        if self._file is None or (state == self.state and self._length):
            return
        self.state = state
        if not now and time.monotonic() - self._written < _WRITE_EVERY_S:
            return
        self._written = time.monotonic()
        # One write, never shorter than the last: who reads meanwhile gets the one text or the other.
        data = json.dumps(asdict(state)).encode().ljust(self._length) + b"\n"
        self._length = len(data) - 1
        with contextlib.suppress(OSError):
            os.pwrite(self._file, data, 0)


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def told(path: str | None) -> Iterator[Progress]:
    """Follow what is done meanwhile, in a new file at this path, if any, which goes at the end."""
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600) if path else None
    except OSError:
        file = None
    if path is None or file is None:
        yield Progress()
        return
    # The connection's end must not leave the file behind.
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)
    try:
        yield Progress(file)
    finally:
        with contextlib.suppress(OSError):
            Path(path).unlink()
        os.close(file)
