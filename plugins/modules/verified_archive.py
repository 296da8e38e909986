#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Unpack an archive with a known digest, completely or not at all."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: verified_archive
short_description: Verify an archive of known digest and unpack it atomically
version_added: 0.1.0
description:
  - Verifies the SHA-256 digest of an archive (tar, plain or with gzip, bzip2 or xz), then checks every member, and
    only then unpacks it.
  - Fails with the name of the member if a member has an absolute path or a path through a parent folder, is a
    symbolic or hard link that leads out of the root, is below a link, appears twice, or is a device or a pipe.
  - Unpacks the content beside O(dest) and renames it into place, so that O(dest) is complete or missing.
  - Can apply patches to the content before the rename. It unpacks nothing unless all patches apply.
  - Drops owners and the set-user-ID, set-group-ID and sticky bits of members. Files get mode V(0644), or V(0755) if
    executable, and folders V(0755).
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  src:
    description: The archive, on the host.
    type: path
    required: true
  sha256:
    description: The archive's SHA-256 digest, 64 hexadecimal digits.
    type: str
    required: true
  dest:
    description:
      - The folder that will hold the content.
      - Without it, the module only verifies and examines the archive.
      - The module replaces a folder that it has made itself. It refuses another folder, unless that is empty.
    type: path
  subdir:
    description:
      - The module unpacks only this folder of the archive. The folder becomes the root, which links must not leave.
    type: str
    default: ""
  patches:
    description:
      - Patches of the content, applied in this order.
      - Each is a unified diff with one folder before its paths, as C(git diff) writes it. The lines that it expects
        must be there, but may have moved. The module refuses renames, binary files, files that are not plain ones, and
        paths that lead out of the root.
      - A line C(Made-for:) before its first change names the commit or the digest of the source that it is made for.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The diff, a file C(<name>.patch) on the host.
        type: path
        required: true
      sha256:
        description: The digest of the file, as the lookup P(llama_cpp.cluster.source_patches#lookup) returns it.
        type: str
        required: true
attributes:
  check_mode:
    description: In check mode the module verifies and examines the archive and tries the patches.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
  idempotent:
    description: The unpacked folder records its digest. The module does not unpack the same archive again.
    support: full
notes:
  - Works with Python 3.8 and newer on the host and needs nothing but its standard library.
"""

EXAMPLES = r"""
- name: Unpack the source
  llama_cpp.cluster.verified_archive:
    src: /var/tmp/source.tar.gz
    sha256: 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
    subdir: llama_cpp_python-0.3.36/vendor/llama.cpp
    dest: /opt/llama_cpp/build/source

- name: Unpack and patch the source
  llama_cpp.cluster.verified_archive:
    src: /var/tmp/source.tar.gz
    sha256: 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
    dest: /opt/llama_cpp/build/source
    patches:
      - path: /srv/patches/mine.patch
        sha256: 5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03

- name: Check the archive on the controller before it is copied
  llama_cpp.cluster.verified_archive:
    src: /var/tmp/source.tar.gz
    sha256: 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
  delegate_to: localhost
"""

RETURN = r"""
dest:
  description: The folder that holds the content; V(null) if the archive was only examined.
  returned: success
  type: str
  sample: /opt/llama_cpp/build/source
sha256:
  description: The digest that was verified.
  returned: success
  type: str
  sample: 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
patched:
  description: The files that O(patches) change, add or remove.
  returned: success
  type: list
  elements: str
  sample: [ggml/src/ggml-rpc/ggml-rpc.cpp]
"""

import re
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.archive import Archive, ArchiveError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.source_patch import (
    Patch,
    PatchError,
    read_patch,
)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "src": {"type": "path", "required": True},
            "sha256": {"type": "str", "required": True},
            "dest": {"type": "path"},
            "subdir": {"type": "str", "default": ""},
            "patches": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "sha256": {"type": "str", "required": True},
                },
            },
        },
        supports_check_mode=True,
    )
    params = module.params
    dest = params["dest"]
    if not re.fullmatch(r"[0-9a-fA-F]{64}", params["sha256"]):
        module.fail_json(msg="sha256 is not a SHA-256 digest: it needs 64 hexadecimal digits.")
    try:
        patches = [_read(given) for given in params["patches"]]
        with Archive(params["src"], params["sha256"], params["subdir"], patches) as archive:
            changed = dest is not None and not archive.is_unpacked_at(dest)
            if changed and not module.check_mode:
                archive.unpack(dest)
    except (ArchiveError, PatchError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, dest=dest, sha256=archive.sha256, patched=archive.patched)


def _read(given: dict[str, Any]) -> Patch:
    """Return a patch. Raise PatchError if its digest is not the given one."""
    patch = read_patch(Path(given["path"]))
    if patch.sha256 != given["sha256"].lower():
        raise PatchError(
            f"The patch {patch.name} is not what it was when this run began (its digest is {patch.sha256}, and "
            f"{given['sha256']} was expected): run this again."
        )
    return patch


if __name__ == "__main__":
    main()
