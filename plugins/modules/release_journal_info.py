#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: reads a host's llama.cpp releases, and the notes of an upgrade there."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release_journal_info
short_description: Show which llama.cpp releases a host has, and what an upgrade has noted there
version_added: 0.3.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Returns which releases the role P(llama_cpp.cluster.llama_cpp#role) has put on a host, which one is in use,
    whether an upgrade is under way there, and which upgrade was the last that succeeded.
options:
  prefix:
    description: The folder that holds the releases.
    type: path
    default: /opt/llama_cpp
  patience:
    description:
      - How many seconds to wait first for tasks of an earlier run of the playbook that may still change this host. Such
        a task continues after its run was killed, or was cut off from the host.
      - The module fails if such a task takes longer. Without this option, it does not look for such tasks.
    type: int
extends_documentation_fragment:
  - llama_cpp.cluster.reads_only
"""

EXAMPLES = r"""
- name: Read which releases the host has
  llama_cpp.cluster.release_journal_info:
  register: there
"""

RETURN = r"""
current:
  description: The name of the release in use; V(null) if there is none.
  returned: success
  type: str
releases:
  description: The manifests of the releases that are there, by their names.
  returned: success
  type: dict
  sample: {"0.3.36-0c1e57098-b0b4dbc1c4a5": {"version": "0.3.36-0c1e57098", "rpc_protocol": "7.0.0"}}
unfinished:
  description:
    - The upgrade that has not ended, with its C(run), C(from), C(to), C(time) and C(way); V(null) if there is none.
  returned: success
  type: dict
finished:
  description: The last upgrade that succeeded, with the same keys; V(null) if there was none.
  returned: success
  type: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release import journal


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"prefix": {"type": "path", "default": "/opt/llama_cpp"}, "patience": {"type": "int"}},
        supports_check_mode=True,
    )
    prefix = Path(module.params["prefix"])
    try:
        if module.params["patience"] is not None:
            journal.wait(prefix, module.params["patience"])
        found = journal.read(prefix)
    except (journal.JournalError, OSError) as error:
        module.fail_json(msg=journal.sentence(error, prefix))
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
