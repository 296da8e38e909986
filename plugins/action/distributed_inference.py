# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run the module of the same name unchanged, and show its progress meanwhile.

The module notes its progress in a file on the host (module_utils/_run/progress.py). This action reads the file now and
then over the same connection. A run that ends before the first look takes no longer, and no look changes a result.
"""

from __future__ import annotations

import re
import shlex
import time
from typing import Any

from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.progress import (
    GENERATING,
    LOADING,
    MEASURING,
    PREPARING,
    PROMPT,
    VERIFYING,
    State,
    read_state,
)
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._lines import (
    SHORTEST_S,
    amount,
    due,
    more,
    show,
    wanted,
)
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._look import NotedModule, beside, looking

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


class ProgressFormatter:
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
        if seconds >= SHORTEST_S and new > 0 and goal > done:
            words.append(more(new, goal - self._done_then, seconds))
        if state.attempt > 1:
            words.append(f"attempt {state.attempt} as the end of the output was lost")
        return ", ".join(words)

    @staticmethod
    def _what(state: State, done: float) -> str:
        if state.phase == LOADING:
            return f"loading the model, {int(done)} % of {amount(state.model_bytes)}"
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
        with looking(_Looker(beside(self), host).look):
            result = super().run(tmp, task_vars)
        return result

    def _sockets(self, state: State) -> str:
        """Return the command that shows the bytes sent to the workers, if they are of interest."""
        if state.phase != LOADING or not state.peers:
            return "true"
        peers = " or ".join(f"dst {peer}" for peer in state.peers.split())
        return f"ss -tinH state established {shlex.quote(peers)} 2>/dev/null"


class _Looker:
    """The progress of a run on a host; `action` runs commands there."""

    def __init__(self, action: ActionModule, host: str) -> None:
        self.action, self.host = action, host
        self.started = self.shown = time.monotonic()
        self.formatter, self.state = ProgressFormatter(), State(VERIFYING)

    def look(self) -> None:
        """Look at the progress once, and show it now and then."""
        action = self.action
        first, _end, sockets = action._noted(action._sockets(self.state)).partition("\n")  # noqa: SLF001
        found = read_state(first)
        if found is None:
            return
        self.state, now = found, time.monotonic()
        line = self.formatter.line(found, sent_bytes(sockets), now - self.started)
        if due(now - self.started, self.shown - self.started):
            self.shown = now
            show(self.host, action._task.name or action._task.action, now - self.started, line)  # noqa: SLF001
