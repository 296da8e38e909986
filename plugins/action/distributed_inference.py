# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run the module of the same name unchanged, and show its progress meanwhile.

The module writes its progress to a file on the host (module_utils/_run/progress.py). This action reads the file now and
then over the same connection. A run that ends before the first look takes no longer, and no look changes a result.
"""

from __future__ import annotations

import copy
import re
import secrets
import shlex
import threading
import time
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action.normal import ActionModule as AnyModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.progress import (
    GENERATING,
    LOADING,
    MEASURING,
    PREPARING,
    PROMPT,
    VARIABLE,
    VERIFYING,
    State,
    read_state,
)
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._lines import SHOW_EVERY_S, more, show, wanted

LOOK_EVERY_S = 5.0  # two looks for each line, so that the first line already has a rate
LONGEST_LOOK_S = 5.0
BASIS_S = 4.0  # a shorter time gives no reliable rate

_ACKED = re.compile(r"\bbytes_acked:(\d{1,18})\b")


def sent_bytes(sockets: str) -> int:
    """Return the bytes that have arrived at the workers, from the output of `ss` about the connections to them."""
    return sum(int(number) for number in _ACKED.findall(sockets))


def loaded_percent(state: State, sent: int) -> float:
    """Return the percentage of the model that is loaded at least.

    llama.cpp's own count is too low if one tensor is several percent. The count of sent bytes is too low if workers had
    parts in their caches, or if the master keeps some parts.
    """
    return max(state.loaded_percent, min(99.0, 100 * sent / state.model_bytes) if state.model_bytes else 0.0)


def _size(size_bytes: int) -> str:
    mib = size_bytes / 2**20
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


class Teller:
    """The maker of progress lines; it remembers when each phase began, to compute its rate."""

    def __init__(self) -> None:
        self._phase: tuple[int, str] | None = None
        self._since = 0.0
        self._done_then = 0.0

    def line(self, state: State, sent: int, now: float) -> str:
        """Return the line to show for one look, at `now` seconds."""
        done, goal = 0.0, 0
        if state.phase == LOADING:
            done, goal = loaded_percent(state, sent), 100
        elif state.phase in (GENERATING, MEASURING):
            done, goal = state.tokens, state.tokens_asked
        if self._phase != (state.attempt, state.phase) and (done or not goal):
            self._phase, self._since, self._done_then = (state.attempt, state.phase), now, done
        words = [self._what(state, done)]
        seconds, new = now - self._since, done - self._done_then
        if seconds >= BASIS_S and new > 0 and goal > done:
            words.append(more(new, goal - self._done_then, seconds))
        if state.attempt > 1:
            words.append(f"attempt {state.attempt} as the end of the output was lost")
        return ", ".join(words)

    @staticmethod
    def _what(state: State, done: float) -> str:
        if state.phase == LOADING:
            return f"loading the model, {int(done)} % of {_size(state.model_bytes)}"
        if state.phase == GENERATING:
            return f"generating, {state.tokens} of at most {state.tokens_asked} tokens"
        if state.phase == MEASURING and state.tokens_asked:
            return f"measuring, {state.tokens} of {state.tokens_asked} runs done"
        return {
            MEASURING: "measuring",
            VERIFYING: "verifying the workers",
            PREPARING: "the model is loaded, preparing the context",
            PROMPT: "reading the prompt",
        }.get(state.phase, "running")


class ActionModule(AnyModule):  # type: ignore[misc]
    """The action that runs the module, with a thread that looks at its progress."""

    _progress_file = ""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module."""
        result: dict[str, Any]
        if self._task.async_val or self._task.check_mode or not wanted():
            result = super().run(tmp, task_vars)
            return result
        folders = self.get_shell_option("system_tmpdirs") or ["/tmp"]  # noqa: S108 (where the host has no other)
        # Nobody else can guess the name before the file exists, and the module makes the file for its user alone.
        self._progress_file = f"{folders[-1]}/.llama_cpp_cluster-{secrets.token_hex(16)}"
        ended = threading.Event()
        host = (task_vars or {}).get("inventory_hostname", "host")
        watch = threading.Thread(target=self._watch, args=(self._beside(), host, ended), daemon=True)
        watch.start()
        try:
            result = super().run(tmp, task_vars)
        finally:
            ended.set()
            watch.join(LONGEST_LOOK_S)
        return result

    def _compute_environment_string(self, raw_environment_out: dict[str, Any] | None = None) -> str:
        environment: dict[str, Any] = {}
        super()._compute_environment_string(environment)
        if self._progress_file:
            environment[VARIABLE] = self._progress_file
        if raw_environment_out is not None:
            raw_environment_out.clear()
            raw_environment_out.update(environment)
        return str(self._connection._shell.env_prefix(**environment))  # noqa: SLF001

    def _beside(self) -> ActionModule:
        """Return an action that runs commands as this one does, but shares no state that a command changes."""
        other = copy.copy(self)
        other._connection = copy.copy(self._connection)  # noqa: SLF001
        other._connection.become = copy.copy(self._connection.become)  # noqa: SLF001
        return other

    def _watch(self, other: ActionModule, host: str, ended: threading.Event) -> None:
        started = shown = time.monotonic()
        teller, state = Teller(), State(VERIFYING)
        while not ended.wait(LOOK_EVERY_S):
            try:
                answer = other._look(state)
            except (AnsibleError, OSError):
                continue  # a failed look does not end the run
            first, _end, sockets = answer.partition("\n")
            found = read_state(first)
            if found is None or ended.is_set():
                continue
            state, now = found, time.monotonic()
            line = teller.line(state, sent_bytes(sockets), now - started)
            # The tolerance of 1 s keeps a look that was late by a moment from delaying the next line.
            if now - shown >= SHOW_EVERY_S - 1:
                shown = now
                show(host, self._task.name or self._task.action, now - started, line)

    def _look(self, state: State) -> str:
        command = f"head -c 2000 {shlex.quote(self._progress_file)} 2>/dev/null"
        if state.phase == LOADING and state.peers:
            peers = " or ".join(f"dst {peer}" for peer in state.peers.split())
            command += f" && ss -tinH state established {shlex.quote(peers)} 2>/dev/null"
        return str(self._low_level_execute_command(command)["stdout"])
