#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: reads a host's llama.cpp releases, and reads and writes the notes of an upgrade there."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release_journal
short_description: Show which llama.cpp releases a host has, and keep the notes of an upgrade
version_added: 0.1.0
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Returns which releases the role P(llama_cpp.cluster.llama_cpp#role) has put on a host, which one is in use,
    whether an upgrade is under way there, and which upgrade was the last that succeeded.
  - Writes notes for the playbook C(llama_cpp.cluster.upgrade). A later run reads them if the controller was killed
    during an upgrade. Each note is complete or missing. C(upgrade.json) in O(prefix) exists while hosts of the
    cluster may differ. C(upgraded.json) says what can be rolled back.
  - This module does not change which release is in use. The entry point C(use) of that role does.
options:
  prefix:
    description: The folder that holds the releases.
    type: path
    default: /opt/llama_cpp
  state:
    description:
      - V(read) only reads.
      - V(begun) notes that this host may change from the release in use to O(to).
      - V(finished) notes that the upgrade O(run) has succeeded on all hosts. O(to) must be in use here.
      - V(withdrawn) forgets the upgrade O(run). The release that was in use before must be in use again.
    type: str
    choices: [read, begun, finished, withdrawn]
    default: read
  run:
    description: The name of an upgrade, the same on all hosts. Needed to write.
    type: str
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
  patience:
    description:
      - How many seconds to wait first for tasks of an earlier run of the playbook that may still change this host. Such
        a task continues after its run was killed, or was cut off from the host.
      - The module fails if such a task takes longer. Without this option, it does not look for such tasks.
    type: int
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
- name: Read which releases the host has
  llama_cpp.cluster.release_journal:
  register: there

- name: Check that the host may change
  llama_cpp.cluster.release_journal:
    state: begun
    run: 2026-11-22 10:00:00 UTC, 4711
    to: 0.3.36-0c1e57098-b0b4dbc1c4a5
"""

RETURN = r"""
current:
  description: The name of the release in use; V(null) if there is none.
  returned: success
  type: str
  sample: 0.3.36-0c1e57098-b0b4dbc1c4a5
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
  sample:
    from: 0.3.16-4227c9be4-0d2b58c7f1aa
    run: 2026-11-22 10:00:00 UTC, 4711
    time: 2026-11-22 10:00:00 UTC
    to: 0.3.36-0c1e57098-b0b4dbc1c4a5
    way: upgrade
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
        argument_spec={
            "prefix": {"type": "path", "default": "/opt/llama_cpp"},
            "state": {"type": "str", "choices": ["read", "begun", "finished", "withdrawn"], "default": "read"},
            "run": {"type": "str"},
            "to": {"type": "str"},
            "time": {"type": "str", "default": "at an unknown time"},
            "way": {"type": "str", "choices": ["upgrade", "rollback"], "default": "upgrade"},
            "patience": {"type": "int"},
        },
        required_if=[
            ("state", "begun", ("run", "to")),
            ("state", "finished", ("run",)),
            ("state", "withdrawn", ("run",)),
        ],
        supports_check_mode=True,
    )
    given, prefix = module.params, Path(module.params["prefix"])
    write = not module.check_mode
    try:
        changed = False
        if given["patience"] is not None:
            journal.wait(prefix, given["patience"])
        if given["state"] == "begun":
            changed = journal.begin(prefix, given["run"], given["to"], given["time"], way=given["way"], write=write)
        elif given["state"] == "finished":
            changed = journal.finish(prefix, given["run"], write=write)
        elif given["state"] == "withdrawn":
            changed = journal.withdraw(prefix, given["run"], write=write)
        found = journal.read(prefix)
    except journal.JournalError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        place = error.filename or prefix
        module.fail_json(msg=f"{place} cannot be used ({error.strerror}): correct that, and run this again.")
    module.exit_json(changed=changed, **found)


if __name__ == "__main__":
    main()
