# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the digest of a file or a stream, and the message about an unexpected digest."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from .progress import VERIFYING, Tell, tell_nobody

_CHUNK = 1 << 20


def digest_of_file(path: Path, found: Any = None, tell: Tell = tell_nobody) -> str:  # noqa: ANN401
    """Return the digest of a whole file."""
    total, done = path.stat().st_size, 0
    found = hashlib.sha256() if found is None else found
    with path.open("rb") as stream:
        for chunk in iter(lambda: stream.read(_CHUNK), b""):
            found.update(chunk)
            done += len(chunk)
            tell(VERIFYING, done, total)
    return str(found.hexdigest())


def wrong_digest(what: str, found: str | None, expected: str | None, kind: str = "SHA-256 digest") -> str:
    """Return the message that a digest differs from the expected one."""
    return (
        f"{what} has the {kind} {found}, but {expected} was expected; nothing was kept: "
        "correct the expected digest if you trust what was found, or find out who replaced it."
    )
