#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Unpack an archive of known digest, whole or not at all."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: verified_archive
short_description: Unpack an archive of known digest, whole or not at all
version_added: 0.1.0
description:
  - Verifies the SHA-256 digest of an archive (tar, plain or with gzip, bzip2 or xz, or zip), then examines every member
    of it, and only then unpacks it.
  - An archive is refused, by the name of the member, if a member has an absolute path, a path through a parent folder,
    is a symbolic or hard link that leads out of the root, lies beneath a link, appears twice, or is a device or a pipe.
  - The content is unpacked beside O(dest) and takes its place by renaming, so that O(dest) is whole or not there.
  - Owners and the set-user-ID, set-group-ID and sticky bits of members are dropped; files get mode V(0644), or V(0755)
    if executable, and folders V(0755).
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
      - Without it the archive is verified and examined, and nothing is unpacked.
      - A folder there that this module has not made is refused, unless it is empty; one with other content from this
        module is exchanged.
    type: path
  subdir:
    description:
      - Only what lies below this folder of the archive is unpacked; the folder becomes the root, which its links may
        not leave.
    type: str
    default: ""
attributes:
  check_mode:
    description: The archive is verified and examined in check mode too.
    support: full
  diff_mode:
    description: Shows the digest of what O(dest) holds.
    support: full
  idempotent:
    description: What was unpacked carries its digest; the same archive is not unpacked again.
    support: full
notes:
  - Works with Python 3.8 and newer on the host and needs nothing but its standard library.
"""

EXAMPLES = r"""
- name: The source is unpacked
  llama_cpp.cluster.verified_archive:
    src: /var/tmp/source.tar.gz
    sha256: 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
    subdir: llama_cpp_python-0.3.36/vendor/llama.cpp
    dest: /opt/llama_cpp/build/source

- name: The archive is examined on the controller before it is pushed
  llama_cpp.cluster.verified_archive:
    src: /var/tmp/source.tar.gz
    sha256: 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
  delegate_to: localhost
"""

RETURN = r"""
dest:
  description: The folder that holds the content; V(null) if only examined.
  returned: success
  type: str
  sample: /opt/llama_cpp/build/source
sha256:
  description: The digest that was verified.
  returned: success
  type: str
  sample: 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
members:
  description: How many members of the archive lie below the root.
  returned: success
  type: int
  sample: 3120
"""

import re

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._archive import Archive, ArchiveError


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "src": {"type": "path", "required": True},
            "sha256": {"type": "str", "required": True},
            "dest": {"type": "path"},
            "subdir": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    params = module.params
    dest = params["dest"]
    if not re.fullmatch(r"[0-9a-fA-F]{64}", params["sha256"]):
        module.fail_json(msg="sha256 is not a SHA-256 digest: it needs 64 hexadecimal digits.")
    try:
        with Archive(params["src"], params["sha256"], params["subdir"]) as archive:
            changed = dest is not None and not archive.is_unpacked_at(dest)
            if changed and not module.check_mode:
                archive.unpack(dest)
    except ArchiveError as error:
        module.fail_json(msg=str(error))
    result = {"changed": changed, "dest": dest, "sha256": archive.sha256, "members": archive.count}
    if dest is not None:
        content = f"{archive.sha256} {params['subdir']}\n"
        result["diff"] = {"before": "" if changed else content, "after": content}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
