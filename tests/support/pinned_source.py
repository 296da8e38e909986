# SPDX-License-Identifier: GPL-3.0-or-later
"""Sources of llama.cpp that the role has a digest for, with the collection's own patches."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from support.collection import Patch, patch_folder, read_patch
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


def unpack(version: str, folder: Path, names: Sequence[str] = ()) -> None:
    """Unpack a source with these patches to a new folder."""
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    inside = f"llama_cpp_python-{version}/vendor/llama.cpp"
    command = ["tar", "-xf", source(version), "-C", new, "--strip-components=3", "--no-same-owner", inside]
    subprocess.run(command, check=True)
    patch_folder(new, patches(version, names))
    new.rename(folder)
