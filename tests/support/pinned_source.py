# SPDX-License-Identifier: GPL-3.0-or-later
"""Sources of llama.cpp that the role has a digest for, with the collection's own patches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from support.collection import Archive, Patch, read_patch
from support.harness import CACHE, ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ROLE = ROOT / "roles/llama_cpp"
ARCHIVES = yaml.safe_load((ROLE / "vars/main.yml").read_text())["__llama_cpp_archives"]
DEFAULT = yaml.safe_load((ROLE / "defaults/main.yml").read_text())["llama_cpp_version"]


def choices(version: str) -> list[tuple[str, ...]]:
    """Return the sets of patches that a version may have: all, all but one, none."""
    own = tuple(ARCHIVES[version].get("patches", []))
    return [own, *(tuple(name for name in own if name != left_out) for left_out in own), *([()] if own else [])]


def patches(version: str, names: Sequence[str]) -> list[Patch]:
    return [read_patch(ROLE / "files/patches" / version / f"{name}.patch") for name in names]


def source(version: str) -> Path:
    """Return the archive of a version. The default one is always there, as the release under test is built from it."""
    path = CACHE / f"sources/llama_cpp_python-{version}.tar.gz"
    if not path.exists():
        pytest.fail(f"the source {version} is not in the cache: run `make test`, which fetches it")
    return path


def opened(version: str, names: Sequence[str]) -> Archive:
    """Open a source with these patches; raise PatchError if one does not apply."""
    subdir = f"llama_cpp_python-{version}/vendor/llama.cpp"
    return Archive(str(source(version)), ARCHIVES[version]["sha256"], subdir, patches(version, names))
