# SPDX-License-Identifier: GPL-3.0-or-later
"""Write GGUF files with given metadata and tensors, or with the header of a model of a given shape alone."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any

import gguf
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.shapes import Shape, encoded

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np


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
        none = _text("tokenizer.ggml.model") + struct.pack("<I", 8) + _text("no_vocab")
        pieces = [f"piece {index}" for index in range(shape.vocabulary)]
        pairs = [f"piece piece{index}" for index in range(2 * shape.vocabulary)]
        extra = _text("tokenizer.ggml.model") + struct.pack("<I", 8) + _text("gpt2")
        extra += _text("tokenizer.ggml.pre") + struct.pack("<I", 8) + _text("llama-bpe")
        for key, values in (("tokens", pieces), ("merges", pairs)):
            extra += _text(f"tokenizer.ggml.{key}") + struct.pack("<IIQ", 9, 8, len(values))
            extra += b"".join(_text(value) for value in values)
        assert none in head
        head = head[:16] + struct.pack("<Q", count + 3) + head[24:].replace(none, extra)
        size += len(extra) + 64
    path.write_bytes(head)
    os.truncate(path, size)
    return path


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()
