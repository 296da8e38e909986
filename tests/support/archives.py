# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives with given members."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", text: str = "text\n"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    info.size = len(text) if kind == tarfile.REGTYPE else 0
    return info, text


def pack(path: Path, *members, how: str = "w:gz") -> None:
    with tarfile.open(path, how) as tar:
        for info, text in members:
            tar.addfile(info, io.BytesIO(text.encode()))
