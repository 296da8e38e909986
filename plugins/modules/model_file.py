#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a model to its place: from URLs, from the controller, or from a folder in which it was made."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_file
short_description: Bring the verified files of a model to their place
version_added: 0.1.0
description:
  - With O(state=present) it brings the model to O(path), from the URLs in O(files), from O(controller_files), or else
    from the folder that O(state=staged) has made. The model is there completely or not at all, and verified.
  - Beside each file, a record says what it is and where it came from (C(.model.gguf.llama_cpp.json)). While the size,
    inode and modification time match the record, the module neither brings the file nor computes its digest again.
  - It never overwrites a file without a record. It accepts such a file if the digest matches, and fails otherwise.
  - It checks that the disk has room for all files together before it writes anything.
  - It downloads each file to C(<name>.part) beside its destination, and resumes the download of an earlier run with an
    HTTP range request. If the server does not support that, or has another version by then, the download starts again.
    A file with a wrong digest is deleted. Two runs that fetch the same file at the same time wait for each other.
  - Of a file that ends in C(.gguf) it reads the header first, and fetches nothing if llama.cpp would refuse the model
    for it. If the header cannot be read, the download shows why.
  - It sends files from the controller directly to their folder on the host. Unlike M(ansible.builtin.copy), it makes no
    second copy in a temporary folder, and shows the progress.
author: The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  path:
    description: The model. For a split model, its first part (C(...-00001-of-00003.gguf)), which stands for all parts.
    type: path
    required: true
  state:
    description:
      - With V(present), the model is brought.
      - With V(fetched), the module downloads O(files), and does nothing else. They need not be a model.
      - With V(staged), the module returns which files of the model are missing, and makes a folder for them beside it.
      - With V(absent), the module removes the records in the folder of the model and leftovers of killed runs. If
        O(remove_files) is true, it also removes the files that have a record, unless they were there before.
    type: str
    choices: [present, fetched, staged, absent]
    default: present
  files:
    description: The files to download. The first one is renamed last, so that it stands for all of them.
    type: list
    elements: dict
    default: []
    suboptions:
      url:
        description: The URL of the file, with C(http) or C(https). Its query, which may be a signature, is never shown.
        type: str
        required: true
      dest:
        description: The destination. The module makes its folder if it is missing.
        type: path
        required: true
      sha256:
        description: Its SHA-256 digest.
        type: str
      git_blob:
        description: The git object name of its content, instead of O(files[].sha256).
        type: str
      size_bytes:
        description: Its size, if you know it. Otherwise the module asks the server.
        type: int
  controller_files:
    description: Absolute paths of the model's files, or of its pieces, on the controller, in order.
    type: list
    elements: str
    default: []
  joined:
    description:
      - Whether O(files) or O(controller_files) are all pieces of one file, by their names (C(.gguf.part1of2),
        C(.gguf-split-a)), in order. The module joins them. Downloaded pieces stay.
      - The disk needs room for them and for the whole.
    type: bool
    default: false
  origin:
    description: Where the model comes from, in any form. The record keeps it, and the module compares it as a whole.
    type: dict
    default: {}
  sha256:
    description:
      - The SHA-256 digests of the model's files, and of pieces, by their names.
      - For other files that are not downloaded, the module computes no digest.
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
  made_with:
    description: What made the model, for readers of the record. The module does not compare it.
    type: str
  remove_files:
    description: Whether model files are removed too. For O(state=absent).
    type: bool
    default: false
  timeout:
    description: The time limit in seconds. The next run resumes what has been downloaded until then.
    type: int
    default: 21600
attributes:
  check_mode:
    description: Returns which files are missing, and checks headers and room on the disk. It asks servers for both.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
  idempotent:
    description: The module does not change a model that matches its record.
    support: full
notes:
  - It runs detached from the connection, so that no connection is silent for long. About every ten seconds, later less
    often, it shows one line with the host, the elapsed time, the percentage, the rate and the time that is left.
  - For O(controller_files), the user of the connection must be allowed to read the folder of the model.
  - Needs Python 3.8 or newer on the host, and only Python's standard library.
extends_documentation_fragment:
  - llama_cpp.cluster.download
"""

EXAMPLES = r"""
- name: Download the model
  llama_cpp.cluster.model_file:
    path: /srv/models/model.gguf
    files:
      - url: https://models.example.com/model.gguf
        dest: /srv/models/model.gguf
        sha256: f1ef0da719559b876a1d95011dc1a36c7474e701b3bcbb0ab9d9b5d2e2243577

