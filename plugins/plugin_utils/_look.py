# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: what actions share that look at a host while something runs there. On the controller only."""

from __future__ import annotations

import copy
import re
import secrets
import shlex
import threading
from contextlib import contextmanager
from typing import Any, Callable, Iterator, TypeVar

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.plugins.action.normal import ActionModule as AnyModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.progress import VARIABLE

LOOK_EVERY_S = 5.0  # two looks for each line, so that the first line already has a rate
LONGEST_LOOK_S = 5.0

Action = TypeVar("Action", bound=ActionBase)


def beside(action: Action) -> Action:
    """Return an action that runs commands as this one does, but shares no state that a command changes."""
    other = copy.copy(action)
    other._connection = copy.copy(action._connection)  # noqa: SLF001
    other._connection.become = copy.copy(action._connection.become)  # noqa: SLF001
    return other


def send(action: ActionBase, source: str, dest: str) -> None:
    """Send a file to the host's path `dest`; raises AnsibleError.

    sftp, on the controller, reads the path in a line of commands, and quotes otherwise than Ansible does. The path may
    come from a host.
    """
    if not re.match(r"/[^\x00-\x1f\x7f'\"\\]*\Z", dest):
        raise AnsibleError(
            f"the path {dest[:200]!r} is not absolute, or has quotes, backslashes or control characters."
        )
    action._connection.put_file(source, dest)  # noqa: SLF001


@contextmanager
def looking(look: Callable[[], None]) -> Iterator[None]:
    """Call a function every few seconds, in another thread, until the block ends."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK_EVERY_S):
            try:
                look()
            except (AnsibleError, OSError):
                continue  # a failed look does not end what runs

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LONGEST_LOOK_S)


class NotedModule(AnyModule):  # type: ignore[misc]
    """An action whose module notes its progress in a file on the host (module_utils/_files/progress.py)."""

    _progress_file = ""

    def _note_progress(self) -> None:
        """Let the module note its progress from now on."""
        folders = self.get_shell_option("system_tmpdirs") or ["/tmp"]  # noqa: S108 (where the host has no other)
        # Nobody else can guess the name before the file exists, and the module makes the file for its user alone.
        self._progress_file = f"{folders[-1]}/.llama_cpp_cluster-{secrets.token_hex(16)}"

    def _compute_environment_string(self, raw_environment_out: dict[str, Any] | None = None) -> str:
        environment: dict[str, Any] = {}
        super()._compute_environment_string(environment)
        if self._progress_file:
            environment[VARIABLE] = self._progress_file
        if raw_environment_out is not None:
            raw_environment_out.clear()
            raw_environment_out.update(environment)
        return str(self._connection._shell.env_prefix(**environment))  # noqa: SLF001

    def _noted(self) -> str:
        command = f"head -c 2000 {shlex.quote(self._progress_file)} 2>/dev/null"
        return str(self._low_level_execute_command(command)["stdout"])
