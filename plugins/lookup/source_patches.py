# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lookup: patches of a source, found on the controller and examined."""

from __future__ import annotations

DOCUMENTATION = r"""
name: source_patches
short_description: Patches of a source, found on the controller and examined
version_added: 0.1.0
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Finds patches, and examines them as far as that can be done without the source.
  - A patch is a unified diff C(<name>.patch), with lines before its first change that say what it is made for, and
    maybe a folder C(<name>) beside it with files to add. See O(llama_cpp.cluster.verified_archive#module:patches).
  - What is wrong is no error, but RV(_value.problem).
options:
  _terms:
    description:
      - The patches, in their order. A name without an extension is one of O(own), another one the path of a file
        C(<name>.patch), absolute or as tasks look for their files.
    type: list
    elements: str
    required: true
  own:
    description: The folder of those that are meant by a name.
    type: path
  sha256:
    description: The SHA-256 digest of the archive that the source comes from, if there is one.
    type: str
    default: ""
  commit:
    description: The commit of the source, or its beginning; empty if it is not known.
    type: str
    default: ""
  pinned:
    description: What the source is called in messages.
    type: str
    default: another source
"""

EXAMPLES = r"""
- name: The patch is what it is said to be, and for this source
  ansible.builtin.assert:
    that: found.problem | length == 0
    fail_msg: "{{ found.problem }}"
  vars:
    commit: 0c1e57098bba43ac29e6e3b677cdceebdd22334f
    found: "{{ lookup('llama_cpp.cluster.source_patches', 'mine.patch', commit=commit) }}"
"""

RETURN = r"""
_value:
  description: What was found.
  type: dict
  contains:
    problem:
      description: What is wrong with the first patch that is not right, as one sentence; empty if all of them are.
      type: str
      sample: ""
    patches:
      description: The patches, in their order; none if there is a problem.
      type: list
      elements: dict
      contains:
        name:
          description: The name of the file, without its extension.
          type: str
          sample: rpc-repack
        sha256:
          description: The digest of the diff; of one that comes with files, of the list of all their digests.
          type: str
          sample: 5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03
        path:
          description: The diff on the controller.
          type: str
          sample: /srv/patches/rpc-repack.patch
        parts:
          description: The diff, and the folder if there is one.
          type: list
          elements: str
          sample: [/srv/patches/rpc-repack.patch, /srv/patches/rpc-repack]
"""

from pathlib import Path
from typing import Any

from ansible.plugins.lookup import LookupBase
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.source_patch import (
    PatchError,
    check_origin,
    read_patch,
)


class LookupModule(LookupBase):  # type: ignore[misc]
    """The lookup, as Ansible looks for it."""

    def run(
        self,
        terms: list[Any],
        variables: dict[str, Any] | None = None,
        **kwargs: Any,  # noqa: ANN401 (options of any type)
    ) -> list[dict[str, Any]]:
        """Return one dictionary."""
        self.set_options(var_options=variables, direct=kwargs)
        try:
            return [{"patches": [self._examined(str(term), variables or {}) for term in terms], "problem": ""}]
        except PatchError as error:
            return [{"patches": [], "problem": str(error)}]

    def _examined(self, term: str, variables: dict[str, Any]) -> dict[str, Any]:
        path = self._path(term, variables)
        patch = read_patch(path)
        check_origin(patch, self.get_option("sha256"), self.get_option("commit"), self.get_option("pinned"))
        parts = [path, path.with_suffix("")] if patch.added else [path]
        return {"name": patch.name, "sha256": patch.sha256, "path": str(path), "parts": [str(part) for part in parts]}

    def _path(self, term: str, variables: dict[str, Any]) -> Path:
        own = self.get_option("own")
        if own and "/" not in term and not Path(term).suffix:
            path = Path(own) / f"{term}.patch"
            if not path.is_file():
                known = ", ".join(sorted(found.stem for found in Path(own).glob("*.patch")))
                raise PatchError(
                    f"There is no patch {term} of this collection's own (there is {known or 'none'}): give one of "
                    "these, or the path of a file that ends in .patch."
                )
            return path
        if Path(term).suffix != ".patch":
            raise PatchError(f"{term} is no name of a patch: give the path of a file that ends in .patch.")
        found = self.find_file_in_search_path(variables, "files", term, ignore_missing=True)
        if found is None:
            raise PatchError(
                f"The patch {term} is not there on the controller: give its path, absolute or from the folder of the "
                "playbook."
            )
        return Path(found)
