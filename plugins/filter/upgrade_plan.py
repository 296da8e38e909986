# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the llama.cpp release that each host of a cluster changes to."""

from __future__ import annotations

DOCUMENTATION = r"""
name: upgrade_plan
short_description: Choose the llama.cpp release for each host of an upgrade
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Reads the notes of all hosts. If an upgrade was interrupted, it returns how to finish it. Otherwise it returns
    which release each host gets, and whether that is possible.
  - An interrupted upgrade ends with the old releases, unless a host has noted that all hosts had the new ones and
    were healthy.
  - The playbook P(llama_cpp.cluster.upgrade#playbook) uses it.
positional: _input, master
options:
  _input:
    description: What M(llama_cpp.cluster.release_journal_info) returns, by host.
    type: dict
    required: true
  master:
    description: The host that the others are compared with.
    type: str
    required: true
  wanted:
    description: The name of the release that each host should get.
    type: dict
    default: {}
  rollback:
    description: Whether hosts should get their releases from before the last upgrade instead.
    type: bool
    default: false
  staged:
    description: Whether the wanted releases are on the hosts already.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Show the releases after a rollback
  ansible.builtin.debug:
    msg: "{{ (looks | llama_cpp.cluster.upgrade_plan('master', rollback=true)).to }}"
  vars:
    looks:
      master:
        current: 0.3.36-b
        releases: {0.3.35-a: {version: 0.3.35}, 0.3.36-b: {version: 0.3.36}}
        unfinished: null
        finished: {run: a run, from: 0.3.35-a, to: 0.3.36-b, time: yesterday}
"""

RETURN = r"""
_value:
  description:
    - C(problems), a sentence for each thing that prevents the upgrade.
    - C(recover), by host how to finish an interrupted upgrade (the C(release), the C(run), and the C(state) for
      M(llama_cpp.cluster.release_journal_info)), C(interrupted), a sentence about it, and C(enough), whether this
      completes the rollback that was asked for.
    - C(targets), by host the release to get, C(from) and C(to), the versions, C(protocols), their RPC protocols, and
      C(same), whether all hosts have these releases.
  type: dict
"""

from typing import Any, Callable

from ansible_collections.llama_cpp.cluster.plugins.module_utils._release import upgrade


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"upgrade_plan": upgrade.plan}
