# SPDX-License-Identifier: GPL-3.0-or-later
"""The check that a GGUF file is whole: headers from the package `gguf`, and damaged or false ones."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf import header as headers
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.ggml_types import FILE_TYPES, TENSOR_TYPES
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import (
    CUT,
    HEADER_LIMIT,
    MAX_TEXT,
    GgufError,
    part_names,
    read_header,
    read_model,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.gguf_headers import ARRAY, TEXT, U16, U32, array_of, file_of, pair, tensor, text

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, *, split: tuple[int, int] | None = None, alignment: int = 32) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("small")
    writer.add_custom_alignment(alignment)
    writer.add_token_list([b"one", b"two"])
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_array("an.array", [1, 2, 3])
    number = 0
    if split:
        number, count = split
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", 2 * count)
    writer.add_tensor(f"a{number}", np.ones((4, 32), np.float32))
    writer.add_tensor(f"b{number}", np.zeros((3, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def is_one_sentence(message: str) -> bool:
    return message.endswith(".") and "\n" not in message and len(message) < 500


def test_a_whole_file_says_what_it_is(tmp_path: Path) -> None:
    header = read_header(write(tmp_path / "m.gguf"))
    assert read_model(tmp_path / "m.gguf") == [header]
    assert (header.version, header.tensor_count) == (3, 2)
    assert header.metadata["general.name"] == "small"
    assert header.metadata["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)
    assert "tokenizer.ggml.tokens" not in header.metadata
    assert header.arrays == {"an.array": (1, 2, 3)}
    assert header.lengths == {"tokenizer.ggml.tokens": 2, "an.array": 3}
    assert [(entry.name, entry.shape, entry.type_name, entry.bytes) for entry in header.tensors] == [
        ("a0", (32, 4), "f32", 512),
        ("b0", (32, 3), "q8_0", 102),
    ]


@pytest.mark.parametrize("name", [b"v.patch_embd.weight", b"a.blk.0.attn_q.weight", b"mm.0.weight"])
@pytest.mark.parametrize("architecture", [b"gemma3", b"clip"])
def test_a_projector_in_the_file_of_the_text_model_is_refused(tmp_path: Path, name: bytes, architecture: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(file_of(pair(b"general.architecture", TEXT, text(architecture)), tensor(name), pairs=1, tensors=1))
    if architecture == b"clip":
        assert read_header(path).tensor_count == 1
    else:
        with pytest.raises(GgufError, match=r"it has the tensors of a projector too .* in two files") as raised:
            read_header(path)
        assert is_one_sentence(str(raised.value))


@pytest.mark.parametrize("alignment", [32, 4096])
@pytest.mark.parametrize("version", [2, 3])
def test_a_file_cut_off_anywhere_is_noticed(tmp_path: Path, version: int, alignment: int) -> None:
    cut = write(tmp_path / "cut.gguf", alignment=alignment)
    content = cut.read_bytes()
    cut.write_bytes(content[:4] + struct.pack("<I", version) + content[8:])
    end = read_header(cut).end_bytes
    assert end is not None
    os.truncate(cut, end)
    assert read_header(cut).version == version
    for length in (*reversed(range(end - 600, end)), *range(1, end - 600, 1 if alignment == 32 else 101)):
        os.truncate(cut, length)
        with pytest.raises(GgufError, match=r"cut\.gguf is not a complete GGUF model: .*\.$") as caught:
            read_header(cut)
        assert is_one_sentence(str(caught.value))


BAD = {
    "empty": (b"", "it is empty"),
    "page": (b"<!DOCTYPE html><html>Not found</html>", "it is a web page"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid", "the pointer that git keeps in place of a large file"),
    "json": (b'{"error": "unauthorized"}', "it is JSON text"),
    "zeros": (bytes(4096), "it begins with zeros"),
    "other": (b"PK\3\4", "it does not begin with GGUF"),
    "version-1": (file_of(version=1), "version 1 of the format"),
    "big-endian-3": (b"GGUF" + struct.pack(">I", 3) + bytes(64), "byte order of a big-endian machine"),
    "tensors-without-end": (file_of(tensors=1 << 60), "it claims 1152921504606846976 tensors"),
    "keys-without-end": (file_of(pairs=(1 << 64) - 1), "it claims 18446744073709551615 keys"),
    "key-beyond-the-file": (file_of(struct.pack("<Q", 1 << 62), pairs=1), "its header is damaged or cut off"),
    "key-too-long": (file_of(pair(b"k" * 2000, TEXT, text(b"")), pairs=1), "a key of 2000 bytes"),
    "key-without-name": (file_of(pair(b"", U16, b"\1\0"), pairs=1), "a key without a name"),
    "key-twice": (file_of(pair(b"k", U16, b"\1\0") * 2, pairs=2), "the key 'k' twice"),
    "key-twice-as-array": (
        file_of(pair(b"k", ARRAY, array_of(U16, 0)), pair(b"k", U16, b"\1\0"), pairs=2),
        "the key 'k' twice",
    ),
    "value-of-no-type": (file_of(pair(b"k", 13, b""), pairs=1), "a value of type 13, which the format does not have"),
    "text-beyond-the-file": (file_of(pair(b"k", TEXT, struct.pack("<Q", 1 << 40)), pairs=1), "damaged or cut off"),
    "array-of-no-type": (file_of(pair(b"k", ARRAY, array_of(99, 1)), pairs=1), "an array of the unknown type 99"),
    "array-beyond-the-file": (file_of(pair(b"k", ARRAY, array_of(U32, 1 << 62)), pairs=1), "damaged or cut off"),
    "texts-beyond-the-file": (file_of(pair(b"k", ARRAY, array_of(TEXT, 1 << 62)), pairs=1), "damaged or cut off"),
    "text-of-array-too-long": (
        file_of(pair(b"k", ARRAY, array_of(TEXT, 2) + struct.pack("<Q", 1 << 63)), pairs=1),
        "damaged or cut off",
    ),
    "array-of-arrays": (
        file_of(pair(b"k", ARRAY, array_of(ARRAY, 1 << 32)), array_of(ARRAY, 1) * 80, pairs=1),
        "its key 'k' has an array of arrays, which llama.cpp does not read",
    ),
    "alignment-3": (file_of(pair(b"general.alignment", U32, struct.pack("<I", 3)), pairs=1), "not a power of 2"),
    "alignment-text": (file_of(pair(b"general.alignment", TEXT, text(b"32")), pairs=1), "as a 32-bit number"),
    "tensor-name-too-long": (file_of(tensor(b"t" * 64), tensors=1), "a tensor's name of 64 bytes"),
    "tensor-name-not-text": (file_of(tensor(b"\xc3("), tensors=1), "a tensor's name that is not UTF-8 text"),
    "tensor-twice": (file_of(tensor(), tensor(offset=128), tensors=2), "the tensor 't' twice"),
    "dimensions-5": (file_of(tensor(shape=(1,) * 5), tensors=1), "has 5 dimensions"),
    "dimensions-without-end": (
        file_of(text(b"t") + struct.pack("<I", 0xFFFFFFFF), tensors=1),
        "has 4294967295 dimensions",
    ),
    "dimension-negative": (file_of(tensor(shape=(1 << 63, 0)), tensors=1), "more elements than can be counted"),
    "elements-overflow": (file_of(tensor(shape=(1 << 40, 1 << 40)), tensors=1), "more elements than can be counted"),
    "weights-beyond-the-file": (file_of(tensor(shape=(1 << 40,)), tensors=1), "the copy is incomplete"),
    "type-given-up": (file_of(tensor(kind=31), tensors=1), "of type 31, which llama.cpp no longer reads"),
    "type-of-a-fork": (file_of(tensor(kind=138), tensors=1), "of type 138 of ik_llama.cpp, a fork, and llama.cpp does"),
    "type-of-a-fork-the-first": (file_of(tensor(kind=133), tensors=1), "of type 133 of ik_llama.cpp, a fork"),
    "type-damaged": (file_of(tensor(kind=0xFFFFFFFF), tensors=1), "of type 4294967295, which does not exist"),
    "row-of-half-a-block": (
        file_of(tensor(shape=(48,), kind=8), tensors=1),
        "rows of 48 weights, and q8_0 needs a multiple of 32",
    ),
    "offset-unaligned": (file_of(tensor(offset=4), tensors=1), "has the offset 4 instead of 0"),
    "offset-beyond-the-file": (file_of(tensor(offset=1 << 62), tensors=1), "instead of 0"),
    "tensors-overlap": (file_of(tensor(b"a"), tensor(b"b", offset=96), tensors=2), "the offset 96 instead of 128"),
    "tensors-with-a-gap": (file_of(tensor(b"a"), tensor(b"b", offset=160), tensors=2), "the offset 160 instead of 128"),
    "tensor-missing": (file_of(tensor(), tensors=50), r"tensor|header"),
}


@pytest.mark.parametrize(("content", "words"), BAD.values(), ids=BAD.keys())
def test_what_is_no_model_is_said_in_one_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufError, match=words) as caught:
        read_header(path)
    assert is_one_sentence(str(caught.value))


def test_a_type_of_a_later_upstream_is_let_pass(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(file_of(tensor(b"a", kind=77), tensor(b"b", offset=320), tensors=2))
    header = read_header(path)
    assert header.end_bytes is None
    assert [(entry.type_name, entry.bytes) for entry in header.tensors] == [("type 77", None), ("f32", 128)]


@pytest.mark.parametrize("after", [struct.pack("<Q", 1 << 34), bytes(8)], ids=["one long text", "texts without end"])
def test_a_header_larger_than_any_models_is_not_gone_through(tmp_path: Path, after: bytes) -> None:
    """The file is sparse and large enough for what its header claims, so only a limit stops a reader."""
    path = tmp_path / "m.gguf"
    with path.open("wb") as stream:
        stream.write(file_of(pair(b"k", ARRAY, array_of(TEXT, 1 << 30) + after), pairs=1))
        stream.truncate(40 << 30)
    with pytest.raises(GgufError, match=f"its header is longer than {HEADER_LIMIT >> 20} MiB"):
        read_header(path)


def test_a_long_text_is_cut_and_a_broken_one_mended(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    texts = {b"short": b"x" * MAX_TEXT, b"long": b"x" * 9_000_000, b"wide": "€".encode() * 2000, b"broken": b"a\xffb"}
    path.write_bytes(file_of(*(pair(key, TEXT, text(value)) for key, value in texts.items()), pairs=len(texts)))
    assert read_header(path).metadata == {
        "short": "x" * MAX_TEXT,
        "long": "x" * MAX_TEXT + CUT,
        "wide": "€" * MAX_TEXT + CUT,
        "broken": "a\ufffdb",
    }


PIECE = r"the copy is incomplete; by its name it may be a piece of a file that was cut"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("m.Q4.gguf.part1of2", r"piece 1 of 2 .*`cat m.Q4.gguf.part1of2 m.Q4.gguf.part2of2 >m.Q4.gguf`, and name that"),
        ("m.gguf.part2of12", r"piece 2 of 12 .*`cat m.gguf.part1of12 m.gguf.part2of12 \.\.\. m.gguf.part12of12 >m"),
        ("m.gguf-split-b", r"piece b of .*`cat m.gguf-split-\* >m.gguf`"),
        *((f"m.{ending}", PIECE) for ending in ("gguf.part1", "gguf.part-a", "gguf-part-b", "gguf.001", "GGUF.aa")),
        ("m.gguf", r"the copy is incomplete\.$"),
    ],
)
def test_a_piece_of_a_file_that_was_cut_is_named_with_the_way_to_join_it(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / name).write_bytes(file_of(tensor(), tensors=1)[:-1000])
    with pytest.raises(GgufError, match=words):
        read_header(tmp_path / name)


@pytest.mark.parametrize(
    ("there", "named", "words"),
    [
        (["m-00001-of-00002"], "m-00001-of-00002", r"one of 2 parts, and m-00002-of-00002\.gguf is missing beside it"),
        (["m-00001-of-00900"], "m-00001-of-00900", r"of 900 parts, and m-00002-.* and 894 more are missing"),
        (["m-00002-of-00002"], "m-00002-of-00002", r"is not the first part .* name m-00001-of-00002\.gguf"),
        (["m"], "m", r"one of 2 parts, but its name does not: .* m-00001-of-00002\.gguf"),
        ([], "m-00003-of-00002", "has a part number that is not from 1 to its count of parts"),
        ([], "m-00001-of-99999", "one of 99999 parts, but at most 1000 are allowed"),
    ],
)
def test_a_split_model_needs_all_its_parts_and_the_first_name(
    tmp_path: Path, there: list[str], named: str, words: str
) -> None:
    for name in there:
        write(tmp_path / f"{name}.gguf", split=(0, 2))
    with pytest.raises(GgufError, match=words) as caught:
        read_model(tmp_path / f"{named}.gguf")
    assert is_one_sentence(str(caught.value))


PARTS = {
    "swapped": ((1, 2), (0, 2), "says that it is part 1 of a split, counted from 0, and its name says part 0"),
    "the same twice": ((0, 2), (0, 2), "says that it is part 0 of a split, .* its name says part 1"),
    "of a larger split": ((0, 3), (1, 3), "says that it is one of 3 parts, but its name does not"),
    "no split": (None, None, "says that it is one of 0 parts, but its name does not"),
    "second of no split": ((0, 2), None, "says that it is part nothing of a split"),
}


@pytest.mark.parametrize(("one", "other", "words"), PARTS.values(), ids=PARTS.keys())
def test_parts_that_are_not_those_of_one_split(
    tmp_path: Path, one: tuple[int, int] | None, other: tuple[int, int] | None, words: str
) -> None:
    write(tmp_path / "m-00001-of-00002.gguf", split=one)
    write(tmp_path / "m-00002-of-00002.gguf", split=other)
    with pytest.raises(GgufError, match=words):
        read_model(tmp_path / "m-00001-of-00002.gguf")


def links(first: Path, count: int) -> Path:
    """Return the first of hard links that give one file the names of all parts."""
    parts = [first.with_name(name) for name in part_names(f"links-00001-of-{count:05}.gguf")]
    for part in parts:
        part.hardlink_to(first)
    return parts[0]


@pytest.mark.parametrize(
    ("split", "after", "words"),
    [
        (None, 1, "says that it is one of 0 parts, but its name does not"),
        ((0, 2), 1, "says that it is one of 2 parts, but its name does not"),
        ((0, 900), 2, "says that it is part 0 of a split, counted from 0, and its name says part 1"),
    ],
    ids=["no-split", "another-split", "one-part"],
)
def test_one_file_with_the_names_of_many_parts_is_read_no_further(
    tmp_path: Path, split: tuple[int, int] | None, after: int, words: str
) -> None:
    first = links(write(tmp_path / "m.gguf", split=split), 900)
    # If this part was read, the error would be about it.
    unread = first.with_name(part_names(first.name)[after])
    unread.unlink()
    unread.write_bytes(b"")
    with pytest.raises(GgufError, match=words):
        read_model(first)


def test_parts_have_no_more_tensors_than_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (tmp_path / name for name in part_names("m-00001-of-00002.gguf"))
    first.write_bytes(split_part(0, b"a", 2))
    second.write_bytes(split_part(1, b"b", 2))
    monkeypatch.setattr(headers, "MAX_TENSORS", 2)
    assert len(read_model(first)) == 2
    monkeypatch.setattr(headers, "MAX_TENSORS", 1)
    with pytest.raises(GgufError, match=r"With .*m-00002-of-00002\.gguf the model has more than 1 tens"):
        read_model(first)


def split_part(number: int, name: bytes, tensors: int) -> bytes:
    pairs = [
        pair(b"split.no", U16, struct.pack("<H", number)),
        pair(b"split.count", U16, struct.pack("<H", 2)),
        pair(b"split.tensors.count", 5, struct.pack("<i", tensors)),
    ]
    return file_of(*pairs, tensor(name), pairs=len(pairs), tensors=1)


def test_parts_of_two_models(tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in part_names("m-00001-of-00002.gguf"))
    first.write_bytes(split_part(0, b"a", 2))
    second.write_bytes(split_part(1, b"a", 2))
    with pytest.raises(GgufError, match=r"m-00002-of-00002\.gguf has the tensor 'a' that an earlier part has too"):
        read_model(first)
    second.write_bytes(split_part(1, b"b", 2))
    assert len(read_model(first)) == 2
    first.write_bytes(split_part(0, b"a", 7))
    with pytest.raises(GgufError, match="says that the model has 7 tensors, and its 2 parts have 2"):
        read_model(first)


@pytest.mark.parametrize("key", [b"split.no", b"split.tensors.count"])
def test_a_text_where_a_number_belongs_does_not_control_the_terminal(tmp_path: Path, key: bytes) -> None:
    pairs = {
        b"split.no": pair(b"split.no", U16, struct.pack("<H", 0)),
        b"split.count": pair(b"split.count", U16, struct.pack("<H", 2)),
        key: pair(key, TEXT, text(b"\x1b]0;x\x07")),
    }
    first, second = (tmp_path / name for name in part_names("m-00001-of-00002.gguf"))
    first.write_bytes(file_of(*pairs.values(), tensor(b"a"), pairs=len(pairs), tensors=1))
    second.write_bytes(split_part(1, b"b", 2))
    with pytest.raises(GgufError) as caught:
        read_model(first)
    assert str(caught.value).isprintable()


def test_types_are_upstreams() -> None:
    known = {kind: (kind_of.name.upper(), kind_of.block, kind_of.block_bytes) for kind, kind_of in TENSOR_TYPES.items()}
    theirs = {int(kind): (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    # The package gives Q8_1 two 32-bit scales; block_q8_1 of ggml-common.h has two of 16 bits. No file has any.
    assert theirs.pop(9) == ("Q8_1", 32, 40)
    assert {kind: known[kind] for kind in theirs} == theirs
    numbers = {int(kind) for kind in gguf.LlamaFileType if kind.name != "GUESSED"}
    assert numbers <= set(FILE_TYPES)


QUICK = settings(
    max_examples=150, deadline=5000, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@QUICK
@given(
    changes=st.lists(
        st.tuples(
            st.integers(4, 420), st.sampled_from([b"\0", b"\1", b"\x08", b"\x09", b"\x7f", b"\xff", b"\xff" * 8])
        ),
        min_size=1,
        max_size=4,
    )
)
def test_damage_is_an_error_in_one_sentence_or_none(
    tmp_path: Path, valid: bytes, changes: list[tuple[int, bytes]]
) -> None:
    content = bytearray(valid)
    for at, change in changes:
        content[at : at + len(change)] = change
    assert_read_or_refused(tmp_path / "fuzz.gguf", bytes(content))


@QUICK
@given(pairs=st.integers(0, 6), tensors=st.integers(0, 6), rest=st.binary(max_size=200))
def test_noise_is_an_error_in_one_sentence_or_none(tmp_path: Path, pairs: int, tensors: int, rest: bytes) -> None:
    assert_read_or_refused(tmp_path / "fuzz.gguf", b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs) + rest)


def assert_read_or_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        read_header(path)
    except GgufError as error:
        assert is_one_sentence(str(error))  # noqa: PT017


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tmp_path_factory.mktemp("gguf") / "m.gguf").read_bytes()
