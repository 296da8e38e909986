# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the module of the same name unchanged, and show its progress meanwhile.

The module notes its progress in a file on the host (module_utils/_run/progress.py). This action reads the file now and
then over the same connection. A run that ends before the first look takes no longer, and no look changes a result.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.progress import read_step
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._lines import Teller, wanted
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._look import NotedModule, beside, looking


class ActionModule(NotedModule):
    """The action that runs the module, with a thread that looks at its progress."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module."""
        result: dict[str, Any]
        if self._task.async_val or self._task.check_mode or not wanted():
            result = super().run(tmp, task_vars)
            return result
        self._note_progress()
        host = (task_vars or {}).get("inventory_hostname", "host")
        teller, other = Teller(host, self._task.name or self._task.action), beside(self)

        def look() -> None:
            step = read_step(other._noted())  # noqa: SLF001
            if step:
                teller.tell(*step)

        with looking(look):
            result = super().run(tmp, task_vars)
        return result
