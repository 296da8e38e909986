#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Download large files with a known digest, and resume the downloads of an interrupted run."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: verified_download
short_description: Download large files of known digest, and resume interrupted downloads
version_added: 0.1.0
description:
  - Downloads each file to C(<name>.part) beside its destination, and renames it only when it is complete and has
    the right digest. A file that ends in C(.gguf) must also be a complete GGUF file.
  - Resumes the download of an earlier run with an HTTP range request. If the server does not support that, or has
    another version by then, the download starts again. A file with a wrong digest is deleted.
  - Checks that the disk has room for all files together before it writes anything.
  - Of a file that ends in C(.gguf) it reads the header first, and fetches nothing if llama.cpp would refuse the model
    for it. If the header cannot be read, the download shows why.
  - Beside each file, a record says what it is (C(.model.gguf.llama_cpp.json)). While the size, inode and modification
    time match the record, the module neither fetches the file nor computes its digest again.
  - It never overwrites a file without a record. It accepts such a file if the digest matches, and fails otherwise.
  - Two runs that fetch the same file at the same time wait for each other.
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  files:
    description: The files. The first one is renamed last, so that it stands for all of them.
    type: list
    elements: dict
    required: true
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
  joined:
    description:
      - The file to join from O(files), which are then all pieces of one file, by their names (C(.gguf.part1of2),
        C(.gguf-split-a)), in order. While this file matches its record, no piece is fetched.
      - The pieces stay, so the disk needs room for them and for the whole.
    type: dict
    version_added: 0.4.0
    suboptions:
      dest:
        description: The destination. It appears there only when it is complete, and must be a complete GGUF file.
        type: path
        required: true
      sha256:
        description: Its SHA-256 digest, if you know it.
        type: str
  origin:
    description: Where the files come from, in any form. The records keep it, and the module compares it as a whole.
    type: dict
    default: {}
  token:
    description:
      - A token that is sent as C(Authorization) header (C(Bearer)) to the host of each URL.
      - It is not sent to other hosts after a redirect, and appears in no message.
    type: str
  timeout:
    description: The time limit for all files, in seconds. The next run resumes what has arrived until then.
    type: int
    default: 21600
  stall_timeout:
    description: How long to wait for the next byte, in seconds, before a retry.
    type: int
    default: 60
  retries:
    description:
      - How often in a row to retry a download in which no byte arrives, with growing pauses of up to 30 seconds.
    type: int
    default: 5
attributes:
  check_mode:
    description: Returns what would be fetched, and checks headers and room on the disk. It asks servers for both.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
  idempotent:
    description: The module fetches nothing if the file is there and matches its record.
    support: full
notes:
  - It runs detached from the connection, so that no connection is silent for long. About every ten seconds, later less
    often, it shows one line with the host, the elapsed time, the percentage, the rate and the time that is left.
  - Proxies are taken from the environment (E(https_proxy), E(no_proxy)).
  - Works with Python 3.8 and newer on the host and needs nothing but its standard library.
"""

EXAMPLES = r"""
- name: Download the model
  llama_cpp.cluster.verified_download:
    files:
      - url: https://models.example.com/model.gguf
        dest: /srv/models/model.gguf
        sha256: f1ef0da719559b876a1d95011dc1a36c7474e701b3bcbb0ab9d9b5d2e2243577
"""

RETURN = r"""
fetched:
  description: The files that were fetched, or in check mode would be.
  returned: success
  type: list
  elements: str
  sample: [/srv/models/model.gguf]
