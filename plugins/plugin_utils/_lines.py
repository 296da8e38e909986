# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Private: the lines that action plugins show while a task runs. On the controller only."""

from __future__ import annotations

import sys

from ansible import constants, context
from ansible.utils.display import Display

SHOW_EVERY_S = 10

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
    """Return seconds as text in minutes and seconds, such as `2:05`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def more(done: float, goal: float, seconds: float) -> str:
    """Return how long the rest takes, such as `about 2:05 more`, if `done` of `goal` took so many seconds."""
    return f"about {clock((goal - done) * seconds / done)} more"


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
    """Show the progress of a task on a host after so many seconds, if somebody reads it."""
    if wanted():
        _display.display(f"[{host}] {task}: {clock(seconds)} {what}")
