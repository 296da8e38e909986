# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: reads the header of GGUF files and checks that a model is complete. Knows nothing of Ansible.

It reads only the header, never the weights: this takes a fraction of a second for a file of any size, and the memory
does not grow with the file. The format is upstream's docs/gguf.md. The checks are those of ggml/src/gguf.cpp, so that
upstream does not refuse a file that passes here after minutes of copying.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from io import RawIOBase
from pathlib import Path
from typing import Callable, Iterable, NamedTuple, Sequence, Union

from .ggml_types import LAST_PLAUSIBLE_TYPE, REMOVED_TYPES, TENSOR_TYPES, is_of_fork

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SPLIT_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
DEFAULT_ALIGNMENT = 32

# Limits of upstream: LLAMA_MAX_LAYERS, GGML_MAX_DIMS, GGML_MAX_NAME with its final zero, and what an int64_t holds.
MAX_LAYERS = 512
MAX_DIMENSIONS = 4
MAX_TENSOR_NAME = 63
MAX_COUNT = (1 << 63) - 1
# Our own limits are far above any real model (the largest vocabularies make headers of some 50 MiB). With them, a
# malicious file takes no more than a few seconds and some 100 MiB.
HEADER_LIMIT = 128 << 20
MAX_PAIRS = 4096
MAX_TENSORS = 1 << 16
MAX_KEY = 1024
MAX_PARTS = 1000
# A longer text (a template, a tokenizer in JSON) is cut to this many characters and ends in CUT.
MAX_TEXT = 1000
CUT = "…"

_CHUNK = 256 << 10

Value = Union[int, float, bool, str]

# The metadata types of plain values, by number.
_PLAIN = {
    number: struct.Struct("<" + code)
    for number, code in {
        0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
    }.items()
}  # fmt: skip
_U32, _U64 = _PLAIN[4], _PLAIN[10]
_UINT32, _STRING, _ARRAY = 4, 8, 9


class GgufError(Exception):
    """An error whose message is one sentence: why a path is not a usable model."""


def _shown(name: str | bytes) -> str:
    """Return a name quoted and shortened for a message, whatever it contains."""
    text = repr(name)
    return text if len(text) <= 100 else text[:99] + CUT


class Tensor(NamedTuple):
    """The entry of one tensor. `bytes` is None if its type comes from a later upstream."""

    name: str
    shape: tuple[int, ...]
    type_number: int
    offset: int
    elements: int
    bytes: int | None

    @property
    def type_name(self) -> str:
        """The type as upstream writes it."""
        known = TENSOR_TYPES.get(self.type_number)
        return known.name if known else f"type {self.type_number}"


@dataclass(frozen=True)
class Header:
    """The header of one file.

    `metadata` has plain values and texts (long texts are cut). `lengths` has the number of elements of each array.
    `arrays` has the arrays of plain values with at most MAX_LAYERS elements. `texts` has the texts of the one array
    that the caller asked for.
    """

    version: int
    tensor_count: int
    # The position where the content of the file ends; None if a tensor has a type that is not known here.
    end_bytes: int | None
    metadata: dict[str, Value] = field(default_factory=dict)
    arrays: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    tensors: tuple[Tensor, ...] = ()
    # The offsets of the tensors count from this position in the file.
    start_bytes: int = 0
    texts: tuple[bytes, ...] = ()


