# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lookup: patches of a source, found on the controller and examined."""

from __future__ import annotations

DOCUMENTATION = r"""
name: source_patches
short_description: Find patches of a source on the controller and check them
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Finds patches, and checks them as far as possible without the source, or with O(archive) whether they apply.
  - A patch is a unified diff C(<name>.patch), with lines before its first change that say what it is made for. See
    O(llama_cpp.cluster.patched_source#module:patches).
  - The lookup does not fail for a bad patch. RV(_value.problem) says what is wrong.
options:
  _terms:
    description: The patches, in order. A name without an extension is a patch in O(own). Any other entry is the path of
      a file C(<name>.patch), absolute or relative as for other files of tasks.
    type: list
    elements: str
    required: true
  own:
    description:
      - The folder of patches that have a name, with one folder for each version that they are made for.
      - Give all patches for the pinned source, the core (C(rpc-repack), C(rpc-load), C(rpc-safety), C(programs)), or
        none, because only these choices are tested.
    type: path
  sha256:
    description: The SHA-256 digest of the archive that the source comes from, if there is one.
    type: str
    default: ""
  commit:
    description: The commit of the source, or its beginning; empty if it is unknown.
    type: str
    default: ""
  archive:
    description:
      - The archive of the source on the controller, in which the patches are tried.
      - It must have the digest O(sha256), if that is given, and be whole. No member or link of it may lead out of its
        root.
    type: path
  subdir:
    description: The folder of O(archive) that is patched.
    type: str
    default: ""
  fitting:
    description:
      - Whether to return the patches of the core that fit a source that they are not made for, instead of given ones.
      - A patch fits if all lines that it expects are in O(archive), and the source speaks O(protocol). Lines that are
        there several times must not have moved. Nothing fits as long as the archive is not there.
    type: bool
    default: false
    version_added: 0.4.0
  protocol:
    description: The version of the RPC protocol that the patches in O(own) are tested with.
    type: str
    default: ""
    version_added: 0.4.0
  pinned:
    description: The name of the source in messages.
    type: str
    default: another source
"""

EXAMPLES = r"""
- name: Check the digest of the patch, and that it is for this source
  ansible.builtin.assert:
    that: found.problem | length == 0
    fail_msg: "{{ found.problem }}"
  vars:
    commit: 0c1e57098bba43ac29e6e3b677cdceebdd22334f
    found: "{{ lookup('llama_cpp.cluster.source_patches', 'mine.patch', commit=commit) }}"
"""

RETURN = r"""
_value:
  description: The checked patches.
  type: dict
  contains:
    problem:
      description: What is wrong with the first wrong patch, as one sentence; empty if there is none.
      type: str
    patches:
      description: The patches, in their order; none if there is a problem. Each has the C(name) of its file, without
        the extension, its C(sha256) digest, and its C(path) on the controller.
      type: list
      elements: dict
    left_out:
      description: With O(fitting) the patches that do not fit, each with its C(name) and the reason, C(why).
      type: list
      elements: dict
"""

import lzma
import posixpath
import re
import tarfile
import zlib
from pathlib import Path
from typing import Any, Container

from ansible.plugins.lookup import LookupBase
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.record import digest_of_file, wrong_digest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.source_patch import (
    Patch,
    PatchError,
    apply,
    check_origin,
    read_patch,
    touched,
)

CORE = ("rpc-repack", "rpc-load", "rpc-safety", "programs")
_RPC_HEADER = "ggml/include/ggml-rpc.h"
_PROTOCOL = re.compile(r"define +RPC_PROTO_(?:MAJOR|MINOR|PATCH)_VERSION +([0-9]+)")


def _described(patch: Patch, path: Path) -> dict[str, str]:
    return {"name": patch.name, "sha256": patch.sha256, "path": str(path)}


def _leads_out(info: tarfile.TarInfo) -> bool:
    target = posixpath.join(posixpath.dirname(info.name), info.linkname) if info.issym() else info.linkname
    return any(posixpath.normpath(path).split("/")[0] in {"", ".."} for path in (info.name, target))


def _files_in(archive: Path, subdir: str, names: Container[str]) -> dict[str, bytes]:
    """Return the content of files with these names in a folder of an archive, all of which is read."""
    found = {}
    try:
        with tarfile.open(archive) as tar:
            for info in tar:
                if _leads_out(info):
                    raise PatchError(f"The archive {archive} is refused: its member {info.name} leads out of its root.")
                name = posixpath.relpath(info.name, subdir or ".")
                source = tar.extractfile(info) if name in names and info.isreg() else None
                if source:
                    found[name] = source.read()
    except (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError) as error:
        raise PatchError(f"{archive} is not a whole archive (tar, plain or with gzip, bzip2 or xz): {error}.") from None
    return found


