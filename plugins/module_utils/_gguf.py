# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Private: reads the header of GGUF files and says whether a model is whole. Knows nothing of Ansible.

Only the header is read, never the weights: this takes a fraction of a second for a file of any size. The format is
upstream's docs/gguf.md; the sizes of types are those of gguf-py/gguf/constants.py (GGML_QUANT_SIZES).
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SPLIT_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
DEFAULT_ALIGNMENT = 32

Value = Union[int, float, bool, str]

# Metadata types by number: struct formats of the plain ones.
_PLAIN = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# Weights per block and bytes per block, by the type's number. A type that is not here is one of a later upstream.
# fmt: off
_TENSOR_TYPES = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74),
    18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2),
    26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
    40: (64, 36), 41: (128, 18), 42: (64, 18),
}
# fmt: on


class GgufError(Exception):
    """One sentence: why a path is no model that can be used."""


@dataclass(frozen=True)
class Header:
    """What the header of one file says. `metadata` has plain values and strings, no arrays."""

    version: int
    tensor_count: int
    # The file ends here; None if it has tensors of a type that is not known here.
    end_bytes: int | None
    metadata: dict[str, Value] = field(default_factory=dict)


class _Reader:
    """Reads forward through a mapped file. Raises struct.error at its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def plain(self, code: str) -> int:
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value  # type: ignore[no-any-return]

    def text(self) -> str:
        length = self.plain("Q")
        self.skip(length)
        return self.data[self.at - length : self.at].decode("utf-8", "replace")

    def skip(self, count: int) -> None:
        if count > len(self.data) - self.at:
            raise struct.error("past the end")
        self.at += count

    def array(self) -> None:
        kind, count = self.plain("I"), self.plain("Q")
        if kind in _PLAIN:
            self.skip(struct.calcsize("<" + _PLAIN[kind]) * count)
        elif kind in (_STRING, _ARRAY):
            for _index in range(count):
                if kind == _ARRAY:
                    self.array()
                else:
                    self.skip(self.plain("Q"))
        else:
            raise struct.error(f"metadata of type {kind}")

    def value(self) -> Value | None:
        kind = self.plain("I")
        if kind in _PLAIN:
            return self.plain(_PLAIN[kind])
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            self.array()
            return None
        raise struct.error(f"metadata of type {kind}")

    def tensor_end(self) -> int | None:
        """Read one tensor's entry; give where it ends, from the start of the weights, if its type is known."""
        self.text()
        elements = 1
        for _dimension in range(self.plain("I")):
            elements *= self.plain("Q")
        kind, offset = self.plain("I"), self.plain("Q")
        if kind not in _TENSOR_TYPES:
            return None
        per_block, block_bytes = _TENSOR_TYPES[kind]
        return offset + elements // per_block * block_bytes


def _what_it_is_instead(start: bytes) -> str:
    text = start.lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html", b"<?xml", b"<head")):
        return "it is a web page, such as a server sends with an error or to ask for a login"
    if text.startswith(b"version https://git-lfs"):
        return "it is the pointer that git keeps in place of a large file: fetch the file itself (git lfs pull)"
    if text.startswith(b"{"):
        return "it is JSON text, such as a server sends with an error"
    return "it does not begin with GGUF"


def _header(data: mmap.mmap) -> Header:
    reader = _Reader(data)
    reader.skip(len(MAGIC))
    version = reader.plain("I")
    if version not in VERSIONS:
        if struct.unpack("<I", struct.pack(">I", version))[0] in VERSIONS:
            raise GgufError("it is in the byte order of a big-endian machine: convert the model for this one")
        raise GgufError(f"it has version {version} of the format, and llama.cpp reads {VERSIONS[0]} and {VERSIONS[1]}")
    tensor_count, pair_count = reader.plain("Q"), reader.plain("Q")
    metadata: dict[str, Value] = {}
    for _index in range(pair_count):
        key, value = reader.text(), reader.value()
        if value is not None:
            metadata[key] = value
    ends = [reader.tensor_end() for _index in range(tensor_count)]
    alignment = int(metadata.get("general.alignment", DEFAULT_ALIGNMENT)) or DEFAULT_ALIGNMENT
    start = -(-reader.at // alignment) * alignment
    end = None if None in ends else start + max((end for end in ends if end is not None), default=0)
    # A file of metadata alone (the first part of some splits, a vocabulary) ends where that does.
    return Header(version, tensor_count, end if ends else reader.at, metadata)


def _examine(path: Path) -> Header:
    if path.is_dir():
        raise GgufError("it is a folder: name the GGUF file in it")
    if not path.is_file():
        raise GgufError("it is no regular file" if path.exists() else "there is no such file")
    size = path.stat().st_size
    if size == 0:
        raise GgufError("it is empty")
    with path.open("rb") as stream:
        start = stream.read(64)
        if not start.startswith(MAGIC):
            raise GgufError(_what_it_is_instead(start))
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            header = _header(data)
    if header.end_bytes is not None and size < header.end_bytes:
        raise GgufError(f"it has {size} bytes and should have {header.end_bytes}: it was not copied to its end")
    return header


def read_header(path: Path) -> Header:
    """Return what a GGUF file says of itself; raises GgufError, with the path in the sentence, if it is not whole."""
    try:
        return _examine(path)
    except GgufError as error:
        raise GgufError(f"{path} is no whole GGUF model: {error}.") from None
    except (struct.error, OverflowError, MemoryError):
        raise GgufError(f"{path} is no whole GGUF model: its header is damaged or cut off.") from None
    except OSError as error:
        raise GgufError(f"{path} cannot be read: {error.strerror}.") from None


def part_names(name: str) -> list[str]:
    """Return the names of all files of a model, given the name of one: several if it is a part of a split."""
    match = SPLIT_NAME.match(name)
    if match is None:
        return [name]
    count = int(match["count"])
    if not 1 <= int(match["number"]) <= count:
        raise GgufError(f"{name} has the name of a part that its own count of parts does not allow.")
    return [f"{match['stem']}-{number:05}-of-{match['count']}.gguf" for number in range(1, count + 1)]


def model_parts(path: Path) -> list[Path]:
    """Return all files of the model whose first file is `path`. Raises GgufError if that is a later part."""
    parts = [path.with_name(name) for name in part_names(path.name)]
    if path != parts[0]:
        raise GgufError(
            f"{path} is not the first part of a split model: name {parts[0].name}, which llama.cpp starts from."
        )
    return parts


def read_model(path: Path) -> list[Header]:
    """Return the headers of all files of a model; raises GgufError if one is missing or not whole."""
    parts = model_parts(path)
    if path.exists():
        missing = [part.name for part in parts if not part.exists()]
        if missing:
            raise GgufError(
                f"{path} is one of {len(parts)} parts, and {', '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing beside it."
            )
    headers = [read_header(part) for part in parts]
    count = int(headers[0].metadata.get("split.count", 0))
    if max(count, 1) != len(parts):
        raise GgufError(
            f"{path} says that it is one of {count} parts, but its name does not: give the parts their names again, "
            f"such as {path.stem}-00001-of-{count:05}.gguf, or join them with llama-gguf-split --merge."
        )
    return headers
