# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the lines that action plugins show while a task runs. On the controller only."""

from __future__ import annotations

import sys
import time

from ansible import constants, context
from ansible.utils.display import Display
from ansible_collections.llama_cpp.cluster.plugins.module_utils._status.report import safe_text

SHOW_EVERY_S = 10
RATE_OVER_S = 60  # a rate is that of the last minute
SHORTEST_S = 4  # a shorter time gives no reliable rate

# Callbacks whose output people read as it comes. Many others write for programs (json, jsonl, minimal, oneline, ...):
# a line that is not a result would damage their output.
_FOR_PEOPLE = {
    "awx_display",
    "counter_enabled",
    "debug",
    "default",
    "default_without_diff",
    "demo_steps",
    "print_task",
    "selective",
    "tasks_only",
    "timestamp",
    "unixy",
    "yaml",
}

_display = Display()


def clock(seconds: float) -> str:
    """Return seconds as text in minutes and seconds, such as `2:05`; from an hour on, `1:02:05`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def more(done: float, goal: float, seconds: float) -> str:
    """Return how long the rest takes, such as `about 2:05 more`, if `done` of `goal` took so many seconds."""
    return f"about {clock((goal - done) * seconds / done)} more"


def amount(size_bytes: float) -> str:
    """Return a number of bytes as text, such as `37.2 GiB` or `512 MiB`."""
    for unit in ("KiB", "MiB", "GiB"):
        size_bytes /= 1024
        if size_bytes < 1023.5 or unit == "GiB":
            break
    return f"{size_bytes:.1f} {unit}" if 0 < size_bytes < 10 or unit == "GiB" else f"{size_bytes:.0f} {unit}"


def due(elapsed: float, shown: float) -> bool:
    """Return whether a line is due, if the last one was `shown` at that time; both are seconds since the beginning.

    Every ten seconds at first. Later a twentieth of the elapsed time passes, so six hours bring some hundred lines.
    """
    # The tolerance of 1 s keeps a look that was late by a moment from delaying the next line.
    return elapsed - shown >= max(SHOW_EVERY_S, elapsed / 20) - 1


def wanted() -> bool:
    """Return whether somebody reads lines between the results of tasks."""
    # The program `ansible`, which runs a single module, prints only its result.
    alone = "module_name" in context.CLIARGS
    return not alone and constants.DEFAULT_STDOUT_CALLBACK.rpartition(".")[2] in _FOR_PEOPLE


def come_at_once() -> None:
    """Make the output of this process line-buffered.

    Ansible leaves this to Python, which holds back some pages if the output is a file or a pipe. In a CI job or behind
    `tee`, people would read the progress of a task only after the task has ended.
    """
    # The importing program may have replaced stdout, for example by a StringIO, and a closed stdout is None.
    if wanted() and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)


# Ansible's main process writes the lines that a task's process shows, and it imports the action before the task begins.
come_at_once()


def show(host: str, task: str, seconds: float, what: str) -> None:
    """Show the progress of a task on a host after so many seconds, if somebody reads it.

    What comes from a host may hold characters that control a terminal, so these are replaced.
    """
    if wanted():
        _display.display(f"[{host}] {task}: {clock(seconds)} {safe_text(what)}")


class Teller:
    """Shows how far a task on a host is, now and then: how much is done, how fast, and how long the rest takes."""

    def __init__(self, host: str, task: str) -> None:
        self._host, self._task = host, task
        self._began, self._shown = time.monotonic(), 0.0
        self._goal: tuple[int, str] | None = None
        self._seen: list[tuple[float, int]] = []

    def tell(self, what: str, done: int = 0, total: int = 0, of: str = "") -> None:
        """Show what the task does, if a line is due. It counts bytes, or what `of` names; `total` may not be known."""
        elapsed = time.monotonic() - self._began
        text = self.line(elapsed, what, done, total, of)
        if due(elapsed, self._shown):
            self._shown = elapsed
            show(self._host, self._task, elapsed, text)

    def line(self, now: float, what: str, done: int = 0, total: int = 0, of: str = "") -> str:
        """Return what to show after `now` seconds."""
        if self._goal != (total, of) or (self._seen and done < self._seen[-1][1]):
            self._goal, self._seen = (total, of), []  # it has begun, or has begun again
        self._seen.append((now, done))
        while len(self._seen) > 2 and self._seen[1][0] <= now - RATE_OVER_S:
            del self._seen[0]
        if not done and not total:
            return what
        words = [f"{done} of {total} {of}" if of else self._percent(done, total)]
        seconds, new = now - self._seen[0][0], done - self._seen[0][1]
        if seconds >= SHORTEST_S and not of:
            words.append(f"{amount(new / seconds)}/s")
        if seconds >= SHORTEST_S and new and done < total:
            words.append(more(new, new + total - done, seconds))
        return f"{what}{'' if what.endswith(('.', ':')) else ','} {', '.join(words)}"

    @staticmethod
    def _percent(done: int, total: int) -> str:
        return f"{100 * min(done, total) // total} % of {amount(total)}" if total else amount(done)
