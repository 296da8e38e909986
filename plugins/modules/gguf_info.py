#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Say whether a path is a whole GGUF model."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gguf_info
short_description: Say whether a path is a whole GGUF model
version_added: 0.1.0
description:
  - Reads the header of a GGUF file, and of the other parts of a split model, and says whether all of it is there.
  - The weights are not read, so this takes a fraction of a second for a model of any size. A file that was cut off is
    noticed all the same, since the header says how long the file must be.
  - It never fails because the model is bad; RV(valid) and RV(message) say what is wrong.
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  path:
    description: The model; of a split one the first part (C(...-00001-of-00003.gguf)).
    type: path
    required: true
attributes:
  check_mode:
    description: Reads only, so it does the same in check mode.
    support: full
  diff_mode:
    description: There is nothing to show a difference of.
    support: none
  idempotent:
    description: Changes nothing.
    support: full
notes:
  - Works with Python 3.8 and newer on the host and needs nothing but its standard library.
"""

EXAMPLES = r"""
- name: The model is looked at
  llama_cpp.cluster.gguf_info:
    path: /srv/models/model.gguf
  register: model

- name: It is whole
  ansible.builtin.assert:
    that: model.valid
    fail_msg: "{{ model.message }}"
"""

RETURN = r"""
exists:
  description: Whether there is anything at O(path).
  returned: success
  type: bool
  sample: true
valid:
  description: Whether it is a whole model.
  returned: success
  type: bool
  sample: true
message:
  description: One sentence that says what is wrong; empty if RV(valid).
  returned: success
  type: str
  sample: ""
files:
  description: The files of the model, the first part first, whether they are there or not.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The file.
      type: str
    size_bytes:
      description: Its size; V(null) if it is not there.
      type: int
    stamp:
      description: Its size, and its time of change in nanoseconds; V(null) if it is not there.
      type: list
      elements: int
    origin:
      description: >-
        What M(llama_cpp.cluster.model_file) or M(llama_cpp.cluster.verified_download) recorded when it put the file
        there; V(null) if neither did, or if the file was changed since.
      type: dict
    sha256:
      description: The SHA-256 digest that was recorded with it, V(null) like RV(files[].origin).
      type: str
  sample:
    - path: /srv/models/model.gguf
      size_bytes: 4661211424
      stamp: [4661211424, 1760000000000000000]
      origin: null
      sha256: null
size_bytes:
  description: The size of all files that are there.
  returned: success
  type: int
  sample: 4661211424
version:
  description: The version of the format; V(null) if not RV(valid).
  returned: success
  type: int
  sample: 3
tensor_count:
  description: How many tensors all files hold; V(null) if not RV(valid).
  returned: success
  type: int
  sample: 291
metadata:
  description: The metadata of the first file but for arrays; empty if not RV(valid).
  returned: success
  type: dict
  sample: {general.architecture: llama, general.name: model, llama.block_count: 32}
"""

import math
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._file_record import known
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf import GgufError, model_parts, read_model


def look(path: Path) -> dict[str, Any]:
    """Return the module's result."""
    try:
        parts = model_parts(path)
    except GgufError:
        parts = [path]
    files = []
    for part in parts:
        record = known(part)
        found = part.stat() if part.is_file() else None
        files.append(
            {
                "path": str(part),
                "size_bytes": found.st_size if found else None,
                "stamp": [found.st_size, found.st_mtime_ns] if found else None,
                "origin": record.origin if record else None,
                "sha256": record.sha256 if record else None,
            }
        )
    result: dict[str, Any] = {
        "exists": path.exists(),
        "valid": True,
        "message": "",
        "files": files,
        "size_bytes": sum(file["size_bytes"] or 0 for file in files),
        "version": None,
        "tensor_count": None,
        "metadata": {},
    }
    try:
        headers = read_model(path)
    except GgufError as error:
        return {**result, "valid": False, "message": str(error)}
    # JSON has no infinity and no NaN.
    metadata = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in headers[0].metadata.items()
    }
    return {
        **result,
        "version": headers[0].version,
        "tensor_count": sum(header.tensor_count for header in headers),
        "metadata": metadata,
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={"path": {"type": "path", "required": True}}, supports_check_mode=True)
    try:
        result = look(Path(module.params["path"]))
    except OSError as error:
        module.fail_json(msg=f"{module.params['path']} cannot be looked at: {error.strerror}.")
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
