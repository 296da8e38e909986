#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: watched_wait
short_description: Wait until the answer of a module meets a condition, and show what is waited for
version_added: 0.3.0
description:
  - Runs a module again and again, as a task with C(until) does. Instead of C(FAILED - RETRYING), it shows about every
    ten seconds, later less often, one line with the host, the elapsed time and what it waits for.
  - It ends at once if the module fails.
author: The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  module:
    description: The full name of a module that changes nothing. Its C(module_defaults) do not apply.
    type: str
    required: true
  arguments:
    description: The arguments of the module.
    type: dict
    default: {}
  until:
    description: An expression, such as C(answer.all_ready). The variable C(answer) is the result of the module.
    type: str
    required: true
  shows:
    description: The template of a sentence that says what is waited for. It may use C(answer).
    type: str
    required: true
  bytes:
    description:
      - The template of a list of two numbers of bytes, those that are done and all (0 if that is not known). It may use
        C(answer). The line then also has the percentage, the rate and the time that is left.
      - Without a list, as with null, the line has only the sentence.
    type: str
    default: ""
  timeout:
    description: After this many seconds the task fails. It asks at least once.
    type: int
    required: true
  every:
    description: The pause between two runs of the module, in seconds.
    type: float
    default: 2
attributes:
  check_mode:
    description: It waits in check mode too.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
  idempotent:
    description: It changes nothing.
    support: full
"""

EXAMPLES = r"""
- name: Wait until the API serves
  llama_cpp.cluster.watched_wait:
    module: llama_cpp.cluster.llama_server_info
    arguments: {ask: false}
    until: answer.servers[0].state == 'serving'
    shows: "{{ answer.servers[0].message }}"
    timeout: 600
"""

RETURN = r"""
waited_s:
  description: How long it took, in seconds. All else in the result is the module's last answer.
  returned: unless the module fails
  type: int
"""
