# SPDX-License-Identifier: GPL-3.0-or-later
"""The meaning of a model's header: sizes by hand from upstream's formulas, and compared with the package `gguf`."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.cache import kv_cells, row_bytes
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.described import Model
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.ggml_types import CACHE_TYPES
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import (
    Header,
    Tensor,
    read_header,
    read_model,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.model import describe
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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
    "key": "attention.key_length",
    "value": "attention.value_length",
    "key_swa": "attention.key_length_swa",
    "value_swa": "attention.value_length_swa",
    "key_mla": "attention.key_length_mla",
    "value_mla": "attention.value_length_mla",
    "window": "attention.sliding_window",
    "pattern": "attention.sliding_window_pattern",
    "shared_kv": "attention.shared_kv_layers",
    "ff": "feed_forward_length",
    "interval": "full_attention_interval",
    "predict": "nextn_predict_layers",
    "conv": "ssm.conv_kernel",
    "inner": "ssm.inner_size",
    "state": "ssm.state_size",
    "groups": "ssm.group_count",
    "wkv": "wkv.head_size",
    "l_cache": "shortconv.l_cache",
    "kda": "kda.head_dim",
    "loops": "num_loops",
    "experts": "expert_count",
}

# Bytes of F16 keys and values per token in layers with the whole context and in those with a window; state bytes.
# fmt: off
CACHES = {
    "as many kv heads as heads": ("llama", {}, "full " * 4, 4 * 2 * 512 * 2, 0, 0),
    "grouped queries": ("llama", {"kv_heads": 2}, "full " * 4, 4 * 2 * 128 * 2, 0, 0),
    "kv heads by layer": ("openelm", {"kv_heads": (1, 2, 3, 4)}, "full " * 4, 2 * 10 * 64 * 2, 0, 0),
    "layers without attention": ("deci", {"kv_heads": (8, 0, 0, 8)}, "full none none full", 2 * 2 * 512 * 2, 0, 0),
    "other head sizes": ("qwen3", {"kv_heads": 2, "key": 96, "value": 32}, "full " * 4, 4 * 2 * 128 * 2, 0, 0),
    "latent attention": (
        "deepseek2", {"kv_heads": 1, "key": 576, "value": 512, "key_mla": 192, "value_mla": 128},
        "full " * 4, 4 * 576 * 2, 0, 0,
    ),
    "latent attention, old file": (
        "deepseek2", {"key": 192, "value": 128}, "full " * 4, 4 * 8 * 320 * 2, 0, 0,
    ),
    "layers that predict": ("glm4moe", {"predict": 1}, "full full full none", 3 * 2 * 512 * 2, 0, 0),
    "window, every other": ("gemma2", {}, "window full window full", 2 * 2048, 2 * 2048, 0),
    "window, first dense": (
        "smallthinker", {"window": 1024, "layers": 5}, "full window window window full", 2 * 2048, 3 * 2048, 0,
    ),
    "window, period of the file": ("gemma3", {"window": 512, "pattern": 2}, "window full " * 2, 2 * 2048, 2 * 2048, 0),
    "window, layers of the file": (
        "gemma3", {"window": 512, "pattern": (1, 1, 0, 1)}, "window window full window", 2048, 3 * 2048, 0,
    ),
    "window switched off": ("llama4", {"window": 0}, "full " * 4, 4 * 2048, 0, 0),
    "window in chunks": ("llama4", {}, "window window window full", 2048, 3 * 2048, 0),
    "window that is not used": ("phi3", {"window": 512}, "full " * 4, 4 * 2048, 0, 0),
    "window, other heads": (
        "gemma4", {"window": 512, "pattern": (1, 1, 1, 0), "kv_heads": (4, 4, 4, 2), "key": 512, "value": 512,
                   "key_swa": 256, "value_swa": 256, "shared_kv": 2},
        "window window none none", 0, 2 * 2 * 4 * 256 * 2, 0,
    ),
    "no cache": ("bert", {}, "none " * 4, 0, 0, 0),
    "mamba": (
        "mamba", {"heads": None, "conv": 4, "inner": 1024, "state": 16}, "recurrent " * 4, 0, 0,
        4 * 4 * (3 * 1024 + 16 * 1024),
    ),
    "mamba 2": (
        "mamba2", {"heads": None, "conv": 4, "inner": 1024, "state": 128, "groups": 1}, "recurrent " * 4, 0, 0,
        4 * 4 * (3 * (1024 + 2 * 128) + 128 * 1024),
    ),
    "rwkv": ("rwkv7", {"heads": None, "wkv": 64}, "recurrent " * 4, 0, 0, 4 * 4 * (2 * 512 + 512 * 64)),
    "hybrid, no kv heads": (
        "jamba", {"kv_heads": (0, 0, 2, 0), "conv": 4, "inner": 1024, "state": 16},
        "recurrent recurrent full recurrent", 2 * 128 * 2, 0, 3 * 4 * (3 * 1024 + 16 * 1024),
    ),
    "hybrid, short convolution": (
        "lfm2", {"kv_heads": (0, 2, 0, 2), "l_cache": 3}, "recurrent full " * 2, 2 * 2 * 128 * 2, 0, 2 * 4 * 2 * 512,
    ),
    "hybrid, every fourth": (
        "qwen3next", {"kv_heads": 2, "conv": 4, "inner": 1024, "state": 64, "groups": 4},
        "recurrent recurrent recurrent full", 2 * 128 * 2, 0, 3 * 4 * (3 * (1024 + 8 * 64) + 64 * 1024),
    ),
    "hybrid, interval of the file": (
        "qwen35", {"kv_heads": 2, "interval": 2, "conv": 4, "inner": 64, "state": 8, "groups": 1},
        "recurrent full " * 2, 2 * 2 * 128 * 2, 0, 2 * 4 * (3 * 80 + 512),
    ),
    "hybrid, each layer both": (
        "falcon-h1", {"kv_heads": 2, "conv": 4, "inner": 64, "state": 8, "groups": 1},
        "both " * 4, 4 * 2 * 128 * 2, 0, 4 * 4 * (3 * 80 + 512),
    ),
    "hybrid, neither": (
        "nemotron_h", {"kv_heads": (0, 0, 2, 0), "ff": (0, 2048, 0, 2048), "conv": 4, "inner": 64, "state": 8},
        "recurrent none full none", 2 * 128 * 2, 0, 4 * (3 * 64 + 512),
    ),
    "hybrid, delta attention": (
        "kimi-linear", {"kv_heads": (0, 0, 0, 1), "key": 576, "value": 512, "key_mla": 192, "value_mla": 128, "kda": 64,
                        "conv": 4},
        "recurrent recurrent recurrent full", 576 * 2, 0, 3 * 4 * (3 * 3 * 512 + 64 * 64 * 8),
    ),
}
# fmt: on


@pytest.mark.parametrize(
    ("architecture", "numbers", "kinds", "full", "window", "state"), CACHES.values(), ids=CACHES.keys()
)
def test_what_a_token_takes(
    architecture: str, numbers: dict[str, Any], kinds: str, full: int, window: int, state: int
) -> None:
    found = model(architecture, **numbers)
    assert found.notes == []
    assert [layer.cache for layer in found.layers] == kinds.split()
    assert found.cache.known
    assert found.cache.bytes_per_token["f16"] == full
    assert found.cache.window_bytes_per_token["f16"] == window
    assert found.cache.state_bytes == state
    assert sum(layer.kv_bytes_per_token["f16"] or 0 for layer in found.layers) == full + window
    assert (found.cache.window_tokens is not None) == ("window" in kinds)


def test_gemma3n_keeps_twenty_layers() -> None:
    found = model("gemma3n", layers=30, window=512)
    assert [layer.cache for layer in found.layers[:20]] == ["window", "window", "window", "window", "full"] * 4
    assert {layer.cache for layer in found.layers[20:]} == {"none"}


def test_each_cache_type() -> None:
    """The sizes are bytes of 32 numbers, by the blocks of include/ggml.h."""
    found = model("llama", layers=1, width=64, heads=1)
    assert found.cache.bytes_per_token == {
        "f32": 2 * 64 * 4,
        "f16": 2 * 64 * 2,
        "bf16": 2 * 64 * 2,
        "q8_0": 2 * 2 * 34,
        "q4_0": 2 * 2 * 18,
        "q4_1": 2 * 2 * 20,
        "q5_0": 2 * 2 * 22,
        "q5_1": 2 * 2 * 24,
        "iq4_nl": 2 * 2 * 18,
    }
    assert row_bytes(1024, 128, "q8_0") == 1088


def test_a_cache_type_whose_blocks_do_not_fit_the_heads_has_no_size() -> None:
    found = model("llama", width=640, heads=8)  # heads of 80
    assert found.cache.bytes_per_token == {
        name: {"f32": 4 * 2 * 640 * 4}.get(name, 4 * 2 * 640 * 2) if name in ("f32", "f16", "bf16") else None
        for name in CACHE_TYPES
    }
    assert found.cache.known


UNKNOWN = {
    "cache of its own": ("deepseek32", {}, "gives the architecture deepseek32 a cache of its own kind"),
    "a later architecture": ("llama9", {}, "llama.cpp 0.3.36 has no architecture 'llama9'"),
    "loops": ("nanbeige", {"loops": 2}, "runs the layers of this nanbeige model in loops"),
    "window without its layers": ("gemma4", {"window": 512}, r"gemma4\.attention\.sliding_window_pattern is missing"),
    "too few of an array": (
        "llama",
        {"kv_heads": (1, 2)},
        "head_count_kv has 2 values that are not one number for each",
    ),
    "a text for a number": ("llama", {"heads": "many"}, "head_count is 'many', which llama.cpp cannot use"),
    "no layers": ("llama", {"layers": None}, r"llama\.block_count is missing"),
    "too many layers": ("llama", {"layers": 4000000000}, r"llama\.block_count is 4000000000"),
    "negative": ("llama", {"key": -64}, "key_length is -64"),
    "no heads": ("llama", {"heads": None}, r"llama\.attention\.head_count is missing, which llama\.cpp needs"),
    "no width": ("llama", {"width": None}, r"llama\.embedding_length is missing"),
    "an array for a number": ("llama", {"width": (512, 512)}, r"llama\.embedding_length is an array"),
}


@pytest.mark.parametrize(("architecture", "numbers", "words"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_what_is_not_known_is_said(architecture: str, numbers: dict[str, Any], words: str) -> None:
    found = model(architecture, **numbers)
    assert not found.cache.known
    assert set(found.cache.bytes_per_token.values()) == {None}
    assert found.cache.state_bytes is None
    assert len(found.notes) == 1
    (note,) = found.notes
    assert note.endswith(".")
    assert re.search(words, note)


def test_without_an_architecture_the_weights_are_known() -> None:
    found = describe([Header(3, 1, 0, tensors=(Tensor("a", (8,), 0, 0, 8, 32),))])
    assert found.notes == ["general.architecture is missing, so only the weights are known."]
    assert (found.architecture, found.parameters, found.weights.bytes, found.layers) == (None, 8, 32, [])
    assert not found.cache.known


def test_bytes_by_layer_and_outside_of_layers() -> None:
    found = model(
        "llama",
        {
            "token_embd.weight": 1000,
            "rope_freqs.weight": 4,
            "blk.0.attn_q.weight": 400,
            "blk.0.attn_norm.weight": 8,
            "blk.1.attn_q.weight": 404,
            "output_norm.weight": 12,
            "output.weight": 2000,
        },
        layers=2,
    )
    assert [(layer.tensors, layer.bytes) for layer in found.layers] == [(2, 408), (1, 404)]
    weights = found.weights
    assert (weights.input_bytes, weights.output_bytes, weights.shared_bytes, weights.layers_bytes) == (
        1000,
        2012,
        4,
        812,
    )
    assert (weights.bytes, weights.embedding_bytes, weights.tied_embeddings) == (3828, 1000, False)
    assert found.notes == []


@pytest.mark.parametrize(
    ("architecture", "tensors", "tied"),
    [
        ("gemma2", {"token_embd.weight": 64}, True),
        ("llama", {"token_embd.weight": 64, "output.weight": 64}, False),
        ("bert", {"token_embd.weight": 64}, False),
        ("llama", {"output.weight": 64}, False),
    ],
    ids=["no output", "an output", "a model that only embeds", "no embedding"],
)
def test_tied_embeddings(architecture: str, tensors: dict[str, int], tied: bool) -> None:
    assert model(architecture, tensors).weights.tied_embeddings is tied


def test_tensors_of_a_layer_that_is_not_there() -> None:
    assert model("llama", {"blk.7.attn_q.weight": 64}).notes == [
        "There are tensors of layer 7, and the model has 4 layers, counted from 0."
    ]


def test_a_type_of_a_later_upstream_has_no_size() -> None:
    tensors = (Tensor("blk.0.a", (8,), 77, 0, 8, None), Tensor("output.weight", (8,), 0, 0, 8, 32))
    found = describe([Header(3, 2, None, {"general.architecture": "llama", "llama.block_count": 1}, tensors=tensors)])
    assert found.notes[-1:] == [
        "Tensors of type 77 are of a llama.cpp later than 0.3.36, so their bytes are not known."
    ]
    assert (found.layers[0].bytes, found.weights.bytes, found.weights.output_bytes) == (None, None, 32)


@pytest.mark.parametrize(
    ("said", "kinds", "name"),
    [
        (15, [12], "Q4_K - Medium"),
        (7, [0], "Q8_0"),
        (0, [1], "all F32"),
        (1024 + 1, [0], "(guessed) F16"),
        (35, [0], "unknown, may not work"),
        (None, [0, 12, 12], "(guessed) Q4_K - Medium"),
        (None, [0, 1], "(guessed) all F32"),
        (None, [39, 39, 0], "(guessed) all F32"),
        (None, [], "(guessed) all F32"),
    ],
)
def test_the_file_type_is_named_as_upstream_does(said: int | None, kinds: list[int], name: str) -> None:
    tensors = tuple(Tensor(f"blk.{index}.a", (256,), kind, 0, 256, 0) for index, kind in enumerate(kinds))
    assert (
        describe([Header(3, 0, 0, {} if said is None else {"general.file_type": said}, tensors=tensors)]).file_type
        == name
    )


@pytest.mark.parametrize(
    ("kind", "context", "cells"),
    [(0, 4096, 512 + 512), (0, 700, 768), (0, 256, 256), (1, 4096, 4096), (1, 4000, 4096)],
)
def test_cells_of_a_layer(kind: int, context: int, cells: int) -> None:
    found = model("gemma2", window=512)
    assert kv_cells(found.layers[kind], context, found.cache.window_tokens, 512) == cells


def test_of_layers_without_keys_there_are_no_cells() -> None:
    assert kv_cells(model("mamba").layers[0], 4096, None) == 0


QUICK = settings(max_examples=30, deadline=5000, database=None, suppress_health_check=list(HealthCheck))

# At least one type of each block size.
KINDS = [
    gguf.GGMLQuantizationType[name] for name in "F32 F16 Q8_0 Q4_K IQ4_NL TQ1_0 MXFP4 I8 F64 BF16 Q5_1 NVFP4".split()
]


@st.composite
def written_models(draw: st.DrawFn) -> dict[str, Any]:
    layers = draw(st.integers(1, 5))
    heads = draw(st.integers(1, 8))
    kv_heads = st.integers(1, heads)
    names = draw(st.lists(st.sampled_from(["attn_q", "attn_k", "ffn_up", "ffn_gate_exps"]), unique=True))
    kinds = st.sampled_from(KINDS)
    tensors = {"token_embd.weight": draw(kinds), "output_norm.weight": draw(kinds)}
    if draw(st.booleans()):
        tensors["output.weight"] = draw(kinds)
    tensors.update({f"blk.{layer}.{name}.weight": draw(kinds) for layer in range(layers) for name in names})
    return {
        "architecture": draw(st.sampled_from(["llama", "qwen3", "deepseek2", "gpt2", "phi3", "made-up"])),
        "layers": layers,
        "heads": heads,
        "kv_heads": draw(kv_heads | st.lists(kv_heads, min_size=layers, max_size=layers)),
        "head": draw(st.sampled_from([32, 64, 96, 128])),
        "key": draw(st.none() | st.sampled_from([64, 192])),
        "vocabulary": draw(st.integers(0, 40)),
        "alignment": draw(st.sampled_from([32, 64, 1024])),
        "file_type": draw(st.none() | st.sampled_from([gguf.LlamaFileType.MOSTLY_Q4_K_M, gguf.LlamaFileType.ALL_F32])),
        "shape": draw(st.lists(st.integers(1, 3), max_size=3)),
        "tensors": tensors,
    }


def write(path: Path, of: dict[str, Any]) -> None:
    writer = gguf.GGUFWriter(path, of["architecture"])
    writer.add_custom_alignment(of["alignment"])
    writer.add_block_count(of["layers"])
    writer.add_embedding_length(of["heads"] * of["head"])
    writer.add_head_count(of["heads"])
    writer.add_head_count_kv(of["kv_heads"])
    writer.add_context_length(4096)
    if of["key"]:
        writer.add_key_length(of["key"])
        writer.add_value_length(of["head"])
    if of["file_type"] is not None:
        writer.add_file_type(of["file_type"])
    writer.add_token_list([f"token {index}" for index in range(of["vocabulary"])] or ["-"])
    for name, kind in of["tensors"].items():
        per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        data = np.zeros((*of["shape"], 512 // per_block * block_bytes), np.uint8)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@QUICK
@given(of=written_models())
def test_what_the_package_writes_is_read_as_the_package_reads_it(tmp_path: Path, of: dict[str, Any]) -> None:
    path = tmp_path / "m.gguf"
    write(path, of)
    theirs = gguf.GGUFReader(path)
    headers = read_model(path)
    ours = describe(headers)
    assert [(it.name, list(it.shape), it.type_number, it.elements, it.bytes) for it in headers[0].tensors] == [
        (it.name, it.shape.tolist(), int(it.tensor_type), int(it.n_elements), int(it.n_bytes)) for it in theirs.tensors
    ]
    last = max(theirs.tensors, key=lambda it: it.data_offset)
    assert headers[0].end_bytes == last.data_offset + last.n_bytes
    assert ours.parameters == sum(int(it.n_elements) for it in theirs.tensors)
    assert ours.weights.bytes == sum(int(it.n_bytes) for it in theirs.tensors)
    assert {share.type.upper(): share.tensors for share in ours.weights.types} == Counter(
        it.tensor_type.name.upper() for it in theirs.tensors
    )
    for layer in ours.layers:
        of_it = [it for it in theirs.tensors if it.name.startswith(f"blk.{layer.index}.")]
        assert (layer.tensors, layer.bytes) == (len(of_it), sum(int(it.n_bytes) for it in of_it))
    kv_heads = of["kv_heads"] if isinstance(of["kv_heads"], list) else [of["kv_heads"]] * of["layers"]
    assert [layer.kv_heads for layer in ours.layers] == kv_heads
    assert ours.shape.vocabulary == max(of["vocabulary"], 1)
    assert ours.weights.tied_embeddings is ("output.weight" not in of["tensors"])
    width = (of["key"] or of["head"]) + of["head"]
    expected = None if of["architecture"] == "made-up" else sum(kv_heads) * width * 2
    assert ours.cache.bytes_per_token["f16"] == expected
    for field in theirs.fields.values():
        if not field.name.startswith("GGUF.") and field.types[0] != gguf.GGUFValueType.ARRAY:
            assert headers[0].metadata[field.name] == field.contents()


ARCHITECTURES = [
    "llama",
    "gemma3",
    "gemma4",
    "mamba",
    "jamba",
    "lfm2",
    "qwen3next",
    "nemotron_h",
    "clip",
    "nanbeige",
    "x",
    "\x1b[2J",
]
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
    # If the cache is unknown, a note has the reason.
    assert found.cache.known or found.notes


def test_the_result_for_a_large_model_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    names = [f"blk.{layer}.{name}.weight" for layer in range(80) for name in "abcdefghij"]
    write(
        path,
        {
            "architecture": "llama", "layers": 80, "heads": 64, "kv_heads": 8, "head": 128, "key": None,
            "alignment": 32, "vocabulary": 1000, "file_type": None, "shape": [],
            "tensors": dict.fromkeys(names, KINDS[2]),
        },
    )  # fmt: skip
    assert len(json.dumps(asdict(describe([read_header(path)])))) < 40_000
