# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: read the progress of a llama.cpp program from its output, and note it in a small file.

Knows neither Ansible nor processes.

The progress is never too high. llama.cpp prints at most one dot for each percent of the bytes that it has handed out,
and fewer if one tensor is several percent. Text is counted in the pieces in which it arrives: one for each token, but
on a busy host one piece may have several tokens.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from .._files.progress import WRITE_EVERY_S, Note, noted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VERIFYING, LOADING, PREPARING, PROMPT, GENERATING = "verifying", "loading", "preparing", "prompt", "generating"
MEASURING = "measuring"

# The lines that are looked for are not longer than this.
_LONGEST_LINE = 4096

# src/llama.cpp, the progress callback: dots, and a line feed after the last.
_DOTS = re.compile(rb"\.{1,100}\r?")
# tools/completion/completion.cpp (once examples/main/main.cpp): the context is there, the prompt is next.
_GENERATE = re.compile(rb"\bgenerate: n_ctx = \d")
# tools/llama-bench/llama-bench.cpp, with --progress: the line before a run. A test begins with a warm-up.
_BENCH_RUN = re.compile(
    rb"llama-bench: benchmark (\d{1,6})/([1-9]\d{0,5}): (?:warmup|depth|prompt|generation) (?:prompt |generation )?run"
    rb"(?: (\d{1,6})/(\d{1,6}))?"
)


@dataclass(frozen=True)
class State:
    """The progress of a run."""

    phase: str
    attempt: int = 1
    # Of the bytes of the model; at least this part is loaded.
    loaded_percent: float = 0.0
    # The size of the model's files.
    model_bytes: int = 0
    # Tokens generated so far (at least) and requested (at most); of a benchmark, the runs done and all runs.
    tokens: int = 0
    tokens_asked: int = 0
    # The addresses of the workers to which the model is sent, as IPv4:port; empty if they were not probed.
    peers: str = ""


def read_state(text: str) -> State | None:
    """Return the state in a file's text, None if the text is not a state."""
    try:
        found = json.loads(text)
        state = State(**{name: type(value)(found[name]) for name, value in asdict(State(VERIFYING)).items()})
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    numbers = (state.attempt, state.loaded_percent, state.model_bytes, state.tokens, state.tokens_asked)
    return state if all(0 <= number <= 2**60 for number in numbers) else None


class Progress:
    """The progress of one call of a module, which it notes."""

    def __init__(self, note: Note | None = None) -> None:
        self.state = State(VERIFYING)
        self._note = note or Note(None)
        self._line = b""
        self._written = 0.0
        self._tell(self.state)

    def begin(self, attempt: int, model_bytes: int, tokens_asked: int, peers: Sequence[str]) -> None:
        """Record that the program starts."""
        self._line = b""
        self._tell(State(LOADING, attempt, 0.0, model_bytes, 0, tokens_asked, " ".join(peers)))

    def text(self, data: bytes) -> None:
        """Update the progress with data from standard output."""
        if data and self._note.is_read and self.state.phase != MEASURING:
            begun = self.state.phase == GENERATING
            state = replace(self.state, phase=GENERATING, tokens=min(self.state.tokens + 1, self.state.tokens_asked))
            self._tell(state, now=not begun)

    def log(self, data: bytes) -> None:
        """Update the progress with data from standard error."""
        if not self._note.is_read or self.state.phase in (PROMPT, GENERATING):
            return
        *lines, rest = (self._line + data).split(b"\n")
        for line in lines:
            self._whole_line(line)
        self._line = rest[:_LONGEST_LINE]
        if self.state.phase == LOADING and _DOTS.fullmatch(rest):
            # llama.cpp prints at most one dot for each percent.
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
        """Record which run of which test begins. A warm-up is a run without a number."""
        state = self.state
        # Only a line with a run's number has the number of runs.
        each = runs + 1 if runs else state.tokens_asked // tests
        done = max(state.tokens if state.phase == MEASURING else 0, (test - 1) * each + run)
        self._tell(replace(state, phase=MEASURING, loaded_percent=100.0, tokens=done, tokens_asked=tests * each))

    def _tell(self, state: State, now: bool = True) -> None:
        if not self._note.is_read or (state == self.state and self._written):
            return
        self.state = state
        if not now and time.monotonic() - self._written < WRITE_EVERY_S:
            return
        self._written = time.monotonic()
        self._note.write(json.dumps(asdict(state)))


@contextlib.contextmanager
def progress_in(path: str | None) -> Iterator[Progress]:
    """Yield a Progress that writes to a new file at this path, if any, and delete the file at the end."""
    with noted(path) as note:
        yield Progress(note)