- name: Create a place for a model that is made here
  llama_cpp.cluster.model_file:
    path: /srv/models/other.gguf
    state: staged
    space_bytes: 4661211424
    origin: {built: today}
  register: model

- name: Write the model there
  ansible.builtin.command:
    argv: [make-a-model, "{{ model.staging }}/other.gguf"]
  when: model.needed | length > 0

- name: Move the model into place
  llama_cpp.cluster.model_file:
    path: /srv/models/other.gguf
    origin: {built: today}
  when: model.needed | length > 0
"""

RETURN = r"""
staging:
  description: The folder beside the model that holds its files until they are complete.
  returned: success
  type: str
needed:
  description: The names of the files that were missing.
  returned: success
  type: list
  elements: str
removed:
  description: The files and folders that were removed.
  returned: with O(state=absent)
  type: list
  elements: str
"""

import contextlib
import os
import pwd
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.beginning import Beginning
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.download import (
    Wanted,
    Whole,
    fetch,
    join,
    make,
    plan,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.progress import (
    VARIABLE,
    Count,
    Note,
    Tell,
    noted,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.quiet import PATIENCE, QuietModule, limits_of
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.record import (
    FileError,
    claim,
    digest_of_file,
    put,
    reason,
    record_path,
    records_in,
    require_space,
    wrong_digest,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.web import (
    DownloadError,
    Limits,
    check_url,
    shown,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import (
    MAX_COUNT,
    GgufError,
    header_of,
    model_parts,
    piece_names,
    read_header,
    read_model,
)


def check_digest(name: str, text: str | None, digits: int = 64, field: str = "sha256") -> None:
    """Raise FileError if a digest that is given cannot be one."""
    if text is not None and not re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", str(text)):
        raise FileError(f"{field} of {name} is not a digest of this kind: it needs {digits} hexadecimal digits.")


def wanted_files(files: list[dict[str, Any]]) -> list[Wanted]:
    """Return the files to download. Raises DownloadError and FileError."""
    found = []
    for entry in files:
        check_url(entry["url"])
        # The argument spec cannot check this, because it counts null as given.
        if not entry["sha256"] and not entry["git_blob"]:
            raise FileError(f"{entry['dest']} has neither sha256 nor git_blob: give one, to verify it with.")
        check_digest(entry["dest"], entry["sha256"])
        check_digest(entry["dest"], entry["git_blob"], 40, "git_blob")
        digest = (entry["sha256"] or entry["git_blob"]).lower()
        found.append(Wanted(entry["url"], Path(entry["dest"]), digest, entry["size_bytes"]))
    return found


def check_pieces(names: list[str]) -> None:
    """Raise FileError unless these are the names of all pieces of one file."""
    if not names or piece_names(names[0], lambda: names) != names:
        raise FileError(
            f"{', '.join(names)} are not all pieces of one file in order: list all of them, the first one first."
        )


def check_model(path: Path) -> None:
    """Raise FileError if a file is not a model, such as a web page that a server sent instead."""
    try:
        read_header(path)
    except GgufError as error:
        raise FileError(str(error)) from None


def check_header(wanted: Wanted, size: int | None, limits: Limits, token: str | None, *, is_piece: bool) -> None:
    """Raise FileError if llama.cpp would refuse a model of this size for its header, which is read from the server."""
    # One attempt: the download itself is patient, and names the reason if it fails.
    once = Limits(limits.stall_s, 0, limits.deadline)
    with contextlib.suppress(DownloadError, OSError), tempfile.TemporaryFile() as store:
        beginning = Beginning(wanted.url, once, token, store)
        try:
            beginning.use(lambda stream: header_of(stream, size or MAX_COUNT))
        except GgufError as error:
            if is_piece and beginning.lacks:
                return  # the header goes on in the next piece
            raise FileError(
                f"{shown(wanted.url)} is not a complete GGUF model: {error}; nothing was fetched."
            ) from None


def check_headers(
    files: list[Wanted], missing: dict[Wanted, int | None], whole: Whole | None, limits: Limits, token: str | None
) -> None:
    """Raise FileError if llama.cpp would refuse a model, unless it has begun to arrive."""
    if whole:
        sizes = [missing[file] if file in missing else file.path.stat().st_size for file in files]
        asked = [(files[0], None if None in sizes else sum(size or 0 for size in sizes))]
    else:
        asked = [(file, size) for file, size in missing.items() if file.path.suffix == ".gguf"]
    for file, size in asked:
        if file in missing and not file.part.exists():
            check_header(file, size, limits, token, is_piece=whole is not None)


class Download:
    """The download of files, and the file that is joined from them, if any."""

    def __init__(self, params: dict[str, Any], note: Note, *, write: bool) -> None:
        self.params, self.note, self.write = params, note, write
        self.files = wanted_files(params["files"])
        self.whole: Whole | None = None
        if params["joined"]:
            check_pieces([wanted.path.name for wanted in self.files])
            path = Path(params["path"])
            self.whole = Whole(path, params["sha256"].get(path.name))
        self.current = self.whole.path if self.whole else self.files[0].path if self.files else Path(params["path"])

    def run(self) -> dict[str, Any]:
        """Fetch what is missing. Raises DownloadError and FileError, and OSError, which concerns `current`."""
        params, whole, first = self.params, self.whole, self.current
        limits = limits_of(params)
        token, origin = params["token"] or None, params["origin"]
        tell = Count(self.note, [None]).tell
        if whole:
            needed, renewed = claim(whole.path, whole.sha256, origin, write=self.write, tell=tell)
            if not needed:
                return {"changed": renewed, "needed": []}
        missing = plan(self.files, origin, limits, token, tell, whole)
        check_headers(self.files, missing, whole, limits, token)
        result = {"changed": bool(missing or whole), "needed": [wanted.path.name for wanted in missing]}
        if not self.write:
            return result
        count = Count(self.note, list(missing.values()))

        def fetch_all() -> bool:
            changed = False
            for wanted in reversed(self.files):
                self.current = wanted.path
                check = check_model if wanted.path.suffix == ".gguf" else None
                changed = fetch(wanted, origin, limits, token, check, count.tell) or changed
                if wanted in missing:
                    count.next(missing[wanted])
            self.current = first
            return changed

        changed = make(whole, self.files, origin, limits, fetch_all, check_model, tell) if whole else fetch_all()
        return {**result, "changed": changed}


class Model:
    """One model, and the staging folder in which it is put together."""

    def __init__(self, params: dict[str, Any], note: Note, *, write: bool) -> None:
        self.path = Path(params["path"])
        self.parts = model_parts(self.path)
        self.staging = self.path.with_name(f".{self.path.name}.staging")
        self.source = self.path.with_name(f".{self.path.name}.source")  # the files that a conversion fetches
        self.origin: dict[str, Any] = params["origin"]
        self.sha256: dict[str, str] = params["sha256"]
        self.params = params
        self.note = note
        self.write = write

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
        names = self.params["controller_files"] if self.params["joined"] else []
        pieces = [self.staging / Path(name).name for name in names]
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
    write = not module.check_mode
    model: Model | None = None
    path = Path(params["path"])
    try:
        for name, text in params["sha256"].items():
            check_digest(name, text)
        params["sha256"] = {name: text.lower() for name, text in params["sha256"].items()}
        if params["state"] == "fetched" or (params["state"] == "present" and params["files"]):
            download = Download(params, note, write=write)
            try:
                return download.run()
            finally:
                path = download.current
        model = Model(params, note, write=write)
        change = {"staged": model.stage, "present": model.put, "absent": model.remove}
        result = change[params["state"]]()
    except (DownloadError, FileError, GgufError) as error:
        message = str(error)
    except KeyError:
        message = f"owner is {params['owner']!r}, and there is no such user on this host."
    except OSError as error:
        message = reason(error, path)
    else:
        return {"staging": str(model.staging), **result}
    if model:
        model.drop()
    module.fail_json(msg=message)
    raise AssertionError


def main() -> None:
    """Run the module."""
    module = QuietModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "fetched", "staged", "absent"], "default": "present"},
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "url": {"type": "str", "required": True},
                    "dest": {"type": "path", "required": True},
                    "sha256": {"type": "str"},
                    "git_blob": {"type": "str"},
                    "size_bytes": {"type": "int"},
                },
            },
            "controller_files": {"type": "list", "elements": "str", "default": []},
            "joined": {"type": "bool", "default": False},
            "origin": {"type": "dict", "default": {}},
            "sha256": {"type": "dict", "default": {}},
            "space_bytes": {"type": "int", "default": 0},
            "owner": {"type": "str"},
            "made_with": {"type": "str"},
            "remove_files": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 21600},
            **PATIENCE,
        },
        supports_check_mode=True,
    )
    with noted(os.environ.pop(VARIABLE, None)) as note:
        result = change(module, note)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
