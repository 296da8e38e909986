# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: read the progress of a llama.cpp program from its output, and note it in a small file.

Knows neither Ansible nor processes.

The progress is never too high. llama.cpp prints at most one dot for each percent of the bytes that it has handed out,
and fewer if one tensor is several percent. Text is counted in the pieces in which it arrives: one for each token, but
on a busy host one piece may have several tokens.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import Iterator

from .._files.progress import WRITE_EVERY_S, Note, Step, noted

VERIFYING, LOADING = "verifying the workers", "loading the model"
PREPARING, PROMPT = "the model is loaded, preparing the context", "reading the prompt"
GENERATING, MEASURING = "generating", "measuring"

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


class Progress:
    """The progress of one call of a module, which it notes."""

    def __init__(self, note: Note | None = None) -> None:
        self.step = Step(VERIFYING)
        self._note = note or Note(None)
        self._line = b""
        self._written = 0.0
        self._model_bytes = self._tokens = 0
        self._tell(self.step)

    def begin(self, attempt: int, model_bytes: int, tokens: int) -> None:
        """Record that the program starts, to load so many bytes and to generate so many tokens at most."""
        self._line, self._model_bytes, self._tokens = b"", model_bytes, tokens
        self._tell(Step(LOADING + (" again, as the end of the output was lost" if attempt > 1 else ""), 0, model_bytes))

    def text(self, data: bytes) -> None:
        """Update the progress with data from standard output."""
        if data and self._note.is_read and self.step.what != MEASURING:
            begun = self.step.what == GENERATING
            done = self.step.done + 1 if begun else 1
            self._tell(Step(GENERATING, min(done, self._tokens), self._tokens, "tokens at most"), now=not begun)

    def log(self, data: bytes) -> None:
        """Update the progress with data from standard error."""
        if not self._note.is_read or self.step.what in (PROMPT, GENERATING):
            return
        *lines, rest = (self._line + data).split(b"\n")
        for line in lines:
            self._whole_line(line)
        self._line = rest[:_LONGEST_LINE]
        if self._loads and _DOTS.fullmatch(rest):
            # llama.cpp prints at most one dot for each percent.
            self._tell(self.step._replace(done=self._model_bytes * min(len(rest), 100) // 100))

    @property
    def _loads(self) -> bool:
        return self.step.what.startswith(LOADING)

    def _whole_line(self, line: bytes) -> None:
        run = _BENCH_RUN.match(line)
        if self._loads and _DOTS.fullmatch(line):
            self._tell(Step(PREPARING))
        elif _GENERATE.search(line):
            self._tell(Step(PROMPT))
        elif run:
            self._measuring(*(int(number or 0) for number in run.groups()))

    def _measuring(self, test: int, tests: int, run: int, runs: int) -> None:
        """Record which run of which test begins. A warm-up is a run without a number."""
        measures = self.step.what == MEASURING
        # Only a line with a run's number has the number of runs.
        each = runs + 1 if runs else (self.step.total if measures else 0) // tests
        done = max(self.step.done if measures else 0, (test - 1) * each + run)
        self._tell(Step(MEASURING, done, tests * each, "runs"))

    def _tell(self, step: Step, now: bool = True) -> None:
        if not self._note.is_read or (step == self.step and self._written):
            return
        self.step = step
        if not now and time.monotonic() - self._written < WRITE_EVERY_S:
            return
        self._written = time.monotonic()
        self._note.write(step.noted())


@contextlib.contextmanager
def progress_in(path: str | None) -> Iterator[Progress]:
    """Yield a Progress that writes to a new file at this path, if any, and delete the file at the end."""
    with noted(path) as note:
        yield Progress(note)
