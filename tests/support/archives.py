# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives with given members, and a list of what was unpacked."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644, text: str = "text\n"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.mtime = kind, target, mode, 1_700_000_000
    info.size = len(text) if kind == tarfile.REGTYPE else 0
    return info, text


def pack(path: Path, *members, how: str = "w:gz") -> str:
    with tarfile.open(path, how) as tar:
        for info, text in members:
            tar.addfile(info, io.BytesIO(text.encode()))
    return digest(path)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
