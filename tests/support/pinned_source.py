# SPDX-License-Identifier: GPL-3.0-or-later
"""Sources of llama.cpp that the role has a digest for, with the collection's own patches."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llama_cpp.cluster.plugins.lookup.source_patches import CORE

from support.collection import Patch, patch_folder, read_patch
from support.harness import ARCHIVES, CACHE, ROLE_VARS, ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ROLE = ROOT / "roles/llama_cpp"

# The two newest versions, between which `make test-upgrade` changes a cluster.
OLD, NEW = list(ARCHIVES)[-2:]


def archive_name(version: str) -> str:
    """Return the name of a version's archive, without .tar.gz, which is also that of the folder in it."""
    return str(ARCHIVES[version]["package"]).replace("-", "_").replace("==", "-")


def inside(version: str) -> str:
    """Return the path of llama.cpp in a version's archive."""
    package = ARCHIVES[version]["package"].partition("==")[0]
    return f"{archive_name(version)}/{ROLE_VARS['__llama_cpp_folders'][package]}"


def label(version: str) -> str:
    """Return the name by which playbooks call a version."""
    return f"{version}-{(ARCHIVES[version]['commit'] or ARCHIVES[version]['sha256'])[:9]}"


def choices(version: str) -> list[tuple[str, ...]]:
    """Return the sets of patches that a version may have: all, the core, none."""
    own = tuple(ARCHIVES[version].get("patches", []))
    return [own, *([tuple(name for name in own if name in CORE), ()] if own else [])]


def patches(version: str, names: Sequence[str]) -> list[Patch]:
    return [read_patch(ROLE / "files/patches" / version / f"{name}.patch") for name in names]


def source(version: str) -> Path:
    """Return the archive of a version. The default one is always there, as the release under test is built from it."""
    path = CACHE / f"sources/{archive_name(version)}.tar.gz"
    if not path.exists():
        pytest.fail(f"the source {version} is not in the cache: run `make test`, which fetches it")
    return path


def unpack(version: str, folder: Path, names: Sequence[str] = ()) -> None:
    """Unpack a source with these patches to a new folder."""
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    command = ["tar", "-xf", source(version), "-C", new, "--strip-components=3", "--no-same-owner", inside(version)]
    subprocess.run(command, check=True)
    patch_folder(new, patches(version, names))
    new.rename(folder)
