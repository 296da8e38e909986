# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: joins the pieces of a file that was cut."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO, Sequence

from .progress import JOINING, Tell, tell_nobody
from .record import open_no_link

_CHUNK = 1 << 20


def join(pieces: Sequence[Path], stream: BinaryIO, tell: Tell = tell_nobody) -> str:
    """Write the pieces to a stream, one after another, and return the SHA-256 digest of the whole."""
    total, done = sum(piece.stat().st_size for piece in pieces), 0
    found = hashlib.sha256()
    for piece in pieces:
        with open(str(piece), "rb", opener=open_no_link) as source:
            for chunk in iter(lambda: source.read(_CHUNK), b""):
                stream.write(chunk)
                found.update(chunk)
                done += len(chunk)
                tell(JOINING, done, total)
    stream.flush()
    return found.hexdigest()
