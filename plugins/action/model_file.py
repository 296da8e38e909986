# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the module of the same name detached from the connection, send it the controller's files, and show the progress.

Over SSH a long silence could end the play. So the module runs as a task with `async` does, and this action asks for its
progress and its end with short calls.
"""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.progress import read_step
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import model_parts
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._lines import Teller
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._look import NotedModule, beside, looking, send

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
        """Run the module and wait for its end. Send files from the controller to its folder before."""
        args = self._task.args
        sources = [Path(str(path)) for path in args.get("controller_files") or []]
        if not sources or args.get("state", "present") != "present":
            return self._detached(tmp, task_vars)
        joined = boolean(args.get("joined") or False)
        names = [it.name for it in sources if joined] or [it.name for it in model_parts(Path(str(args["path"])))]
        try:
            sizes = {source: source.stat().st_size for source in sources}
        except OSError as error:
            raise AnsibleActionFail(f"{error.filename} on the controller cannot be read: {error.strerror}.") from None
        user = self._low_level_execute_command("id -un", sudoable=False)["stdout"].strip()
        space = sum(sizes.values()) * (2 if joined else 1)  # pieces and the whole are there at the same time
        self._task.args = {**args, "state": "staged", "owner": user or None, "space_bytes": space}
        staged = self._detached(tmp, task_vars)
        if staged.get("failed") or self._task.check_mode or not staged["needed"]:
            return staged
        for source, name in zip(sources, names):
            if joined or name in staged["needed"]:
                self._send(source, f"{staged['staging']}/{name}", sizes[source], task_vars or {})
        self._task.args = args
        return self._detached(tmp, task_vars)

    def _send(self, source: Path, dest: str, size: int, task_vars: dict[str, Any]) -> None:
        teller = Teller(task_vars.get("inventory_hostname", "host"), self._task.name or "Send a file")
        other = beside(self)

        def look() -> None:
            # The user of the connection writes the file, without become.
            command = f"stat --format=%s {shlex.quote(dest)}"
            found = other._low_level_execute_command(command, sudoable=False)["stdout"].strip()  # noqa: SLF001
            if found.isdigit():
                teller.tell("sending", int(found), size)

        try:
            with looking(look):
                send(self, str(source), dest)
        except (OSError, AnsibleError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason was given"]
            raise AnsibleActionFail(f"{source} could not be sent to {dest}: {lines[-1]}") from None

    def _detached(self, tmp: str | None, task_vars: dict[str, Any] | None) -> dict[str, Any]:
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
        teller = Teller(task_vars.get("inventory_hostname", "host"), self._task.name or self._task.action)
        parent, polls, was_noted = os.getppid(), iter(POLL_S), False
        began = heard = asked = seen = time.monotonic()
        while True:
            time.sleep(next(polls, POLL_S[-1]))
            now = time.monotonic()
            if os.getppid() != parent:
                raise AnsibleActionFail("ansible-playbook is gone.")  # and no task would follow this one
            if now - began > limit + GRACE_S:
                raise AnsibleActionFail(f"The task did not end within {limit} s, its time limit.")
            try:
                step = read_step(self._noted())
                if step:
                    was_noted, seen = True, now
                    teller.tell(*step)
                if not step or now - asked > ASK_EVERY_S:
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
        # The module expands ~ by HOME, as the one that started the job did.
        args = {"jid": job, "mode": mode, "_async_dir": self.get_shell_option("async_dir", default="~/.ansible_async")}
        answer: dict[str, Any] = self._execute_module("ansible.legacy.async_status", args, task_vars=task_vars)
        return answer
