#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: writes the notes of an upgrade of llama.cpp on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release_journal
short_description: Keep the notes of an upgrade of llama.cpp on a host
version_added: 0.1.0
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Writes notes for the playbook C(llama_cpp.cluster.upgrade). A later run reads them, with
    M(llama_cpp.cluster.release_journal_info), if the controller was killed during an upgrade. Each note is complete or
    missing. C(upgrade.json) in O(prefix) exists while hosts of the cluster may differ. C(upgraded.json) says what can
    be rolled back.
  - This module does not change which release is in use. The entry point C(use) of that role does.
options:
  prefix:
    description: The folder that holds the releases.
    type: path
    default: /opt/llama_cpp
  state:
    description:
      - V(begun) notes that this host may change from the release in use to O(to).
      - V(finished) notes that the upgrade O(run) has succeeded on all hosts. O(to) must be in use here.
      - V(withdrawn) forgets the upgrade O(run). The release that was in use before must be in use again.
    type: str
    choices: [begun, finished, withdrawn]
    required: true
  run:
    description: The name of an upgrade, the same on all hosts.
    type: str
    required: true
  to:
    description: The name of the release that the host is to get. Needed for V(begun).
    type: str
  time:
    description: When the upgrade began, for readers of the note.
    type: str
    default: at an unknown time
  way:
    description:
      - Whether V(begun) notes an upgrade or a rollback. If it is interrupted, a later rollback needs to know which of
        the two it was.
    type: str
    choices: [upgrade, rollback]
    default: upgrade
attributes:
  check_mode:
    support: full
    description: In check mode nothing is written.
  diff_mode:
    support: none
    description: There is nothing to show.
  idempotent:
    support: full
    description: The module does not change an existing note with the same content.
"""

EXAMPLES = r"""
- name: Note the start of an upgrade
  llama_cpp.cluster.release_journal:
    state: begun
    run: 2026-11-22 10:00:00 UTC, 4711
    to: 0.3.36-0c1e57098-b0b4dbc1c4a5
"""

RETURN = r"""
unfinished:
  description:
    - The upgrade that has not ended, with its C(run), C(from), C(to), C(time) and C(way); V(null) if there is none.
  returned: success
  type: dict
  sample:
    from: 0.3.35-4df29be4f-0d2b58c7f1aa
    run: 2026-11-22 10:00:00 UTC, 4711
    time: 2026-11-22 10:00:00 UTC
    to: 0.3.36-0c1e57098-b0b4dbc1c4a5
    way: upgrade
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release import journal


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "default": "/opt/llama_cpp"},
            "state": {"type": "str", "choices": ["begun", "finished", "withdrawn"], "required": True},
            "run": {"type": "str", "required": True},
            "to": {"type": "str"},
            "time": {"type": "str", "default": "at an unknown time"},
            "way": {"type": "str", "choices": ["upgrade", "rollback"], "default": "upgrade"},
        },
        required_if=[("state", "begun", ("to",))],
        supports_check_mode=True,
    )
    given, prefix = module.params, Path(module.params["prefix"])
    write = not module.check_mode
    try:
        if given["state"] == "begun":
            changed = journal.begin(prefix, given["run"], given["to"], given["time"], way=given["way"], write=write)
        elif given["state"] == "finished":
            changed = journal.finish(prefix, given["run"], write=write)
        else:
            changed = journal.withdraw(prefix, given["run"], write=write)
        unfinished = journal.read(prefix)["unfinished"]
    except (journal.JournalError, OSError) as error:
        module.fail_json(msg=journal.sentence(error, prefix))
    module.exit_json(changed=changed, unfinished=unfinished)


if __name__ == "__main__":
    main()
