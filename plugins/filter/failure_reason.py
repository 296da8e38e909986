# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: why a task has failed, in one line."""

from __future__ import annotations

DOCUMENTATION = r"""
name: failure_reason
short_description: Return in one line why a task has failed
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Reads the result of a failed task (C(ansible_failed_result) in a rescue). For a loop, it reads the first item
    that failed.
  - Roles and playbooks of this collection use the result in their messages.
options:
  _input:
    description: The result of the task.
    type: dict
    required: true
  output:
    description: Whether to use the output of a program that failed without a message, with the following lines if the
      output is kept in a log. The result then has no punctuation at its end.
    type: bool
    default: false
  task:
    description: The name of the task, for a result without any message.
    type: str
"""

EXAMPLES = r"""
- name: Put the reason into another sentence
  block:
    - name: Start the service
      ansible.builtin.command:
        argv: [systemctl, is-active, llama-rpc-server@50052]
      changed_when: false
  rescue:
    - name: Fail with the reason
      ansible.builtin.debug:
        msg: "There is no worker: {{ ansible_failed_result | llama_cpp.cluster.failure_reason(output=true) }}."
"""

RETURN = r"""
_value:
  description: The reason.
  type: str
"""

from typing import Any, Callable, Mapping

from ansible_collections.llama_cpp.cluster.plugins.module_utils._status.report import safe_text

_SILENT = "non-zero return code"
_END = ".:;"
_LONGEST = 300


def failure_reason(result: Mapping[str, Any], output: bool = False, task: str | None = None) -> str:
    """Return why a task has failed."""
    items = [item for item in result.get("results") or [] if item.get("failed")]
    failed = items[0] if items else result
    # A host has written the message, and Ansible prints what fails as it is.
    message, errors = (safe_text(str(failed.get(key) or "")).strip() for key in ("msg", "stderr"))
    if output and errors and (not message or message.startswith(_SILENT)):
        message = errors
    lines = message.splitlines() or [f'the task "{task}" failed' if task else "See above"]
    if not output:
        # Ansible's own message on arguments begins with a line that says nothing.
        return " ".join(line.strip() for line in lines[: 2 if lines[0].endswith(":") else 1])
    reason = lines[0].strip().rstrip(_END)
    more = " ".join(line.strip() for line in lines[1:4]) if "log" in failed else ""
    return f"{reason} ({_shortened(more).rstrip(_END)})" if more else reason


def _shortened(text: str) -> str:
    # Keep whole words, as Jinja's own filter truncate does.
    return text if len(text) <= _LONGEST + 5 else text[: _LONGEST - 3].rsplit(" ", 1)[0] + "..."


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"failure_reason": failure_reason}
