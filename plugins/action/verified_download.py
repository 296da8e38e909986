# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run the module of the same name detached from the connection, and show its progress.

Over SSH a long silence could end the play. So the module runs as a task with `async` does, and this action asks for its
progress and its end with short calls.
"""

from __future__ import annotations

import os
import time
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.progress import read_bytes
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._lines import Flow, due, show
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._look import NotedModule

POLL_S = (0.2, 0.5, 1.0, 2.0)  # then the last one again and again
ASK_EVERY_S = 30  # for the end of a module whose note is there
LONGEST_S = 21600
GRACE_S = 60  # the module ends by itself before it is ended
# A host may restart its network, but does not stay away for longer.
AWAY_S = 300
# A module whose note is gone ends at once. One that does not was lost with its host, for example.
LOST_S = 60

# What a task with `async` adds to the result of its module.
_OF_THE_JOB = (
    "ansible_job_id",
    "finished",
    "results_file",
    "started",
    "stderr",
    "stderr_lines",
    "stdout",
    "stdout_lines",
)


class ActionModule(NotedModule):
    """The action that starts the module and looks after it."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module and wait for its end."""
        result: dict[str, Any]
        if self._task.async_val or self._task.check_mode:
            result = super().run(tmp, task_vars)
            return result
        given = str(self._task.args.get("timeout") or self._task.timeout or LONGEST_S)
        limit = (int(given) if given.isdigit() else LONGEST_S) + GRACE_S
        self._note_progress()
        self._task.async_val = limit
        try:
            job: dict[str, Any] = super().run(tmp, task_vars)
        finally:
            self._task.async_val = 0
        if "ansible_job_id" not in job:
            return job
        return self._wait(job["ansible_job_id"], limit, task_vars or {})

    def _wait(self, job: str, limit: int, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Return the result of the module; show its progress until then."""
        host, task, parent = (
            task_vars.get("inventory_hostname", "host"),
            self._task.name or self._task.action,
            os.getppid(),
        )
        began = heard = asked = seen = time.monotonic()
        shown, flow, polls, was_noted = 0.0, Flow(), iter(POLL_S), False
        while True:
            time.sleep(next(polls, POLL_S[-1]))
            now = time.monotonic()
            if os.getppid() != parent:
                raise AnsibleActionFail("ansible-playbook is gone.")  # and no task would follow this one
            if now - began > limit + GRACE_S:
                raise AnsibleActionFail(f"The task did not end within {limit} s, its time limit.")
            try:
                progress = read_bytes(self._noted())
                if progress:
                    was_noted, seen = True, now
                    text = flow.text(now - began, progress.done, progress.total)
                    if due(now - began, shown):
                        shown = now - began
                        show(host, task, now - began, f"{progress.what}, {text}")
                if not progress or now - asked > ASK_EVERY_S:
                    asked = now
                    answer = self._ask(job, "status", task_vars)
                    if answer.get("finished") or (answer.get("failed") and answer.get("_ansible_parsed")):
                        self._ask(job, "cleanup", task_vars)
                        return {name: value for name, value in answer.items() if name not in _OF_THE_JOB}
                heard = now
            except AnsibleConnectionFailure:
                if now - heard > AWAY_S:
                    raise
                self._connection.reset()
                continue
            if was_noted and now - seen > LOST_S:
                raise AnsibleActionFail("The task was ended before its time, for example by a restart of its host.")

    def _ask(self, job: str, mode: str, task_vars: dict[str, Any]) -> dict[str, Any]:
        folder = self._remote_expand_user(self.get_shell_option("async_dir", default="~/.ansible_async"))
        args = {"jid": job, "mode": mode, "_async_dir": folder}
        answer: dict[str, Any] = self._execute_module("ansible.legacy.async_status", args, task_vars=task_vars)
        return answer
