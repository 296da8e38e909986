# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Private: the lines that action plugins show while a task runs. On the controller only."""

from __future__ import annotations

import sys

from ansible import constants, context
from ansible.utils.display import Display

SHOW_EVERY_S = 10

# Callbacks whose output people read as it comes. To any other, of which many write for programs (json, jsonl, minimal,
# oneline, ...), a line that is no result would be damage.
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
    """Return minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def wanted() -> bool:
    """Whether somebody reads lines that come between tasks' results."""
    # The program `ansible`, which runs a single module, prints nothing but its result.
    alone = "module_name" in context.CLIARGS
    return not alone and constants.DEFAULT_STDOUT_CALLBACK.rpartition(".")[2] in _FOR_PEOPLE


def come_at_once() -> None:
    """Have each line of this process written when it ends.

    Ansible leaves that to Python, which keeps some pages back where the output is a file or a pipe: in a CI job or
    behind `tee`, people would read where a task is after it has ended.
    """
    # Whoever imports this may have put something else there, such as a StringIO, and a closed output is None.
    if wanted() and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)


# What a task's process shows is written by Ansible's main process. That imports the action before the task begins.
come_at_once()


def show(host: str, task: str, seconds: float, what: str) -> None:
    """Show where a task is on a host after so many seconds, if somebody reads it."""
    if wanted():
        _display.display(f"[{host}] {task}: {clock(seconds)} {what}")