class _Reader:
    """A reader that goes forward through the header and buffers a piece of it. It does not read what it skips."""

    def __init__(self, stream: RawIOBase, size: int) -> None:
        self.stream = stream
        self.size = size
        self.end = min(size, HEADER_LIMIT)
        self.start = 0  # of the piece, in the file
        self.piece = b""
        self.at = 0  # in the piece; beyond it after a skip

    @property
    def position(self) -> int:
        return self.start + self.at

    def check(self, count: int) -> None:
        """Raise GgufError if the header cannot have `count` more bytes."""
        if self.position + count <= self.end:
            return
        if self.end < self.size and self.position + count <= self.size:
            raise GgufError(f"its header is longer than {HEADER_LIMIT >> 20} MiB, so it is damaged or not a model's")
        raise GgufError("its header is damaged or cut off")

    def need(self, count: int) -> None:
        """Load the next `count` bytes into the piece."""
        if self.at + count <= len(self.piece):
            return
        self.check(count)
        self.start, self.at = self.position, 0
        self.stream.seek(self.start)
        self.piece = self.stream.read(min(max(count, _CHUNK), self.end - self.start)) or b""
        if len(self.piece) < count:
            raise GgufError("its header is damaged or cut off")

    def skip(self, count: int) -> None:
        self.check(count)
        self.at += count

    def plain(self, code: struct.Struct) -> int:
        self.need(code.size)
        (value,) = code.unpack_from(self.piece, self.at)
        self.at += code.size
        return value  # type: ignore[no-any-return]

    def raw(self, count: int) -> bytes:
        self.need(count)
        self.at += count
        return self.piece[self.at - count : self.at]

    def name(self, longest: int, what: str) -> str:
        """Return the next key or tensor's name. Raise GgufError if it is too long or not UTF-8."""
        length = self.plain(_U64)
        self.check(length)
        if length > longest:
            raise GgufError(f"it has a {what} of {length} bytes, and llama.cpp has none longer than {longest}")
        raw = self.raw(length)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise GgufError(f"it has a {what} that is not UTF-8 text: {_shown(raw)}") from None

    def text(self) -> str:
        """Return the next text, or the beginning of a long one."""
        length = self.plain(_U64)
        self.check(length)
        # A character has 4 bytes at most.
        raw = self.raw(min(length, 4 * MAX_TEXT))
        self.skip(length - len(raw))
        text = raw.decode("utf-8", "replace")
        return text if len(text) <= MAX_TEXT and len(raw) == length else text[:MAX_TEXT] + CUT

    def skip_texts(self, count: int) -> None:
        """Skip the texts of an array. Vocabularies have hundreds of thousands, so the speed of this loop matters."""
        self.check(_U64.size * count)
        unpack, left = _U64.unpack_from, count
        while left:
            self.need(_U64.size)
            piece, at, last = self.piece, self.at, len(self.piece) - _U64.size
            while left and at <= last:
                at += _U64.size + unpack(piece, at)[0]
                left -= 1
            self.at = at
        self.check(0)


class _Metadata:
    """The pairs of key and value; `texts` has the texts of the array with the key `texts_of`."""

    def __init__(self, reader: _Reader, count: int, texts_of: str) -> None:
        self.reader = reader
        self.texts_of = texts_of
        self.texts: tuple[bytes, ...] = ()
        self.values: dict[str, Value] = {}
        self.arrays: dict[str, tuple[Value, ...]] = {}
        self.lengths: dict[str, int] = {}
        self.alignment = DEFAULT_ALIGNMENT
        for _index in range(count):
            self.pair()

    def pair(self) -> None:
        reader = self.reader
        key = reader.name(MAX_KEY, "key")
        if not key:
            raise GgufError("it has a key without a name")
        if key in self.values or key in self.lengths:
            raise GgufError(f"it has the key {_shown(key)} twice")
        kind = reader.plain(_U32)
        if key == "general.alignment":
            self.read_alignment(kind)
        elif kind == _ARRAY:
            self.array(key)
        elif kind == _STRING:
            self.values[key] = reader.text()
        elif kind in _PLAIN:
            self.values[key] = reader.plain(_PLAIN[kind])
        else:
            raise GgufError(f"its key {_shown(key)} has a value of type {kind}, which the format does not have")

    def read_alignment(self, kind: int) -> None:
        self.alignment = self.reader.plain(_U32) if kind == _UINT32 else 0
        if self.alignment == 0 or self.alignment & (self.alignment - 1):
            raise GgufError("its general.alignment is not a power of 2 as a 32-bit number")
        self.values["general.alignment"] = self.alignment

    def array(self, key: str) -> None:
        reader = self.reader
        kind, count = reader.plain(_U32), reader.plain(_U64)
        if kind == _STRING and key == self.texts_of:
            reader.check(_U64.size * count)
            self.texts = tuple(reader.raw(reader.plain(_U64)) for _text in range(count))
        elif kind == _STRING:
            reader.skip_texts(count)
        elif kind in _PLAIN:
            code = _PLAIN[kind]
            reader.check(code.size * count)
            if count <= MAX_LAYERS:
                self.arrays[key] = tuple(value for (value,) in code.iter_unpack(reader.raw(code.size * count)))
            else:
                reader.skip(code.size * count)
        else:
            what = "arrays, which llama.cpp does not read" if kind == _ARRAY else f"the unknown type {kind}"
            raise GgufError(f"its key {_shown(key)} has an array of {what}")
        self.lengths[key] = count


