#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Apply patches to an unpacked source, all of them or none."""

from __future__ import annotations

DOCUMENTATION = r"""
module: patched_source
short_description: Apply patches to an unpacked source, all of them or none
version_added: 0.4.0
description:
  - Applies patches in this order. It writes nothing unless all of them apply.
  - Each is a unified diff with one folder before its paths, as C(git diff) writes it. The lines that it expects must be
    there, but may have moved. The module refuses renames, binary files, and paths of what is no plain file.
  - A line C(Made-for:) before its first change names the commit or the digest of the source that it is made for.
  - The program C(patch) is not used, because minimal hosts lack it, and it accepts lines that do not fit exactly.
author: The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  path:
    description: The folder of the source.
    type: path
    required: true
  patches:
    description: The patches.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Its name in messages.
        type: str
        required: true
      sha256:
        description: The digest of its file, as the lookup P(llama_cpp.cluster.source_patches#lookup) returns it.
        type: str
        required: true
      text:
        description: Its text.
        type: str
        required: true
attributes:
  check_mode:
    description: In check mode the module tries the patches and writes nothing.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
  idempotent:
    description: A patch does not apply twice.
    support: none
"""

EXAMPLES = r"""
- name: Patch the source
  llama_cpp.cluster.patched_source:
    path: /opt/llama_cpp/build/source
    patches:
      - name: mine
        sha256: 5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03
        text: "{{ lookup('ansible.builtin.file', 'mine.patch', rstrip=false) }}"
"""

RETURN = r"""
patched:
  description: The files that the patches change, add or remove.
  returned: success
  type: list
  elements: str
"""

import hashlib
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.source_patch import (
    Patch,
    PatchError,
    parse,
    patch_folder,
)


def _patch(given: dict[str, Any]) -> Patch:
    """Return a patch. Raise PatchError if its digest is not the given one."""
    text = given["text"].encode()
    found = hashlib.sha256(text).hexdigest()
    if found != given["sha256"].lower():
        raise PatchError(
            f"The patch {given['name']} is not what it was when this run began (its digest is {found}, and "
            f"{given['sha256']} was expected): run this again."
        )
    return Patch(given["name"], found, *parse(given["name"], text))


def main() -> None:
    """Run the module."""
    required = {"type": "str", "required": True}
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "patches": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {"name": required, "sha256": required, "text": required},
            },
        },
        supports_check_mode=True,
    )
    try:
        patches = [_patch(given) for given in module.params["patches"]]
        patched = patch_folder(Path(module.params["path"]), patches, write=not module.check_mode)
    except PatchError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or module.params['path']} cannot be patched: {error.strerror or error}.")
    module.exit_json(changed=bool(patched), patched=patched)


if __name__ == "__main__":
    main()
