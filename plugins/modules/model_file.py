#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: puts the complete files of a model in place and records them."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: model_file
short_description: Put the verified files of a model in their place
version_added: 0.1.0
description:
  - With O(state=staged) it returns which files of the model are missing, checks that the disk has room for them,
    and makes a folder for them beside the model.
  - With O(state=present) it verifies the files in that folder, joins them if they are pieces of one file, and renames
    them into place, so that the model is there completely or not at all.
  - Beside each file, a record says what it is and where it came from (C(.model.gguf.llama_cpp.json)). While the size,
    inode and modification time match the record, the module does not compute the digest again.
  - With O(state=absent) it removes the records in the folder of the model and leftovers of killed runs. If
    O(remove_files) is true, it also removes the files that have a record, unless they were there before.
  - It never overwrites a file without a record. It accepts such a file if the digest matches, and fails otherwise.
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  path:
    description: >-
      The model. For a split model, its first part (C(...-00001-of-00003.gguf)), which stands for all parts.
    type: path
    required: true
  state:
    description: See the description of this module.
    type: str
    choices: [staged, present, absent]
    required: true
  origin:
    description: Where the model comes from, in any form. The record keeps it, and the module compares it as a whole.
    type: dict
    default: {}
  sha256:
    description:
      - The SHA-256 digests of the model's files, and of pieces, by their names.
      - For other files, the module computes no digest.
    type: dict
    default: {}
  space_bytes:
    description: The space that is needed on the file system of O(path). For O(state=staged).
    type: int
    default: 0
  owner:
    description:
      - The name of the user who may write into the folder, by default the one who runs the module.
      - For O(state=staged).
    type: str
  others:
    description:
      - Names of further files in the folder that are put beside the model, with a record of their own.
      - For O(state=present).
    type: list
    elements: str
    default: []
  pieces:
    description:
      - Names of the files in the folder from which the model is joined, in order. They are not put beside it.
      - For O(state=present).
    type: list
    elements: str
    default: []
    version_added: 0.4.0
  made_with:
    description: What made the model, for readers of the record. The module does not compare it. For O(state=present).
    type: str
  remove_files:
    description: Whether model files are removed too. For O(state=absent).
    type: bool
    default: false
attributes:
  check_mode:
    description: Returns which files are missing, and checks whether the disk has room for them.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
  idempotent:
    description: The module does not change a model that matches its record.
    support: full
notes:
  - It runs detached from the connection, for as long as the C(timeout) of the task, by default six hours. While it
    computes digests, it shows about every ten seconds, later less often, how far it is.
  - Works with Python 3.8 and newer on the host and needs nothing but its standard library.
seealso:
  - module: llama_cpp.cluster.controller_file
  - module: llama_cpp.cluster.verified_download
"""

EXAMPLES = r"""
- name: Create a place for the model
  llama_cpp.cluster.model_file:
    path: /srv/models/model.gguf
    state: staged
    space_bytes: 4661211424
    origin: {built: today}
  register: model

- name: Write the model there
  ansible.builtin.command:
    argv: [make-a-model, "{{ model.staging }}/model.gguf"]
  when: model.needed | length > 0

- name: Move the model into place
  llama_cpp.cluster.model_file:
    path: /srv/models/model.gguf
    state: present
    origin: {built: today}
  when: model.needed | length > 0
"""

RETURN = r"""
staging:
  description: The folder beside the model that holds its files until they are complete.
  returned: success
  type: str
  sample: /srv/models/.model.gguf.staging
needed:
  description: The names of the missing files. With O(state=present), the names of the files that were put in place.
  returned: success
  type: list
  elements: str
  sample: [model.gguf]
removed:
  description: The files and folders that were removed.
  returned: with O(state=absent)
  type: list
  elements: str
  sample: [/srv/models/.model.gguf.llama_cpp.json]