class LookupModule(LookupBase):  # type: ignore[misc]
    """The lookup in the form that Ansible expects."""

    def run(
        self,
        terms: list[Any],
        variables: dict[str, Any] | None = None,
        **kwargs: Any,  # noqa: ANN401 (options of any type)
    ) -> list[dict[str, Any]]:
        """Return a list of one dictionary with the patches and the problem."""
        self.set_options(var_options=variables, direct=kwargs)
        names = [str(term) for term in terms]
        left_out: list[dict[str, str]] = []
        try:
            if self.get_option("fitting"):
                found, left_out = self._fitting()
            else:
                found = [self._examined(name, variables or {}) for name in names]
                self._check_choice([name for name in names if self._is_own(name)])
                self._try_in_archive([read_patch(Path(patch["path"])) for patch in found])
        except PatchError as error:
            return [{"patches": [], "problem": str(error), "left_out": []}]
        return [{"patches": found, "problem": "", "left_out": left_out}]

    def _is_own(self, term: str) -> bool:
        return bool(self.get_option("own")) and "/" not in term and not Path(term).suffix

    def _examined(self, term: str, variables: dict[str, Any]) -> dict[str, str]:
        path = self._own_path(term) if self._is_own(term) else self._path(term, variables)
        patch = read_patch(path)
        self._check_origin(patch)
        return _described(patch, path)

    def _fitting(self) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
        """Return the patches of the core that fit the archive, and those that do not, with the reason."""
        archive = Path(self.get_option("archive"))
        if not archive.exists():
            return [], []
        self._check_digest(archive)
        paths = [self._own_path(name) for name in CORE]
        patches = [read_patch(path) for path in paths]
        files = _files_in(archive, self.get_option("subdir"), {_RPC_HEADER, *touched(patches)})
        spoken = ".".join(_PROTOCOL.findall(files.get(_RPC_HEADER, b"").decode(errors="replace")))
        tested = self.get_option("protocol")
        if spoken != tested:
            why = f"it speaks RPC protocol {spoken or 'unknown'}, and the patches are tested with {tested}"
            return [], [{"name": name, "why": why} for name in CORE]
        fit: list[Patch] = []
        left_out = []
        for patch in patches:
            try:
                apply([*fit, patch], files.get, once=True)
                fit.append(patch)
            except PatchError as error:
                left_out.append({"name": patch.name, "why": str(error).partition(";")[0]})
        return [_described(patch, path) for patch, path in zip(patches, paths) if patch in fit], left_out

    def _try_in_archive(self, patches: list[Patch]) -> None:
        archive = self.get_option("archive")
        if archive:
            self._check_digest(Path(archive))
            apply(patches, _files_in(Path(archive), self.get_option("subdir"), touched(patches)).get)

    def _check_digest(self, archive: Path) -> None:
        expected = self.get_option("sha256")
        try:
            found = digest_of_file(archive)
        except OSError:
            raise PatchError(
                f"There is no file {archive} on the controller that can be read: correct its path."
            ) from None
        if expected not in {"", found}:
            raise PatchError(wrong_digest(self.get_option("pinned"), found, expected))

    def _check_origin(self, patch: Patch) -> None:
        check_origin(patch, self.get_option("sha256"), self.get_option("commit"), self.get_option("pinned"))

    def _is_for_the_source(self, path: Path) -> bool:
        try:
            self._check_origin(read_patch(path))
        except PatchError:
            return False
        return True

    def _own_path(self, term: str) -> Path:
        """Return the patch that is made for the source; if there is none, the one for the newest other version."""
        own = Path(self.get_option("own"))
        paths = sorted(
            own.glob(f"*/{term}.patch"), key=lambda path: [int(part) for part in re.findall(r"\d+", path.parent.name)]
        )
        if paths:
            return next((path for path in paths if self._is_for_the_source(path)), paths[-1])
        known = ", ".join(sorted({path.stem for path in own.glob("*/*.patch")}))
        raise PatchError(
            f"There is no patch {term} of this collection's own (there is {known or 'none'}): give one of "
            "these, or the path of a file that ends in .patch."
        )

    def _check_choice(self, given: list[str]) -> None:
        """Raise PatchError unless all of the collection's own patches, the core of them, or none are given."""
        if not given:
            return
        own = Path(self.get_option("own"))
        there = {path.stem for path in own.glob("*/*.patch") if self._is_for_the_source(path)}
        if there - set(given) and set(given) != there & set(CORE):
            raise PatchError(
                f"llama_cpp_patches leaves out {' and '.join(sorted(there - set(given)))}: of the collection's own "
                f"({', '.join(sorted(there))}) give all, the core ({', '.join(CORE)}), or none, as nothing else is "
                "tested."
            )

    def _path(self, term: str, variables: dict[str, Any]) -> Path:
        if Path(term).suffix != ".patch":
            raise PatchError(f"{term} is not the name of a patch: give the path of a file that ends in .patch.")
        found = self.find_file_in_search_path(variables, "files", term, ignore_missing=True)
        if found is None:
            raise PatchError(
                f"The patch {term} does not exist on the controller: give its path, absolute or from the folder of the "
                "playbook."
            )
        return Path(found)
