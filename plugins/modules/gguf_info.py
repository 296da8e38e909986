#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: checks that a path is a complete GGUF model, and describes the model without loading it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gguf_info
short_description: Check whether a path is a complete GGUF model, and what it is
version_added: 0.1.0
description:
  - Reads the header of a GGUF file, and of the other parts of a split model, and checks whether the model is
    complete.
  - Returns what the model is (architecture, shape, quantisation), and how large its weights are.
    M(llama_cpp.cluster.split_plan_info) says what it takes when it is loaded.
  - The module does not read the weights, so it takes less than a second and little memory for a model of any size.
    It still detects a truncated file, because the header says how long the file must be.
  - It reads versions 2 and 3 of the format, in little-endian byte order. It refuses what llama.cpp itself refuses
    to load, such as overlapping tensors, and headers that are larger than those of any model.
  - It never fails because of a bad model. RV(valid) and RV(message) say what is wrong.
author: The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  path:
    description: The model. For a split model, its first part (C(...-00001-of-00003.gguf)).
    type: path
    required: true
  draft_model:
    description: A model that drafts tokens for this one (speculative decoding). RV(draft_problem) says whether
      llama.cpp accepts it. That depends on the vocabularies of both models.
    type: path
  joined:
    description:
      - If O(path) is a piece of a file that was cut, such as C(.part1of2), look at all pieces as if they were joined.
      - Without this, a piece is not RV(valid), because llama.cpp reads only the whole.
    type: bool
    default: false
  mmproj:
    description: A projector, with which this model takes pictures. RV(mmproj_problem) says whether it is one that fits.
    type: path
extends_documentation_fragment:
  - llama_cpp.cluster.reads_only
notes:
  - Types, names and sizes are those of the llama.cpp version that role C(llama_cpp) builds by default. A model with a
    later tensor type is still RV(valid=true); unknown values are V(null), and RV(notes) says so.
"""

EXAMPLES = r"""
- name: Read the header of the model
  llama_cpp.cluster.gguf_info:
    path: /srv/models/model.gguf
  register: model

- name: Check that the model is complete
  ansible.builtin.assert:
    that: model.valid
    fail_msg: "{{ model.message }}"

- name: Show for how many tokens of context the model was trained
  ansible.builtin.debug:
    msg: "{{ model.shape.context_length }}"
"""

RETURN = r"""
exists:
  description: Whether there is anything at O(path).
  returned: success
  type: bool
valid:
  description: Whether it is a complete model.
  returned: success
  type: bool
message:
  description: One sentence that says what is wrong; empty if RV(valid).
  returned: success
  type: str
files:
  description:
    - The files of the model, the first part first, whether they are there or not, each with its C(path), its
      C(size_bytes), and as C(stamp) its size and its modification time in nanoseconds; V(null) if it is not there.
    - C(origin) and C(sha256) are what M(llama_cpp.cluster.model_file) recorded when it put the file there; V(null) if
      it did not, or if the file was changed since.
  returned: success
  type: list
  elements: dict
size_bytes:
  description: The size of all files that are there.
  returned: success
  type: int
metadata:
  description: The metadata of the first file, without arrays; empty if not RV(valid). A text of more than 1000
    characters, such as a chat template, is cut after 1000, with V(…) at its end.
  returned: success
  type: dict
architecture:
  description: The architecture, as llama.cpp names it; V(null) if not RV(valid), or if the file does not say.
  returned: success
  type: str
name:
  description: The model's name; V(null) like RV(architecture).
  returned: success
  type: str
file_type:
  description: The quantisation, as in llama.cpp's log, such as V(Q4_K - Medium); V(null) like RV(architecture).
  returned: success
  type: str
parameters:
  description: How many weights all tensors have; V(null) if not RV(valid).
  returned: success
  type: int
shape:
  description:
    - The model's dimensions; V(null) if not RV(valid). Each is V(null) if the file does not contain it.
    - The repeating C(layers), the C(embedding_length), the C(heads) and C(kv_heads) of attention (V(null) if layers
      differ), the C(experts) of a layer (0 if there are none) and the C(experts_used) of them that a token goes
      through, at most, the C(context_length) in training, and the C(vocabulary) in tokens.
    - C(predict_layers) of the layers, at the end, only predict further tokens (multi-token prediction). llama.cpp loads
      few of their weights unless an option asks for them.
  returned: success
  type: dict
weights_bytes:
  description: The bytes of all tensors, without padding; V(null) if not RV(valid), or if a tensor has an unknown type.
  returned: success
  type: int
draft_problem:
  description: Why O(draft_model) cannot draft tokens for the model, in a sentence; empty if it can, V(null) if not
    RV(valid) or without O(draft_model).
  returned: success
  type: str
mmproj_problem:
  description: Why the model cannot take pictures with O(mmproj), in a sentence; empty if nothing is wrong as far as the
    headers say, V(null) if not RV(valid) or without O(mmproj).
  returned: success
  type: str
notes:
  description: A sentence for each thing about a RV(valid) model that is unknown or unusual.
  returned: success
  type: list
  elements: str
"""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, Callable

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.record import known
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import (
    GgufError,
    model_parts,
    piece_paths,
    read_model,
    read_pieces,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.model import describe
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.projector import projector_problem
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.vocabulary import draft_problem


def look(path: Path, draft: Path | None, mmproj: Path | None, *, joined: bool = False) -> dict[str, Any]:
    """Return the module's result for a model, or one to be joined, and for its draft model and projector, if any."""
    pieces: list[Path] = []
    try:
        pieces = piece_paths(path) if joined else []
        parts = pieces or model_parts(path)
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
        "metadata": {},
        "draft_problem": None,
        "mmproj_problem": None,
        **dict.fromkeys(("architecture", "name", "file_type", "parameters", "shape", "weights_bytes")),
        "notes": [],
    }
    try:
        headers = [read_pieces(pieces)] if pieces else read_model(path)
    except GgufError as error:
        return {**result, "valid": False, "message": str(error)}
    # JSON has no infinity and no NaN.
    metadata = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in headers[0].metadata.items()
    }
    model = describe(headers)
    return {
        **result,
        "metadata": metadata,
        "draft_problem": _problem(draft_problem, path, draft),
        "mmproj_problem": _problem(projector_problem, path, mmproj),
        **{name: getattr(model, name) for name in ("architecture", "name", "file_type", "parameters", "notes")},
        "shape": asdict(model.shape),
        "weights_bytes": model.weights.bytes,
    }


def _problem(judge: Callable[[Path, Path], str], path: Path, other: Path | None) -> str | None:
    """Return what is wrong with a file beside the model, or None if there is no such file."""
    if other is None:
        return None
    try:
        return judge(path, other)
    except GgufError as error:
        return str(error)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "draft_model": {"type": "path"},
            "joined": {"type": "bool", "default": False},
            "mmproj": {"type": "path"},
        },
        supports_check_mode=True,
    )
    params = module.params
    draft, mmproj = (Path(params[name]) if params[name] else None for name in ("draft_model", "mmproj"))
    try:
        result = look(Path(params["path"]), draft, mmproj, joined=params["joined"])
    except OSError as error:
        module.fail_json(msg=f"{params['path']} cannot be read: {error.strerror}.")
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
