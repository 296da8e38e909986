# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module again and again until its answer meets a condition, and show what is waited for."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.llama_cpp.cluster.plugins.module_utils._status.report import safe_text
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._lines import Teller

# These refer to the answer, so they are templates until there is one.
LATER = ("until", "shows", "bytes")


class ActionModule(ActionBase):  # type: ignore[misc]
    """The action that asks until it hears what it waits for."""

    TRANSFERS_FILES = False
    _requires_connection = True

    @classmethod
    def finalize_task_arg(cls, name: str, value: Any, templar: Any, context: Any) -> Any:  # noqa: ANN401
        """Leave the templates about the answer as they are."""
        return value if name in LATER else super().finalize_task_arg(name, value, templar, context)

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Ask until the condition is met, a module fails, or the time is over."""
        result: dict[str, Any] = super().run(task_vars=task_vars)
        _validated, args = self.validate_argument_spec(
            argument_spec={
                "module": {"type": "str", "required": True},
                "arguments": {"type": "dict", "default": {}},
                "until": {"type": "str", "required": True},
                "shows": {"type": "str", "required": True},
                "bytes": {"type": "str", "default": ""},
                "timeout": {"type": "int", "required": True},
                "every": {"type": "float", "default": 2},
            }
        )
        variables = task_vars or {}
        teller = Teller(variables.get("inventory_hostname", "host"), self._task.name or self._task.action)
        began = time.monotonic()
        while True:
            answer = self._execute_module(args["module"], args["arguments"], task_vars=variables)
            if answer.get("failed"):
                return {**result, **answer}
            elapsed = time.monotonic() - began
            templar = self._templar.copy_with_new_env(available_variables={**variables, "answer": answer})
            met, step = self._read(templar)
            left = args["timeout"] - elapsed
            if met or left <= 0:
                break
            teller.tell(*step)
            time.sleep(min(args["every"], left))
        result.update(answer, changed=False, waited_s=int(elapsed))
        if not met:
            result.update(failed=True, msg=f"Waited {args['timeout']} s. {teller.line(elapsed, *step)}")
        return result

    def _read(self, templar: Any) -> tuple[bool, tuple[str, int, int]]:  # noqa: ANN401
        """Return whether the condition is met, and what is waited for: a sentence, and bytes done and in all."""
        given = self._task.args
        if templar.evaluate_conditional(given["until"]):
            return True, ("", 0, 0)
        sentence = " ".join(safe_text(str(templar.template(given["shows"]))).split())
        done = templar.template(given["bytes"]) if given.get("bytes") else None
        return False, (sentence, *(map(int, done) if done else (0, 0)))
