# SPDX-License-Identifier: GPL-3.0-or-later
"""The meaning of a model's header: shape and weights, compared with the package `gguf`."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import (
    Header,
    Tensor,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.model import Model, Shape, describe
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Mapping

# A model with 4 layers, a width of 512, and 8 heads of 64.
USUAL = {"block_count": 4, "embedding_length": 512, "attention.head_count": 8, "context_length": 2048}


def model(architecture: str, tensors: Mapping[str, int] | None = None, **numbers: Any) -> Model:
    """Return the description of a header with these numbers, named as in KEYS."""
    metadata: dict[str, Any] = {"general.architecture": architecture}
    arrays: dict[str, Any] = {}
    for name, value in {**USUAL, **{KEYS[name]: value for name, value in numbers.items()}}.items():
        if value is None:
            continue
        (arrays if isinstance(value, tuple) else metadata)[f"{architecture}.{name}"] = value
    return describe(
        [
            Header(
                version=3,
                tensor_count=len(tensors or {}),
                end_bytes=0,
                metadata=metadata,
                arrays=arrays,
                lengths={key: len(value) for key, value in arrays.items()},
                tensors=tuple(
                    Tensor(name, (size // 4,), 0, 0, size // 4, size) for name, size in (tensors or {}).items()
                ),
            )
        ]
    )


KEYS = {
    "layers": "block_count",
    "width": "embedding_length",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "context": "context_length",
    "predict": "nextn_predict_layers",
    "experts": "expert_count",
    "used": "expert_used_count",
    "vocabulary": "vocab_size",
}


def test_numbers_of_all_layers_and_of_each() -> None:
    one = model("llama", kv_heads=2, predict=1, vocabulary=300)
    assert [(it.heads, it.kv_heads) for it in one.layers] == [(8, 2)] * 4
    assert one.shape == Shape(4, 1, 512, 8, 2, context_length=2048, vocabulary=300)
    each = model("nemotron_h_moe", heads=(8, 0, 0, 4), experts=16, used=(0, 0, 4, 2))
    # There are as many heads of keys as heads.
    assert [(it.heads, it.kv_heads) for it in each.layers] == [(8, 8), (0, 0), (0, 0), (4, 4)]
    assert each.shape == Shape(4, 0, 512, context_length=2048, experts=16, experts_used=4)
    assert one.notes == each.notes == []


NOTES: dict[str, tuple[str, dict[str, int], dict[str, Any], str]] = {
    "a projector": ("clip", {}, {"width": None}, "This is the vision or audio part of a model: it has no layers and "),
    "predicting layers": ("glm4moe", {}, {"predict": 5}, "glm4moe.nextn_predict_layers is 5, more than there are lay"),
    "one layer too many": ("llama", {"blk.7.a": 64}, {}, "There are tensors of layer 7, and the model has 4 layers, "),
}


@pytest.mark.parametrize(("architecture", "tensors", "numbers", "note"), NOTES.values(), ids=NOTES)
def test_what_is_odd_has_a_note(architecture: str, tensors: dict[str, int], numbers: dict[str, Any], note: str) -> None:
    found = model(architecture, tensors, **numbers)
    assert len(found.notes) == 1
    assert found.notes[0].startswith(note)
    assert len(found.layers) == (0 if architecture == "clip" else 4)


def test_what_is_not_known_of_weights_is_none() -> None:
    found = describe([Header(3, 1, 0, tensors=(Tensor("a", (8,), 0, 0, 8, 32),))])
    assert found.notes == ["general.architecture is missing, so only the weights are known."]
    assert (found.architecture, found.parameters, found.weights.bytes, found.layers) == (None, 8, 32, [])
    tensors = (Tensor("blk.0.a", (8,), 77, 0, 8, None), Tensor("output.weight", (8,), 0, 0, 8, 32))
    found = describe([Header(3, 2, None, {"general.architecture": "llama", "llama.block_count": 1}, tensors=tensors)])
    assert found.notes[-1].startswith("Tensors of type 77 are of a llama.cpp later than ")
    assert (found.layers[0].bytes, found.weights.bytes, found.weights.output_bytes) == (None, None, 32)


# A number that is wrong or missing, the note about it, and what is not known for it.
UNKNOWN = {
    "too few of an array": (
        {"kv_heads": (1, 2)},
        "head_count_kv has 2 values that are not one number for each",
        "kv_heads",
    ),
    "no number in an array": ({"kv_heads": (1, 2, "x", 4)}, "head_count_kv has 4 values that", "kv_heads"),
    "a text for a number": ({"heads": "many"}, "head_count is 'many', which llama.cpp cannot use", "heads"),
    "no layers": ({"layers": None}, r"llama\.block_count is missing", "layers"),
    "too many layers": ({"layers": 4000000000}, r"llama\.block_count is 4000000000", "layers"),
    "negative": ({"context": -64}, "context_length is -64", "context_length"),
    "more than 32 bits": ({"vocabulary": 1 << 32}, "vocab_size is 4294967296", "vocabulary"),
    "no width": ({"width": None}, r"llama\.embedding_length is missing", "embedding_length"),
    "an array for a number": ({"width": (512, 512)}, r"llama\.embedding_length is an array", "embedding_length"),
}


@pytest.mark.parametrize(("numbers", "words", "unknown"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_what_is_not_known_is_said(numbers: dict[str, Any], words: str, unknown: str) -> None:
    found = model("llama", **numbers)
    assert getattr(found.shape, unknown) is None
    assert len(found.layers) == (0 if unknown == "layers" else 4)
    (note,) = found.notes
    assert note.endswith(".")
    assert re.search(words, note)


def test_bytes_outside_of_layers() -> None:
    sizes = {"token_embd.weight": 1000, "rope_freqs.weight": 4, "output_norm.weight": 12, "output.weight": 2000}
    found = model("llama", {**sizes, "blk.0.attn_q.weight": 400, "blk.0.a": 8}, layers=1)
    of = found.weights
    assert (of.bytes, of.input_bytes, of.output_bytes, found.layers[0].bytes) == (3424, 1000, 2012, 408)
    assert (of.embedding_bytes, of.tied_embeddings, found.notes) == (1000, False, [])


@pytest.mark.parametrize(
    ("said", "name"),
    [(15, "Q4_K - Medium"), (0, "all F32"), (1024 + 1, "F16"), (35, "unknown, may not work"), (None, None)],
)
def test_the_file_type_is_named_as_upstream_does(said: int | None, name: str | None) -> None:
    metadata = {} if said is None else {"general.file_type": said}
    assert describe([Header(3, 0, 0, dict(metadata))]).file_type == name


QUICK = settings(max_examples=30, deadline=5000, database=None, suppress_health_check=list(HealthCheck))


ARCHITECTURES = ["llama", "gemma4", "nemotron_h", "clip", "x", "\x1b[2J"]
VALUES = st.one_of(
    st.integers(-2, 600),
    st.integers(0, 1 << 64),
    st.floats(),
    st.booleans(),
    st.text(max_size=5),
    st.sampled_from(["x" * 1000, "\x1b]0;owned\x07"]),
)


@settings(QUICK, max_examples=150)
@given(
    architecture=st.sampled_from(ARCHITECTURES),
    plain=st.dictionaries(st.sampled_from(sorted(KEYS)), VALUES, max_size=6),
    arrays=st.dictionaries(st.sampled_from(sorted(KEYS)), st.lists(VALUES, max_size=6), max_size=3),
)
def test_no_value_makes_it_fail(architecture: str, plain: dict[str, Any], arrays: dict[str, list[Any]]) -> None:
    found = model(architecture, **{**plain, **{name: tuple(values) for name, values in arrays.items()}})
    json.dumps(asdict(found))
    assert all(note.endswith(".") and len(note) < 500 for note in found.notes)
    assert all(text.isprintable() for text in (*found.notes, found.architecture or "", found.name or ""))
    assert found.layers or found.notes
