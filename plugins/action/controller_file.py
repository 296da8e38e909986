# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Send a large file from the controller to a host, unchanged, and show the progress."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._lines import Flow, due, show
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._look import beside, looking, send


class ActionModule(ActionBase):  # type: ignore[misc]
    """The action that hands the file to the connection."""

    TRANSFERS_FILES = False
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Send the file."""
        result: dict[str, Any] = super().run(task_vars=task_vars)
        _validated, args = self.validate_argument_spec(
            argument_spec={"src": {"type": "str", "required": True}, "dest": {"type": "str", "required": True}}
        )
        if self._task.check_mode:
            return {**result, "skipped": True, "changed": False, "msg": "not sent in check mode"}
        source = Path(args["src"])
        try:
            size = source.stat().st_size
            host = (task_vars or {}).get("inventory_hostname", "host")
            with looking(_Looker(beside(self), host, args["dest"], size).look):
                send(self, str(source), args["dest"])
        except (OSError, AnsibleError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason was given"]
            return {**result, "failed": True, "msg": f"{source} could not be sent to {args['dest']}: {lines[-1]}"}
        return {**result, "changed": True, "size_bytes": size}


class _Looker:
    """The progress of a file that grows on a host; `action` runs commands there."""

    def __init__(self, action: ActionModule, host: str, dest: str, size: int) -> None:
        self.action, self.host, self.dest, self.size = action, host, dest, size
        self.began, self.shown, self.flow = time.monotonic(), 0.0, Flow()

    def look(self) -> None:
        """Look at the size once, and show the progress now and then."""
        # The user of the connection writes the file, without become.
        command = f"stat --format=%s {shlex.quote(self.dest)}"
        found = self.action._low_level_execute_command(command, sudoable=False)["stdout"].strip()  # noqa: SLF001
        if not found.isdigit():
            return
        elapsed = time.monotonic() - self.began
        text = self.flow.text(elapsed, int(found), self.size)
        if due(elapsed, self.shown):
            self.shown = elapsed
            show(self.host, self.action._task.name or "Send a file", elapsed, f"sending, {text}")  # noqa: SLF001