class _Tensors:
    """The list of tensors, which says where each is in the weights."""

    def __init__(self, reader: _Reader, count: int, alignment: int) -> None:
        self.reader = reader
        self.alignment = alignment
        self.expected = 0  # the next tensor's offset; a minimum if the last one's size is not known
        self.exact = True
        found: dict[str, Tensor] = {}
        for _index in range(count):
            tensor = self.entry()
            if tensor.name in found:
                raise GgufError(f"it has the tensor {_shown(tensor.name)} twice")
            found[tensor.name] = tensor
        self.all = tuple(found.values())

    def entry(self) -> Tensor:
        reader = self.reader
        name = reader.name(MAX_TENSOR_NAME, "tensor's name")
        dimensions = reader.plain(_U32)
        if dimensions > MAX_DIMENSIONS:
            raise GgufError(
                f"its tensor {_shown(name)} has {dimensions} dimensions, and llama.cpp allows {MAX_DIMENSIONS}"
            )
        shape = tuple(reader.plain(_U64) for _dimension in range(dimensions))
        elements = 1
        for length in shape:
            elements *= length
        if max(shape, default=0) > MAX_COUNT or elements > MAX_COUNT:
            raise GgufError(f"its tensor {_shown(name)} has more elements than can be counted: {shape}")
        kind, offset = reader.plain(_U32), reader.plain(_U64)
        size = self.size(name, shape, elements, kind)
        self.place(name, offset, size)
        return Tensor(name, shape, kind, offset, elements, size)

    @staticmethod
    def size(name: str, shape: tuple[int, ...], elements: int, kind: int) -> int | None:
        if kind in REMOVED_TYPES:
            raise GgufError(
                f"its tensor {_shown(name)} is of type {kind}, which llama.cpp no longer reads: take the model in "
                "another quantisation, or quantise it again"
            )
        if is_of_fork(kind):
            raise GgufError(
                f"its tensor {_shown(name)} is of type {kind} of ik_llama.cpp, a fork, and llama.cpp does not read it: "
                "take the model in another quantisation"
            )
        if kind > LAST_PLAUSIBLE_TYPE:
            raise GgufError(f"its tensor {_shown(name)} is of type {kind}, which does not exist: the header is damaged")
        known = TENSOR_TYPES.get(kind)
        if known is None:
            return None
        row = shape[0] if shape else 1
        if row % known.block:
            raise GgufError(
                f"its tensor {_shown(name)} has rows of {row} weights, and {known.name} needs a "
                f"multiple of {known.block}"
            )
        return elements // known.block * known.block_bytes

    def place(self, name: str, offset: int, size: int | None) -> None:
        """Raise GgufError unless the tensor follows the last one without a gap, except for the alignment."""
        if (self.exact and offset != self.expected) or offset < self.expected or offset % self.alignment:
            raise GgufError(
                f"its tensor {_shown(name)} has the offset {offset} instead of {self.expected}: the header is damaged, "
                "or from a fork of llama.cpp whose types have other sizes"
            )
        self.exact = size is not None
        self.expected = offset + -(-(size or 0) // self.alignment) * self.alignment


def _what_it_is_instead(start: bytes) -> str:
    text = start.lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html", b"<?xml", b"<head")):
        return "it is a web page, such as a server sends with an error or to ask for a login"
    if text.startswith(b"version https://git-lfs"):
        return "it is the pointer that git keeps in place of a large file: fetch the file itself (git lfs pull)"
    if text.startswith(b"{"):
        return "it is JSON text, such as a server sends with an error"
    if start == start[:1] * len(start) and start[:1] == b"\0":
        return "it begins with zeros: it was created, but never filled"
    return "it does not begin with GGUF"


def _header(reader: _Reader, texts_of: str) -> Header:
    reader.skip(len(MAGIC))
    version = reader.plain(_U32)
    if version not in VERSIONS:
        # Upstream uses the same test: version 3 in the other byte order is 0x03000000.
        if version and not version & 0xFFFF:
            raise GgufError("it is in the byte order of a big-endian machine: convert the model for this one")
        raise GgufError(f"it has version {version} of the format, and llama.cpp reads {VERSIONS[0]} and {VERSIONS[1]}")
    tensor_count, pair_count = reader.plain(_U64), reader.plain(_U64)
    for count, most, what in ((tensor_count, MAX_TENSORS, "tensors"), (pair_count, MAX_PAIRS, "keys")):
        if count > most:
            raise GgufError(f"its header is damaged: it claims {count} {what}, and no model has more than {most}")
    metadata = _Metadata(reader, pair_count, texts_of)
    tensors = _Tensors(reader, tensor_count, metadata.alignment).all
    start = -(-reader.position // metadata.alignment) * metadata.alignment
    ends = [None if tensor.bytes is None else start + tensor.offset + tensor.bytes for tensor in tensors]
    end = None if None in ends else max((end for end in ends if end is not None), default=reader.position)
    # A file with metadata only (the first part of some splits, a vocabulary) ends where its metadata ends.
    return Header(
        version,
        tensor_count,
        end,
        metadata.values,
        metadata.arrays,
        metadata.lengths,
        tensors,
        start,
        metadata.texts,
    )


# So begin the names of a projector's tensors, and in llama.cpp 0.3.36 those of no text model.
OF_PROJECTOR = ("v.", "a.", "mm.")


def header_of(stream: RawIOBase, size: int, texts_of: str = "") -> Header:
    """Return the header at the beginning of a stream of `size` bytes, of which it reads little more than the header.

    Raises GgufError, whose message is the end of a sentence, if these are not the bytes of a complete file.
    """
    if size == 0:
        raise GgufError("it is empty")
    start = stream.read(64) or b""
    if not start.startswith(MAGIC):
        raise GgufError(_what_it_is_instead(start))
    header = _header(_Reader(stream, size), texts_of)
    if header.end_bytes is not None and size < header.end_bytes:
        raise GgufError(f"it has {size} bytes and should have {header.end_bytes}: the copy is incomplete")
    _check_projector(header)
    return header


def _check_projector(header: Header) -> None:
    """Raise GgufError if the model has a projector's tensors: Ollama has both in one file, and llama.cpp in two."""
    architecture = header.metadata.get("general.architecture", "clip")
    if architecture != "clip" and any(tensor.name.startswith(OF_PROJECTOR) for tensor in header.tensors):
        raise GgufError(
            "it has the tensors of a projector too (v.*, a.*, mm.*), as files of Ollama have, and llama.cpp refuses "
            "that: take the model from a hub that has the text model and the projector (mmproj) in two files"
        )


def check_piece(path: Path) -> None:
    """Raise GgufError if the name is that of a piece of a file, to be joined with the others."""
    piece, names = _PIECE.match(path.name), piece_names(path.name)
    if piece is None or not names:
        return
    whole, what = piece["whole"], piece["letter"] or f"{piece['number']} of {piece['count']}"
    names = [f"{whole}-split-*"] if piece["letter"] else names
    raise GgufError(
        f"it is piece {what} of a file that was cut, and llama.cpp reads only the whole: join the pieces with "
        f"`cat {' '.join(names if len(names) < 9 else [*names[:2], '...', names[-1]])} >{whole}`, and name that file"
    )


def _examine(path: Path, texts_of: str) -> Header:
    check_piece(path)
    if path.is_dir():
        raise GgufError("it is a folder: name the GGUF file in it")
    if not path.is_file():
        raise GgufError("it is no regular file" if path.exists() else "there is no such file")
    with path.open("rb", buffering=0) as stream:
        return header_of(stream, path.stat().st_size, texts_of)


def read_header(path: Path, texts_of: str = "") -> Header:
    """Return the header of a GGUF file, with the texts of one array if `texts_of` gives its key.

    Raises GgufError, with the path in the sentence, if the file is not complete.
    """
    try:
        return _examine(path, texts_of)
    except GgufError as error:
        hint = _MAY_BE_A_PIECE if _AFTER_NAME.search(path.name) and not _PIECE.match(path.name) else ""
        raise GgufError(f"{path} is not a complete GGUF model: {error}{hint}.") from None
    except OSError as error:
        raise GgufError(f"{path} cannot be read: {error.strerror}.") from None


def part_names(name: str) -> list[str]:
    """Return the names of all files of a model from the name of one; several names if it is a part of a split."""
    match = SPLIT_NAME.match(name)
    if match is None:
        return [name]
    count = int(match["count"])
    if not 1 <= int(match["number"]) <= count:
        raise GgufError(f"{name} has a part number that is not from 1 to its count of parts.")
    if count > MAX_PARTS:
        raise GgufError(f"{name} has the name of one of {count} parts, but at most {MAX_PARTS} are allowed.")
    return [f"{match['stem']}-{number:05}-of-{match['count']}.gguf" for number in range(1, count + 1)]


# Other names of pieces do not say how many there are: .gguf.part1, .gguf.001, .gguf.aa, .gguf-part-b.
_AFTER_NAME = re.compile(r"\.gguf[._-]?(?:part|split)?[._-]?(?:\d{1,4}|[a-z]{1,2})\Z", re.IGNORECASE)
_MAY_BE_A_PIECE = "; by its name it may be a piece of a file that was cut: join all pieces in order with `cat`"
# Some people cut a file for the hub's limit into pieces of these names, which llama.cpp cannot read.
_PIECE = re.compile(r"(?P<whole>.+\.gguf)(?:\.part(?P<number>\d{1,3})of(?P<count>\d{1,3})|-split-(?P<letter>[a-z]))\Z")


def piece_names(name: str, among: Callable[[], Iterable[str]] = tuple) -> list[str]:
    """Return the names of all pieces of a file that was cut, in order, from the name of one; none if it is no piece.

    A letter does not say how many pieces there are, so `among` returns the names of the files that may be pieces.
    """
    piece = _PIECE.match(name)
    if piece is None:
        return []
    whole = piece["whole"]
    if piece["letter"]:
        others = (other and other["whole"] == whole and other["letter"] for other in map(_PIECE.match, among()))
        last = max("b", piece["letter"], *(letter for letter in others if letter))
        return [f"{whole}-split-{chr(code)}" for code in range(ord("a"), ord(last) + 1)]
    width = len(piece["number"]) if piece["number"].startswith("0") else 1
    names = [f"{whole}.part{number:0{width}}of{piece['count']}" for number in range(1, int(piece["count"]) + 1)]
    return names if name in names else []


def model_parts(path: Path) -> list[Path]:
    """Return all files of the model whose first file is `path`. Raises GgufError if that is a later part."""
    parts = [path.with_name(name) for name in part_names(path.name)]
    if path != parts[0]:
        raise GgufError(
            f"{path} is not the first part of a split model: name {parts[0].name}, which llama.cpp starts from."
        )
    return parts


def _listed(names: list[str]) -> str:
    shown = names[:5]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


def _value(header: Header, key: str, default: str) -> str:
    """Return a value for a message; where a number belongs, a file may have any text."""
    value = header.metadata.get(key, default)
    return _shown(value) if isinstance(value, str) and value != default else str(value)


def _check_count(path: Path, first: Header, parts: int) -> None:
    """Raise GgufError if the header of the first part says another number of parts than its name."""
    count = first.metadata.get("split.count", 0)
    if not isinstance(count, int):
        raise GgufError(f"{path} has a split.count that is not a number: {_shown(str(count))}.")
    if max(count, 1) != parts:
        raise GgufError(
            f"{path} says that it is one of {count} parts, but its name does not: correct the names of the parts, "
            f"such as {path.stem}-00001-of-{count:05}.gguf, or join them with llama-gguf-split --merge."
        )


def _check_part(part: Path, index: int, header: Header, seen: set[str]) -> None:
    """Raise GgufError if a part does not belong at this index; `seen` has the tensor names of the parts before it."""
    if header.metadata.get("split.no") != index:
        raise GgufError(
            f"{part} says that it is part {_value(header, 'split.no', 'nothing')} of a split, counted from 0, "
            f"and its name says part {index}: correct the names of the parts."
        )
    twice = seen.intersection(tensor.name for tensor in header.tensors)
    if twice:
        raise GgufError(
            f"{part} has the tensor {_shown(min(twice))} that an earlier part has too: they are of two models."
        )
    if len(seen) + len(header.tensors) > MAX_TENSORS:
        raise GgufError(
            f"With {part} the model has more than {MAX_TENSORS} tensors, and no model has more: "
            "its parts are damaged, or of several models."
        )


def read_model(path: Path) -> list[Header]:
    """Return the headers of all files of a model; raises GgufError if one is missing or not complete.

    src/llama-model-loader.cpp makes the same checks of the parts, but later.
    """
    parts = model_parts(path)
    if path.exists():
        missing = [part.name for part in parts if not part.exists()]
        if missing:
            raise GgufError(
                f"{path} is one of {len(parts)} parts, and {_listed(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing beside it."
            )
    headers: list[Header] = []
    seen: set[str] = set()
    for index, part in enumerate(parts):
        header = read_header(part)
        # Check each part before reading the next: a thousand files of no split would take minutes and all memory.
        if not index:
            _check_count(path, header, len(parts))
        if len(parts) > 1:
            _check_part(part, index, header, seen)
        seen.update(tensor.name for tensor in header.tensors)
        headers.append(header)
    said = headers[0].metadata.get("split.tensors.count") if len(parts) > 1 else None
    if said is not None and said != len(seen):
        count = _value(headers[0], "split.tensors.count", "")
        raise GgufError(f"{path} says that the model has {count} tensors, and its {len(parts)} parts have {len(seen)}.")
    return headers


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