"""

import os
import pwd
import re
import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.digest import digest_of_file, wrong_digest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.joined import join
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.progress import (
    VARIABLE,
    Count,
    Note,
    Tell,
    noted,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.record import (
    FileError,
    claim,
    put,
    reason,
    record_path,
    records_in,
    require_space,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import GgufError, model_parts, read_model


class Model:
    """One model, and the staging folder in which it is put together."""

    def __init__(self, module: AnsibleModule, note: Note) -> None:
        params = module.params
        self.path = Path(params["path"])
        self.parts = model_parts(self.path)
        self.staging = self.path.with_name(f".{self.path.name}.staging")
        self.source = self.path.with_name(f".{self.path.name}.source")  # the files that a conversion fetches
        self.origin: dict[str, Any] = params["origin"]
        self.sha256: dict[str, str] = {name: text.lower() for name, text in params["sha256"].items()}
        self.params = params
        self.note = note
        self.write = not module.check_mode

    def stage(self) -> dict[str, Any]:
        """Return the names of the missing parts, and make the staging folder for them."""
        needed, renewed = [], False
        tell = Count(self.note, [None]).tell
        for part in self.parts:
            wanted, written = claim(part, self.sha256.get(part.name), self.origin, write=self.write, tell=tell)
            needed += [part.name] if wanted else []
            renewed = renewed or written
        result = {"changed": bool(needed) or renewed, "needed": needed}
        if needed and self.write:
            # The files of a killed run take room that this run needs.
            shutil.rmtree(str(self.staging), ignore_errors=True)
        if needed:
            require_space(self.path, self.params["space_bytes"], f"{self.path}")
        if needed and self.write:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.staging.mkdir(mode=0o700)
            if self.params["owner"] and pwd.getpwnam(self.params["owner"]).pw_uid != os.geteuid():
                shutil.chown(str(self.staging), self.params["owner"])
        return result

    def put(self) -> dict[str, Any]:
        """Verify the files in the staging folder and move them into place, the first part last."""
        pieces = [self.staging / Path(name).name for name in self.params["pieces"]]
        is_cut = bool(pieces) and all(piece.exists() for piece in pieces)
        staged = [part for part in self.parts if is_cut or (self.staging / part.name).exists()]
        if not staged:
            claims = [claim(part, self.sha256.get(part.name), self.origin, write=False)[0] for part in self.parts]
            if any(claims):
                raise FileError(f"{self.path} cannot be put in place: {self.staging} does not hold it.")
            return {"changed": False, "needed": []}
        result = {"changed": True, "needed": [part.name for part in staged]}
        if not self.write:
            return result
        brought = pieces if is_cut else [self.staging / part.name for part in staged]
        sizes: list[int | None] = [path.stat().st_size for path in brought]
        count = Count(self.note, sizes)
        for path, size in zip(brought, sizes):
            self.verify(path, self.sha256.get(path.name), count.tell)
            count.next(size)
        if is_cut:
            self.join(pieces)
        if len(staged) == len(self.parts):
            read_model(self.staging / self.path.name)
        for name in self.params["others"]:
            self.place(self.path.with_name(Path(name).name))
        for part in reversed(staged):
            self.place(part)
        shutil.rmtree(str(self.staging), ignore_errors=True)
        return result

    def join(self, pieces: list[Path]) -> None:
        """Join the model from its verified pieces, and keep its digest for the record."""
        with (self.staging / self.path.name).open("xb") as stream:
            found = join(pieces, stream, Count(self.note, [None]).tell)
        wanted = self.sha256.setdefault(self.path.name, found)
        if found != wanted:
            raise FileError(wrong_digest(self.path.name, found, wanted))

    def place(self, path: Path) -> None:
        """Move one file from the staging folder into place."""
        brought = self.staging / path.name
        os.chown(str(brought), os.geteuid(), os.getegid())
        brought.chmod(0o644)
        put(brought, path, self.sha256.get(path.name), self.origin, self.params["made_with"])

    def remove(self) -> dict[str, Any]:
        """Remove records, the files of a killed run and, with `remove_files`, the files that were put there."""
        gone = [part.with_name(part.name + ".part") for part in self.parts]
        for path, record in records_in(self.path.parent).items():
            gone += [record_path(path)] + ([path] if self.params["remove_files"] and not record.adopted else [])
        gone = [path for path in [*gone, self.staging, self.source] if path.exists() or path.is_symlink()]
        for path in gone if self.write else []:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(str(path))
            else:
                path.unlink()
        return {"changed": bool(gone), "needed": [], "removed": [str(path) for path in gone]}

    def verify(self, path: Path, sha256: str | None, tell: Tell) -> None:
        """Raise FileError if a file has another digest."""
        found = digest_of_file(path, tell=tell) if sha256 else None
        if found != sha256:
            raise FileError(wrong_digest(path.name, found, sha256))

    def drop(self) -> None:
        """Remove the staging folder."""
        if self.write:
            shutil.rmtree(str(self.staging), ignore_errors=True)


def change(module: AnsibleModule, note: Note) -> dict[str, Any]:
    """Bring about the wanted state and return the result, or fail with a sentence."""
    params = module.params
    try:
        model = Model(module, note)
    except GgufError as error:
        module.fail_json(msg=str(error))
    try:
        result = {"staged": model.stage, "present": model.put, "absent": model.remove}[params["state"]]()
    except (FileError, GgufError) as error:
        model.drop()
        module.fail_json(msg=str(error))
    except KeyError:
        model.drop()
        module.fail_json(msg=f"owner is {params['owner']!r}, and there is no such user on this host.")
    except OSError as error:
        model.drop()
        module.fail_json(msg=reason(error, model.path))
    return {"staging": str(model.staging), **result}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["staged", "present", "absent"], "required": True},
            "origin": {"type": "dict", "default": {}},
            "sha256": {"type": "dict", "default": {}},
            "space_bytes": {"type": "int", "default": 0},
            "owner": {"type": "str"},
            "others": {"type": "list", "elements": "str", "default": []},
            "pieces": {"type": "list", "elements": "str", "default": []},
            "made_with": {"type": "str"},
            "remove_files": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    wrong = [name for name, text in params["sha256"].items() if not re.fullmatch(r"[0-9a-fA-F]{64}", str(text))]
    if wrong:
        module.fail_json(msg=f"sha256 of {wrong[0]} is not a SHA-256 digest: it needs 64 hexadecimal digits.")
    with noted(os.environ.pop(VARIABLE, None)) as note:
        result = change(module, note)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
