# SPDX-License-Identifier: GPL-3.0-or-later
"""Write GGUF files: of given metadata and tensors, of the header of a shape alone, or byte by byte."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any

import gguf
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.shapes import Shape, encoded

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np


# The format's numbers of some types of values.
U16, U32, TEXT, ARRAY = 2, 4, 8, 9


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array_of(kind: int, count: int) -> bytes:
    """Return what stands before the values of an array."""
    return struct.pack("<IQ", kind, count)


def tensor(name: bytes = b"t", shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    lengths = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + lengths + struct.pack("<IQ", kind, offset)


def file_of(*entries: bytes, pairs: int = 0, tensors: int = 0, version: int = 3, room: int = 1024) -> bytes:
    """Return a GGUF file with these entries and room for a few tensors."""
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs) + b"".join(entries) + bytes(room)


def write_gguf(
    path: Path, architecture: str, metadata: dict[str, Any], tensors: dict[str, np.ndarray[Any, Any]] | None = None
) -> Path:
    """Write a file; numbers that are not negative have 32 bits."""
    writer = gguf.GGUFWriter(path, architecture)
    add: dict[type, Any] = {
        bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
        str: writer.add_string, list: writer.add_array,
    }  # fmt: skip
    for key, value in metadata.items():
        add[type(value)](key, value)
    for name, data in (tensors or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def header_only(path: Path, shape: Shape, *, tokenizer: bool = False) -> Path:
    """Write a file with the header of a model of this shape, and a hole in place of its weights."""
    head, size = encoded(shape)
    if tokenizer:
        # As large as those of models that people use: pieces, and pairs of them.
        count = struct.unpack_from("<Q", head, 16)[0]
        none = pair(b"tokenizer.ggml.model", TEXT, text(b"no_vocab"))
        pieces = [b"piece %d" % index for index in range(shape.vocabulary)]
        pairs = [b"piece piece%d" % index for index in range(2 * shape.vocabulary)]
        extra = pair(b"tokenizer.ggml.model", TEXT, text(b"gpt2"))
        extra += pair(b"tokenizer.ggml.pre", TEXT, text(b"llama-bpe"))
        for key, values in ((b"tokens", pieces), (b"merges", pairs)):
            extra += pair(b"tokenizer.ggml." + key, ARRAY, array_of(TEXT, len(values)) + b"".join(map(text, values)))
        assert none in head
        head = head[:16] + struct.pack("<Q", count + 3) + head[24:].replace(none, extra)
        size += len(extra) + 64
    path.write_bytes(head)
    os.truncate(path, size)
    return path