"""

import contextlib
import os
import re
import tempfile
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.beginning import Beginning
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.download import (
    Wanted,
    Whole,
    fetch,
    make,
    plan,
    sentence,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.progress import VARIABLE, Count, Note, noted
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.quiet import QuietModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.record import FileError, claim
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
    piece_names,
    read_header,
)


def wanted_files(module: AnsibleModule) -> list[Wanted]:
    """Return the files, or fail with a sentence."""
    found = []
    for entry in module.params["files"]:
        try:
            check_url(entry["url"])
        except DownloadError as error:
            module.fail_json(msg=str(error))
        # The argument spec cannot check this, because it counts null as given.
        if not entry["sha256"] and not entry["git_blob"]:
            module.fail_json(msg=f"{entry['dest']} has neither sha256 nor git_blob: give one, to verify it with.")
        for name, digits in (("sha256", 64), ("git_blob", 40)):
            if entry[name] is not None and not re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", entry[name]):
                module.fail_json(
                    msg=f"{name} of {entry['dest']} is not a digest of this kind: it needs {digits} hexadecimal digits."
                )
        digest = (entry["sha256"] or entry["git_blob"]).lower()
        found.append(Wanted(entry["url"], Path(entry["dest"]), digest, entry["size_bytes"]))
    return found


def whole_of(module: AnsibleModule, files: list[Wanted]) -> Whole | None:
    """Return the file to join from the others, or fail with a sentence."""
    joined = module.params["joined"]
    if not joined:
        return None
    names = [wanted.path.name for wanted in files]
    if not names or piece_names(names[0], lambda: names) != names:
        module.fail_json(
            msg=f"{', '.join(names)} are not all pieces of one file in order: list all of them, the first one first."
        )
    digest = (joined["sha256"] or "").lower()
    if not re.fullmatch(r"([0-9a-f]{64})?", digest):
        module.fail_json(
            msg=f"sha256 of {joined['dest']} is not a digest of this kind: it needs 64 hexadecimal digits."
        )
    return Whole(Path(joined["dest"]), digest or None)


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
            if is_piece and beginning.arrived >= (beginning.total or MAX_COUNT):
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


def bring(module: AnsibleModule, note: Note) -> tuple[bool, list[str]]:
    """Fetch what is missing; return whether anything changed, and the paths of the files that were missing."""
    params = module.params
    files = wanted_files(module)
    whole = whole_of(module, files)
    limits = Limits(params["stall_timeout"], params["retries"], time.monotonic() + params["timeout"])
    token, origin = params["token"] or None, params["origin"]
    tell = Count(note, [None]).tell
    path = first = whole.path if whole else files[0].path if files else Path()
    try:
        if whole:
            needed, renewed = claim(whole.path, whole.sha256, origin, write=not module.check_mode, tell=tell)
            if not needed:
                return renewed, []
        missing = plan(files, origin, limits, token, tell, whole)
        check_headers(files, missing, whole, limits, token)
        fetched = [str(wanted.path) for wanted in missing]
        if module.check_mode:
            return bool(missing or whole), fetched
        count = Count(note, list(missing.values()))

        def fetch_all() -> bool:
            nonlocal path
            changed = False
            for wanted in reversed(files):
                path = wanted.path
                check = check_model if path.suffix == ".gguf" else None
                changed = fetch(wanted, origin, limits, token, check, count.tell) or changed
                if wanted in missing:
                    count.next(missing[wanted])
            path = first
            return changed

        changed = make(whole, files, origin, limits, fetch_all, check_model, tell) if whole else fetch_all()
    except (DownloadError, FileError, OSError) as error:
        module.fail_json(msg=sentence(error, path))
    return changed, fetched


def main() -> None:
    """Run the module."""
    module = QuietModule(
        argument_spec={
            "files": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "url": {"type": "str", "required": True},
                    "dest": {"type": "path", "required": True},
                    "sha256": {"type": "str"},
                    "git_blob": {"type": "str"},
                    "size_bytes": {"type": "int"},
                },
            },
            "joined": {
                "type": "dict",
                "options": {"dest": {"type": "path", "required": True}, "sha256": {"type": "str"}},
            },
            "origin": {"type": "dict", "default": {}},
            "token": {"type": "str", "no_log": True},
            "timeout": {"type": "int", "default": 21600},
            "stall_timeout": {"type": "int", "default": 60},
            "retries": {"type": "int", "default": 5},
        },
        supports_check_mode=True,
    )
    with noted(os.environ.pop(VARIABLE, None)) as note:
        changed, fetched = bring(module, note)
    module.exit_json(changed=changed, fetched=fetched)


if __name__ == "__main__":
    main()
