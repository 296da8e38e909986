# SPDX-License-Identifier: GPL-3.0-or-later
"""The tensors of a model for each worker's cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc import cache_seed
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.cache_seed import (
    Part,
    Piece,
    counted,
    lines,
    pieces,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.gguf_headers import write_gguf

if TYPE_CHECKING:
    from pathlib import Path

LAYERS = 5


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
    }  # fmt: skip
