#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Look up files of a Hugging Face repository: their addresses, sizes and digests."""

from __future__ import annotations

DOCUMENTATION = r"""
module: hub_files_info
short_description: Look up files of a Hugging Face repository
version_added: 0.3.0
description:
  - Asks the hub for URLs, sizes and digests of files of a repository, all from the same commit. It returns them in
    the form that M(llama_cpp.cluster.model_file) takes.
  - For a part of a split GGUF file (C(...-00001-of-00003.gguf)) it returns all parts. For a piece of a file that was
    cut (C(.gguf.part1of2), C(.gguf-split-a)) it returns all pieces.
author: The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  repo:
    description: The repository, as C(owner/name).
    type: str
    required: true
  files:
    description: The names of files. One of O(files) and O(patterns) is required.
    type: list
    elements: str
  patterns:
    description: Shell patterns. The module takes all files at the top level of the repository that match one.
    type: list
    elements: str
  excludes:
    description: Shell patterns of names to leave out.
    type: list
    elements: str
    default: []
  revision:
    description: A branch, tag or commit.
    type: str
    default: main
  endpoint:
    description: The hub, or a mirror of it.
    type: str
    default: https://huggingface.co
  timeout:
    description: The time limit in seconds.
    type: int
    default: 300
extends_documentation_fragment:
  - llama_cpp.cluster.download
  - llama_cpp.cluster.reads_only
"""

EXAMPLES = r"""
- name: Look up the files of the model
  llama_cpp.cluster.hub_files_info:
    repo: ggml-org/gemma-3-1b-it-GGUF
    files: [gemma-3-1b-it-Q4_K_M.gguf]
  register: model
"""

RETURN = r"""
commit:
  description: The commit of all files.
  returned: success
  type: str
files:
  description: The files, each with its C(name), its C(url) for exactly this commit, the SHA-256 digest of a large file
    (C(sha256)) or the git object name of a small one (C(git_blob); the other is V(null)), and its C(size_bytes)
    (V(null) if the hub does not say).
  returned: success
  type: list
  elements: dict
size_bytes:
  description: The size of all files.
  returned: success
  type: int
"""

import re
from fnmatch import fnmatchcase
from posixpath import join, split
from typing import Any, cast
from urllib.parse import quote

from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.quiet import PATIENCE, QuietModule, limits_of
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.web import DownloadError, get_json, head
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import (
    GgufError,
    part_names,
    piece_names,
)


