# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the result of each task on each host as lines of JSON to the file that TASK_RESULTS names, for benchmarks."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.plugins.callback import CallbackBase

if TYPE_CHECKING:
    from ansible.executor.task_result import CallbackTaskResult
    from ansible.inventory.host import Host
    from ansible.playbook.task import Task

DOCUMENTATION = """
name: task_results
type: aggregate
short_description: What each task did on each host, as lines of JSON
description: The file is named by the environment variable TASK_RESULTS.
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "task_results"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.began: dict[tuple[str, str], float] = {}
        self.out = Path(os.environ["TASK_RESULTS"]).open("w", encoding="utf-8")  # noqa: SIM115 (open until exit)

    def write(self, status: str, done: CallbackTaskResult) -> None:
        result = done.result
        delegated = (result.get("_ansible_delegated_vars") or {}).get("ansible_delegated_host")
        task = done.task
        line = {
            # Hosts share a task's id, so a task that runs on many hosts has one place in the order.
            "id": str(task._uuid),
            "began_s": self.began.get((done.host.get_name(), str(task._uuid))),
            "ended_s": time.monotonic(),
            "host": done.host.get_name(),
            "on": str(delegated or done.host.get_name()),
            "task": task.get_name(),
            "action": str(task.action),
            "status": status,
            "changed": bool(result.get("changed")),
            "log": str(result.get("log", "")),
            "elapsed_s": result.get("elapsed_s"),
        }
        self.out.write(json.dumps(line) + "\n")
        self.out.flush()

    def v2_runner_on_start(self, host: Host, task: Task) -> None:
        self.began[host.get_name(), str(task._uuid)] = time.monotonic()

    def v2_runner_on_skipped(self, result: CallbackTaskResult) -> None:
        self.write("skipped", result)

    def v2_runner_on_ok(self, result: CallbackTaskResult) -> None:
        self.write("ok", result)

    def v2_runner_on_failed(self, result: CallbackTaskResult, ignore_errors: bool = False) -> None:  # noqa: ARG002
        self.write("failed", result)

    def v2_runner_on_unreachable(self, result: CallbackTaskResult) -> None:
        self.write("unreachable", result)
