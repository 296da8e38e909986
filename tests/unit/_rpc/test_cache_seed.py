# SPDX-License-Identifier: GPL-3.0-or-later
"""The tensors of a model for each worker's cache, and the digest by which two hosts compare bytes."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc import cache_seed
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.cache_seed import (
    Part,
    Piece,
    counted,
    digest,
    lines,
    missing,
    pieces,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.gguf_headers import write_gguf

if TYPE_CHECKING:
    from pathlib import Path

LAYERS = 5
DAY = 86400.0


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count tensors of a few KiB as large."""
    monkeypatch.setattr(cache_seed, "LARGEST_UNHASHED_BYTES", 4096)


def model(path: Path, *, tied: bool) -> Path:
    names = ["token_embd.weight", "rope_freqs.weight", *([] if tied else ["output.weight"])]
    names += [f"blk.{layer}.{kind}.weight" for layer in range(LAYERS) for kind in ("ffn_up", "attn_norm")]
    tensors = {
        name: np.full((1, 64 if "norm" in name else 2048), number, dtype=np.float32)
        for number, name in enumerate(names)
    }
    return write_gguf(path, "llama", {"llama.block_count": LAYERS}, tensors)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, LAYERS + 1), max_size=3), tied=st.booleans())
def test_the_parts_of_a_plan_have_each_tensor_once(tmp_path: Path, cuts: list[int], tied: bool) -> None:
    """Parts are as in split_plan_info: layers are consecutive, and the worker with the last part gets the output."""
    path = model(tmp_path / f"{tied}.gguf", tied=tied)
    bounds = [0, *sorted(cuts), LAYERS + 1]
    parts = [
        Part(first if min(end, LAYERS) > first else None, max(0, min(end, LAYERS) - first), first <= LAYERS < end)
        for first, end in zip(bounds, bounds[1:])
    ]
    given_out = [piece.name for part in parts for piece in pieces(path, part) if not piece.name.startswith("rope")]
    whole = [piece.name for piece in pieces(path) if not piece.name.startswith("rope")]
    assert sorted(given_out) == sorted(whole)
    output = "token_embd.weight" if tied else "output.weight"
    assert sorted(whole) == sorted([output, *(f"blk.{layer}.ffn_up.weight" for layer in range(LAYERS))])
    for part in parts:
        names = {piece.name for piece in pieces(path, part)}
        assert ("rope_freqs.weight" in names) is (part.layers > 0), "what all layers share goes to each worker"


def test_the_program_is_asked_and_understood() -> None:
    assert lines([Piece("/a b/m.gguf", "x", 32, 99)]) == "32 99 /a b/m.gguf\n"
    said = f"{'b' * 16} 10 added\n{'a' * 16} 5 there\n{'c' * 16} 7 missing\n{'b' * 16} 10 there\nbroken\n"
    said += f"{'d' * 16} 3 replaced\n"
    assert counted(said) == {
        "entries": [letter * 16 for letter in "abcd"], "added": 3, "added_bytes": 20, "replaced": 1, "there": 2,
        "there_bytes": 15,
    }  # fmt: skip


@given(data=st.binary(max_size=3000), offset=st.integers(0, 50), size=st.integers(0, 3000))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_digest_is_of_so_many_bytes_or_none(tmp_path: Path, data: bytes, offset: int, size: int) -> None:
    path = tmp_path / "data"
    path.write_bytes(data)
    piece = data[offset : offset + size]
    expected = hashlib.blake2b(piece, digest_size=20).hexdigest() if len(piece) == size else None
    assert digest(str(path), offset, size) == expected


def test_what_is_missing_is_told_by_bytes_and_not_by_names(tmp_path: Path) -> None:
    for name, data in (("1" * 16, b"one"), ("2" * 16, b"two"), ("3" * 16, b"longer")):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "link").symlink_to(tmp_path / ("3" * 16))
    names = [hashlib.blake2b(data, digest_size=20).hexdigest() for data in (b"one", b"twi", b"longer", b"no")]
    offered = [{"digest": name, "bytes": size} for name, size in zip(names, (3, 3, "6", 2))]
    # The remains of an interrupted addition are no entry.
    (tmp_path / ".part-4444444444444444-1").write_bytes(b"no")
    for number in "123":
        os.utime(tmp_path / (number * 16), (DAY, DAY))
    assert missing(offered, tmp_path, touch=False) == [names[1], names[3]]
    assert [(tmp_path / (number * 16)).stat().st_atime for number in "123"] == [DAY] * 3, "a look is no use"
    assert missing(offered, tmp_path, touch=True) == [names[1], names[3]]
    used = [(tmp_path / (number * 16)).stat() for number in "123"]
    assert [about.st_atime > DAY for about in used] == [True, False, True]
    assert [about.st_mtime for about in used] == [DAY] * 3