class Hub:
    """A repository on a hub, in one revision."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.endpoint = params["endpoint"].rstrip("/")
        self.repo = params["repo"]
        self.revision = params["revision"]
        self.token = params["token"] or None
        self.limits = limits_of(params)

    def explain(self, error: DownloadError, name: str = "") -> DownloadError:
        """Return an error that explains a hub's refusal; the hub names the reason in a header."""
        code = error.headers.get("X-Error-Code", "") if error.headers else ""
        if error.status not in (401, 403, 404):
            return error
        if code == "EntryNotFound":
            return DownloadError(
                f"{self.repo} at {self.revision} has no file {name}: correct the name, or the revision."
            )
        if code == "RevisionNotFound":
            return DownloadError(
                f"{self.repo} has no revision {self.revision}: give a branch, a tag or a commit of it."
            )
        if code == "GatedRepo" or error.status == 403:
            whose = "the token lacks access to it" if self.token else "no token was given"
            return DownloadError(
                f"{self.repo} is gated, and {whose}: accept its terms on its page, "
                "and give a token of that account that may read it."
            )
        if error.status == 401:
            whose = (
                "the token is not accepted, or lacks access to it" if self.token else "it is private and needs a token"
            )
            return DownloadError(
                f"{self.repo} is refused: it does not exist at {self.endpoint}, or {whose}; "
                "correct the name or the token."
            )
        if code == "RepoNotFound":
            return DownloadError(
                f"{self.endpoint} has no repository {self.repo}, or none that is public: "
                "correct its owner and name, or give a token."
            )
        return DownloadError(
            f"{self.repo} at {self.revision} or its file {name} does not exist at {self.endpoint}: correct the names."
        )

    def listed(self) -> list[str]:
        """Return the names of all files."""
        url = f"{self.endpoint}/api/models/{self.repo}/revision/{quote(self.revision, safe='')}"
        try:
            answer = cast("dict[str, Any]", get_json(url, self.limits, self.token))
        except DownloadError as error:
            raise self.explain(error) from None
        return [entry["rfilename"] for entry in answer["siblings"]]

    def names(self, patterns: list[str], excludes: list[str]) -> list[str]:
        """Return the names of the files outside of folders that fit the patterns."""

        def fits(name: str, among: list[str]) -> bool:
            return any(fnmatchcase(name, pattern) for pattern in among)

        names = [
            name for name in self.listed() if "/" not in name and fits(name, patterns) and not fits(name, excludes)
        ]
        if not names:
            raise DownloadError(f"{self.repo} at {self.revision} has no file that fits {', '.join(patterns)}.")
        return names

    def whole(self, name: str) -> list[str]:
        """Return the names of all files that the one with this name needs: parts, or pieces."""
        folder, last = split(name)
        pieces = piece_names(last, lambda: (split(other)[1] for other in self.listed() if split(other)[0] == folder))
        return [join(folder, part) for part in pieces or part_names(last)]

    def look(self, name: str) -> dict[str, Any]:
        """Return the URL, digest and size of one file. The commit of the first file applies to all later ones."""

        def url() -> str:
            return f"{self.endpoint}/{self.repo}/resolve/{quote(self.revision, safe='')}/{quote(name)}"

        try:
            headers = head(url(), self.limits, self.token)
        except DownloadError as error:
            raise self.explain(error, name) from None
        self.revision = headers.get("X-Repo-Commit") or self.revision
        etag = (headers.get("X-Linked-Etag") or headers.get("ETag") or "").replace("W/", "").strip('"').lower()
        size = headers.get("X-Linked-Size") or ("" if headers.get("Location") else headers.get("Content-Length")) or ""
        if not re.fullmatch(r"[0-9a-f]{64}|[0-9a-f]{40}", etag):
            raise DownloadError(
                f"{self.endpoint} names no digest of {name} in {self.repo}: it does not answer as a hub does."
            )
        return {
            "name": name,
            "url": url(),
            "sha256": etag if len(etag) == 64 else None,
            "git_blob": etag if len(etag) == 40 else None,
            "size_bytes": int(size) if size.isdigit() else None,
        }


def main() -> None:
    """Run the module."""
    module = QuietModule(
        argument_spec={
            "repo": {"type": "str", "required": True},
            "files": {"type": "list", "elements": "str"},
            "patterns": {"type": "list", "elements": "str"},
            "excludes": {"type": "list", "elements": "str", "default": []},
            "revision": {"type": "str", "default": "main"},
            "endpoint": {"type": "str", "default": "https://huggingface.co"},
            "timeout": {"type": "int", "default": 300},
            **PATIENCE,
        },
        required_one_of=[("files", "patterns")],
        mutually_exclusive=[("files", "patterns")],
        supports_check_mode=True,
    )
    params = module.params
    hub = Hub(params)
    try:
        if params["patterns"]:
            names = hub.names(params["patterns"], params["excludes"])
        else:
            names = [part for name in params["files"] for part in hub.whole(name)]
        files = [hub.look(name) for name in names]
    except (DownloadError, GgufError) as error:
        module.fail_json(msg=str(error))
    except (KeyError, TypeError):
        module.fail_json(msg=f"{hub.endpoint} does not list the files of {hub.repo}: it does not answer as a hub does.")
    module.exit_json(
        changed=False, commit=hub.revision, files=files, size_bytes=sum(file["size_bytes"] or 0 for file in files)
    )


if __name__ == "__main__":
    main()
