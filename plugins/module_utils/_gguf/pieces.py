# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: reads the header of a model whose file was cut into pieces, as if they were joined."""

from __future__ import annotations

from io import RawIOBase
from pathlib import Path
from typing import Sequence

from .header import GgufError, Header, header_of, piece_names


class _Joined(RawIOBase):
    """The bytes of files, one after another, as a stream."""

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__()
        self.paths = paths
        self.sizes = [path.stat().st_size for path in paths]
        self._at = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        """Continue at a position, counted from the beginning."""
        del whence
        self._at = offset
        return offset

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes; fewer only at the end."""
        data, start = b"", 0
        for path, length in zip(self.paths, self.sizes):
            at = self._at + len(data) - start
            if at < length and len(data) < size:
                with path.open("rb", buffering=0) as stream:
                    stream.seek(at)
                    data += stream.read(size - len(data)) or b""
            start += length
        self._at += len(data)
        return data


def piece_paths(path: Path) -> list[Path]:
    """Return all pieces of a file from the path of one, whether they are there or not; none if it is no piece."""
    names = piece_names(path.name, lambda: (other.name for other in path.parent.glob("*")))
    return [path.with_name(name) for name in names]


def read_pieces(pieces: Sequence[Path]) -> Header:
    """Return the header of the file that these pieces make; raises GgufError if one is missing, or if it is damaged."""
    missing = [piece.name for piece in pieces if not piece.is_file()]
    if missing:
        raise GgufError(
            f"{pieces[0]} is the first of {len(pieces)} pieces of a file, and there is no {', '.join(missing[:5])} "
            "beside it: put all of them there."
        )
    try:
        joined = _Joined(pieces)
        return header_of(joined, sum(joined.sizes))
    except GgufError as error:
        raise GgufError(f"{pieces[0]} and the pieces after it are not a complete GGUF model: {error}.") from None
    except OSError as error:
        raise GgufError(f"{error.filename or pieces[0]} cannot be read: {error.strerror}.") from None
