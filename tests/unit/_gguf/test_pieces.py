# SPDX-License-Identifier: GPL-3.0-or-later
"""A model whose file was cut into pieces: their names, and the header that they have together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import (
    GgufError,
    piece_names,
    piece_paths,
    read_header,
    read_pieces,
)

from support.synthetic_models import write_synthetic

if TYPE_CHECKING:
    from pathlib import Path

LETTERS = ["m.gguf-split-a", "m.gguf-split-b", "m.gguf-split-c"]


@pytest.mark.parametrize(
    ("name", "among", "names"),
    [
        ("m.Q4.gguf.part1of2", [], ["m.Q4.gguf.part1of2", "m.Q4.gguf.part2of2"]),
        ("m.gguf.part02of03", [], ["m.gguf.part01of03", "m.gguf.part02of03", "m.gguf.part03of03"]),
        ("m.gguf.part9of11", [], [f"m.gguf.part{number}of11" for number in range(1, 12)]),
        ("m.gguf-split-a", [*LETTERS, "m.gguf", "other.gguf-split-d"], LETTERS),
        ("m.gguf-split-a", ["m.gguf-split-a", "m.gguf-split-c"], LETTERS),
        ("m.gguf-split-a", [], LETTERS[:2]),
        ("m.gguf.part3of2", [], []),
        ("m.gguf.part0of2", [], []),
        ("m.gguf", LETTERS, []),
        ("m.bin.part1of2", [], []),
        ("m.gguf.part1of2\n", [], []),
    ],
)
def test_the_names_of_all_pieces(name: str, among: list[str], names: list[str]) -> None:
    assert piece_names(name, lambda: among) == names


@pytest.mark.parametrize("name", ["m.gguf.part1of3", "m.gguf-split-a"])
def test_pieces_have_the_header_of_the_whole(tmp_path: Path, name: str) -> None:
    whole = write_synthetic(tmp_path / "m.gguf", "dense", layers=2)
    content, header = whole.read_bytes(), read_header(whole)
    names = piece_names(name, lambda: LETTERS)
    half = header.start_bytes // 2  # the header goes on in the next piece
    for piece, part in zip(names, (content[:half], content[half:-1000], content[-1000:])):
        (tmp_path / piece).write_bytes(part)
    paths = piece_paths(tmp_path / name)
    assert [path.name for path in paths] == names
    assert read_pieces(paths) == header
    paths[-1].write_bytes(content[-1000:-100])
    with pytest.raises(GgufError, match=rf"{name} and the pieces after it are not .* the copy is incomplete\.$"):
        read_pieces(paths)
    paths[1].unlink()
    with pytest.raises(GgufError, match=rf"the first of 3 pieces of a file, and there is no {re.escape(names[1])} "):
        read_pieces(piece_paths(tmp_path / name))
