# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of `make demo`: each step when it begins, each message as it is, and each failure as a sentence."""

from __future__ import annotations

DOCUMENTATION = r"""
name: demo_steps
type: stdout
short_description: Shows the steps of the demo
description:
  - A line for each step when it begins, so that a long one has a name while it lasts.
  - Messages and failures are shown as text. What looks and decides only is not shown.
  - Set E(ANSIBLE_STDOUT_CALLBACK) to V(default) to see every task and its result.
"""

import time
from typing import TYPE_CHECKING, Any

from ansible.plugins.callback import CallbackBase

if TYPE_CHECKING:
    from ansible.executor.task_result import CallbackTaskResult
    from ansible.playbook.task import Task

# These actions only read, decide or print. The others may take a while.
SILENT = {
    "assert", "debug", "find", "include_role", "include_tasks", "meta", "set_fact", "setup", "slurp", "stat",
    "validate_argument_spec",
}  # fmt: skip


def complaint(result: dict[str, Any]) -> str:
    """Return why a task failed: its message and a program's output, or those of each failed item."""
    items = [item for item in result.get("results") or [] if item.get("failed")]
    if items:
        return "\n".join(complaint(item) for item in items)
    said = [str(result.get("msg") or "It failed without a reason.")]
    if "rc" in result:
        said.append(str(result.get("stderr") or result.get("stdout") or ""))
    return "\n".join(part.strip() for part in said if part.strip())


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """The output for a person who watches the run."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "demo_steps"

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()

    def v2_playbook_on_task_start(self, task: Task, is_conditional: bool) -> None:  # noqa: ARG002
        """Print the elapsed time and the name of a step before it runs."""
        if task.action.rpartition(".")[2] not in SILENT:
            passed = int(time.monotonic() - self._began)
            self._display.display(f"{passed // 60:2}:{passed % 60:02} {task.name}")

    def v2_runner_on_ok(self, result: CallbackTaskResult) -> None:
        """Print the message of a debug task."""
        self._handle_warnings(result.result)
        if result.task.action.rpartition(".")[2] == "debug":
            message = result.result.get("msg", "")
            text = "\n".join(message) if isinstance(message, list) else str(message)
            self._display.display(f"\n{text.strip()}\n")

    def v2_runner_on_skipped(self, result: CallbackTaskResult) -> None:
        """Print that an announced step was not needed."""
        if result.task.action.rpartition(".")[2] not in SILENT:
            self._display.display("      (not needed here)")

    def v2_runner_on_failed(self, result: CallbackTaskResult, ignore_errors: bool = False) -> None:
        """Print why a task failed, unless its errors are ignored."""
        if not ignore_errors:
            self._display.display(f"\nerror: {complaint(result.result)}\n", color="red", stderr=True)

    def v2_runner_on_unreachable(self, result: CallbackTaskResult) -> None:
        """Print why a host cannot be reached."""
        self.v2_runner_on_failed(result)
