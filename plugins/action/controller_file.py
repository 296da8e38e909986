# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Send a large file from the controller to a host, unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase


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
            self._connection.put_file(str(source), args["dest"])
        except (OSError, AnsibleError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason was given"]
            return {**result, "failed": True, "msg": f"{source} could not be sent to {args['dest']}: {lines[-1]}"}
        return {**result, "changed": True, "size_bytes": size}
