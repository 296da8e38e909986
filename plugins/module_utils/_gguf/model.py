# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: describes a model from its headers: shape, and weights by layer.

`describe` never fails. A value is None if the header does not give it, or if llama.cpp could not use it. Then `notes`
says so in a sentence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Sequence

from .ggml_types import FILE_TYPES, GUESSED, TABLES_OF, UNKNOWN_FILE_TYPE
from .header import MAX_LAYERS, Header, Tensor, Value
from .numbers import Numbers, natural, printable, same, total

# The places of tensors outside of the layers (src/llama-arch.cpp, LLM_TENSOR_INFOS): INPUT tensors go with the input,
# which stays in the master's memory. SHARED tensors are small and go with layers, to each device. All others go with
# the output.
INPUT = frozenset("token_embd position_embd token_types per_layer_token_embd".split())
SHARED = frozenset(
    """
    per_layer_model_proj per_layer_proj_norm rope_factors_long rope_factors_short rope_freqs token_embd_norm
    """.split()
)
# The layer of a tensor. Models with an encoder have two layers of each number, which go to the same place.
_LAYER = re.compile(r"^(?:enc\.|dec\.)?blk\.(\d{1,3})\.")


@dataclass(frozen=True)
class Layer:
    """One repeating layer (`blk.N.`)."""

    bytes: int | None
    heads: int | None
    kv_heads: int | None


@dataclass(frozen=True)
class Shape:
    """The numbers of a model; heads are None if the layers differ."""

    layers: int | None = None
    predict_layers: int = 0
    embedding_length: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    experts: int = 0
    experts_used: int = 0
    context_length: int | None = None
    vocabulary: int | None = None


@dataclass(frozen=True)
class Weights:
    """The bytes of the weights.

    With `tied_embeddings` there is no matrix for the output: if the model has one, it uses the embedding
    (`embedding_bytes`), and llama.cpp keeps a second copy of it where the output is.
    """

    bytes: int | None
    input_bytes: int | None
    output_bytes: int | None
    embedding_bytes: int | None
    tied_embeddings: bool


@dataclass(frozen=True)
class Model:
    """The description of a model that is not loaded yet."""

    architecture: str | None
    name: str | None
    file_type: str | None
    parameters: int
    shape: Shape
    weights: Weights
    layers: list[Layer]
    notes: list[str]


def place(name: str) -> str:
    """Return the place of a tensor: layers, input, shared or output."""
    if _LAYER.match(name):
        return "layers"
    kind = name.partition(".")[0]
    return "input" if kind in INPUT else "shared" if kind in SHARED else "output"


def _weights(tensors: Sequence[Tensor]) -> Weights:
    embedding = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)
    has_output = any(tensor.name == "output.weight" for tensor in tensors)
    return Weights(
        bytes=total(tensor.bytes for tensor in tensors),
        input_bytes=total(tensor.bytes for tensor in tensors if place(tensor.name) == "input"),
        output_bytes=total(tensor.bytes for tensor in tensors if place(tensor.name) == "output"),
        embedding_bytes=embedding.bytes if embedding else None,
        tied_embeddings=embedding is not None and not has_output,
    )


def _layer_count(reader: Numbers) -> int | None:
    count = reader.number("block_count")
    if count is None or not 0 < count <= MAX_LAYERS:
        reader.note(
            f"{reader.architecture}.block_count is {'missing' if count is None else count}, so the layers are not "
            f"known; llama.cpp wants 1 to {MAX_LAYERS}."
        )
        return None
    return count


def _file_type(header: Header) -> str | None:
    number = natural(header.metadata.get("general.file_type", -1))
    return None if number is None else FILE_TYPES.get(number & ~GUESSED, UNKNOWN_FILE_TYPE)


def _text(value: Value | None) -> str | None:
    return printable(value) if isinstance(value, str) else None


def _predicting(reader: Numbers, count: int | None) -> int:
    predict = reader.number("nextn_predict_layers", 0) or 0
    if count is not None and predict > count:
        reader.note(f"{reader.architecture}.nextn_predict_layers is {predict}, more than there are layers.")
        return 0
    return predict


def _described(reader: Numbers, tensors: Sequence[Tensor]) -> tuple[Shape, list[Layer]]:
    count = None if reader.architecture == "clip" else _layer_count(reader)
    heads = reader.each("attention.head_count", count)
    kv_heads = reader.each("attention.head_count_kv", count) if reader.has("attention.head_count_kv") else heads
    if not reader.has("embedding_length") and reader.architecture != "clip":
        reader.note(f"{reader.architecture}.embedding_length is missing, which llama.cpp needs.")
    vocabulary = reader.header.lengths.get("tokenizer.ggml.tokens")
    shape = Shape(
        layers=count,
        predict_layers=_predicting(reader, count),
        embedding_length=reader.number("embedding_length"),
        heads=same(heads),
        kv_heads=same(kv_heads),
        experts=reader.number("expert_count", 0) or 0,
        experts_used=max((used or 0 for used in reader.each("expert_used_count", count, 0)), default=0),
        context_length=reader.number("context_length"),
        vocabulary=reader.number("vocab_size") if vocabulary is None else vocabulary,
    )
    if count is None:
        return shape, []
    of_layers: dict[int, list[int | None]] = {index: [] for index in range(count)}
    for tensor in tensors:
        match = _LAYER.match(tensor.name)
        if match:
            of_layers.setdefault(int(match.group(1)), []).append(tensor.bytes)
    beyond = sorted(index for index in of_layers if index >= count)
    if beyond:
        reader.note(f"There are tensors of layer {beyond[0]}, and the model has {count} layers, counted from 0.")
    return shape, [Layer(total(of_layers[index]), *of) for index, of in enumerate(zip(heads, kv_heads))]


def describe(headers: Sequence[Header]) -> Model:
    """Return the description of a model from the headers of its files."""
    first = headers[0]
    tensors = [tensor for header in headers for tensor in header.tensors]
    architecture = _text(first.metadata.get("general.architecture"))
    reader = Numbers(first, architecture or "")
    shape = Shape()
    layers: list[Layer] = []
    if architecture is None:
        reader.note("general.architecture is missing, so only the weights are known.")
    else:
        shape, layers = _described(reader, tensors)
    if architecture == "clip":
        reader.note("This is the vision or audio part of a model: it has no layers and no cache of its own.")
    newer = sorted({tensor.type_name for tensor in tensors if tensor.bytes is None})
    if newer:
        reader.note(
            f"Tensors of {', '.join(newer)} are of a llama.cpp later than {TABLES_OF}, so their bytes are not known."
        )
    return Model(
        architecture=architecture,
        name=_text(first.metadata.get("general.name")),
        file_type=_file_type(first),
        parameters=sum(tensor.elements for tensor in tensors),
        shape=shape,
        weights=_weights(tensors),
        layers=layers,
        notes=reader.notes,
    )
