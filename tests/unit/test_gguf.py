# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a GGUF file is whole: headers that the package `gguf` writes, and what may stand in their place."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf import (
    _TENSOR_TYPES,
    GgufError,
    part_names,
    read_header,
    read_model,
)


def write(path: Path, *, split_count: int = 0, alignment: int = 32) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("small")
    writer.add_custom_alignment(alignment)
    writer.add_token_list([b"one", b"two"])
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_array("an.array", [1, 2, 3])
    if split_count:
        writer.add_uint16("split.count", split_count)
    writer.add_tensor("a", np.ones((4, 32), np.float32))
    writer.add_tensor("b", np.zeros((3, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_whole_file_says_what_it_is(tmp_path: Path) -> None:
    header = read_header(write(tmp_path / "m.gguf"))
    assert (header.version, header.tensor_count) == (3, 2)
    assert header.metadata["general.name"] == "small"
    assert header.metadata["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)
    assert "tokenizer.ggml.tokens" not in header.metadata


@pytest.mark.parametrize("alignment", [32, 64, 4096])
def test_the_last_byte_of_the_weights_is_missed(tmp_path: Path, alignment: int) -> None:
    path = write(tmp_path / "m.gguf", alignment=alignment)
    header = read_header(path)
    assert header.end_bytes is not None
    content = path.read_bytes()
    path.write_bytes(content[: header.end_bytes])
    read_header(path)
    path.write_bytes(content[: header.end_bytes - 1])
    with pytest.raises(GgufError, match=f"it has {header.end_bytes - 1} bytes and should have {header.end_bytes}"):
        read_header(path)


def test_a_file_cut_off_anywhere_in_its_header_is_noticed(tmp_path: Path) -> None:
    content = write(tmp_path / "m.gguf").read_bytes()
    for length in range(1, 700, 7):
        (tmp_path / "cut.gguf").write_bytes(content[:length])
        with pytest.raises(GgufError, match=r"cut\.gguf is no whole GGUF model"):
            read_header(tmp_path / "cut.gguf")


BAD = {
    "empty": (b"", "it is empty"),
    "page": (b"<!DOCTYPE html><html>Not found</html>", "it is a web page"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid", "the pointer that git keeps in place of a large file"),
    "json": (b'{"error": "unauthorized"}', "it is JSON text"),
    "other": (b"PK\3\4", "it does not begin with GGUF"),
    "version-1": (b"GGUF" + struct.pack("<I", 1) + bytes(64), "version 1 of the format"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + bytes(64), "byte order of a big-endian machine"),
    "absurd": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60) + b"\xff" * 64, "its header is damaged"),
    "absurd-array": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 1 << 62),
        "its header is damaged",
    ),
}


@pytest.mark.parametrize(("content", "words"), BAD.values(), ids=BAD.keys())
def test_what_is_no_model_is_said(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufError, match=words):
        read_header(path)


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match="it is a folder: name the GGUF file in it"):
        read_header(tmp_path)
    with pytest.raises(GgufError, match="there is no such file"):
        read_header(tmp_path / "m.gguf")


def test_parts_have_names() -> None:
    assert part_names("m.gguf") == ["m.gguf"]
    assert part_names("m-00002-of-00002.gguf") == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    with pytest.raises(GgufError, match="its own count of parts does not allow"):
        part_names("m-00003-of-00002.gguf")


def test_a_split_model_needs_all_its_parts_and_the_first_name(tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in part_names("m-00001-of-00002.gguf"))
    write(first, split_count=2)
    with pytest.raises(GgufError, match=r"is one of 2 parts, and m-00002-of-00002\.gguf is missing beside it"):
        read_model(first)
    write(second, split_count=2)
    assert len(read_model(first)) == 2
    with pytest.raises(GgufError, match=r"is not the first part .* name m-00001-of-00002\.gguf"):
        read_model(second)
    renamed = first.rename(tmp_path / "m.gguf")
    with pytest.raises(GgufError, match=r"one of 2 parts, but its name does not: .* m-00001-of-00002\.gguf"):
        read_model(renamed)


def test_sizes_of_types_are_upstreams() -> None:
    theirs = {int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert {kind: size for kind, size in _TENSOR_TYPES.items() if kind in theirs} == theirs
