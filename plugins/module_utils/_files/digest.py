# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the digest of a file or a stream, and what is said of one that is not the expected one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, BinaryIO

_CHUNK = 1 << 20


def digest_of(stream: BinaryIO, found: Any = None, size: int | None = None) -> str:  # noqa: ANN401
    """Return the digest, in hex, of a stream from where it is; of `size` bytes at most.

    It is SHA-256 unless `found` is another one of hashlib, which may have seen something before.
    """
    found = hashlib.sha256() if found is None else found
    while True:
        chunk = stream.read(_CHUNK if size is None else min(_CHUNK, size))
        if not chunk:
            return str(found.hexdigest())
        found.update(chunk)
        size = None if size is None else size - len(chunk)


def digest_of_file(path: Path, found: Any = None) -> str:  # noqa: ANN401
    """Return the digest of a whole file."""
    with path.open("rb") as stream:
        return digest_of(stream, found)


def wrong_digest(what: str, found: str | None, expected: str | None, kind: str = "SHA-256 digest") -> str:
    """Say that something else came than was expected."""
    return (
        f"{what} has the {kind} {found}, but {expected} was expected; nothing was kept: "
        "correct the expected digest if you trust what was found, or find out who replaced it."
    )
