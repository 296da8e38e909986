# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: describes a model from its headers: shape, and weights by layer.

`describe` never fails. A value is None if the header does not give it. Then `notes` says so in a sentence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .described import Layer, Model, Shape
from .ggml_types import TABLES_OF
from .header import MAX_LAYERS, Header
from .numbers import Numbers, same, text_of
from .weights import Repeating, file_type_of, repeating_of, weights_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def _layer_count(reader: Numbers) -> int | None:
    count = reader.number("block_count")
    if count is None or not 0 < count <= MAX_LAYERS:
        reader.note(
            f"{reader.architecture}.block_count is {'missing' if count is None else count}, so the layers are not "
            f"known; llama.cpp wants 1 to {MAX_LAYERS}."
        )
        return None
    return count


def _vocabulary(reader: Numbers) -> int | None:
    length = reader.header.lengths.get("tokenizer.ggml.tokens")
    return reader.number("vocab_size") if length is None else length


def _shape(reader: Numbers, count: int | None) -> tuple[Shape, list[Layer]]:
    """Return the shape, and the layers without their weights."""
    embedding = reader.number("embedding_length")
    heads = reader.each("attention.head_count", count)
    kv_heads = reader.each("attention.head_count_kv", count) if reader.has("attention.head_count_kv") else heads
    feed_forward = reader.each("feed_forward_length", count, 0)
    if not reader.has("embedding_length") and reader.architecture != "clip":
        reader.note(f"{reader.architecture}.embedding_length is missing, which llama.cpp needs.")
    each = embedding // heads[0] if embedding is not None and heads[0] else None
    predict = reader.number("nextn_predict_layers", 0) or 0
    if count is not None and predict > count:
        reader.note(f"{reader.architecture}.nextn_predict_layers is {predict}, more than there are layers.")
        predict = 0
    shape = Shape(
        layers=count,
        predict_layers=predict,
        embedding_length=embedding,
        heads=same(heads),
        kv_heads=same(kv_heads),
        # If the first layer has no heads, llama.cpp does not read these.
        key_length=0 if heads[0] == 0 else reader.number("attention.key_length", each),
        value_length=0 if heads[0] == 0 else reader.number("attention.value_length", each),
        feed_forward_length=same(feed_forward),
        experts=reader.number("expert_count", 0) or 0,
        experts_used=max((used or 0 for used in reader.each("expert_used_count", count, 0)), default=0),
        expert_feed_forward_length=same(reader.each("expert_feed_forward_length", count)),
        context_length=reader.number("context_length"),
        vocabulary=_vocabulary(reader),
    )
    layers = [Layer(index, 0, 0, *numbers) for index, numbers in enumerate(zip(heads, kv_heads, feed_forward))]
    return shape, layers if count is not None else []


def describe(headers: Sequence[Header]) -> Model:
    """Return the description of a model from the headers of its files."""
    first = headers[0]
    tensors = [tensor for header in headers for tensor in header.tensors]
    architecture = text_of(first.metadata.get("general.architecture"))
    reader = Numbers(first, architecture or "")
    layers: list[Layer] = []
    count = None
    if architecture is None:
        reader.note("general.architecture is missing, so only the weights are known.")
        shape = Shape(vocabulary=_vocabulary(reader))
    else:
        count = _layer_count(reader) if architecture != "clip" else None
        shape, layers = _shape(reader, count)
    repeating = repeating_of(tensors)
    layers = [replace(layer, **repeating.get(layer.index, Repeating(0, 0))._asdict()) for layer in layers]
    if architecture == "clip":
        reader.note("This is the vision or audio part of a model: it has no layers and no cache of its own.")
    newer = sorted({tensor.type_name for tensor in tensors if tensor.bytes is None})
    if newer:
        reader.note(
            f"Tensors of {', '.join(newer)} are of a llama.cpp later than {TABLES_OF}, so their bytes are not known."
        )
    beyond = sorted(index for index in repeating if count is not None and index >= count)
    if beyond:
        reader.note(f"There are tensors of layer {beyond[0]}, and the model has {count} layers, counted from 0.")
    return Model(
        architecture=architecture,
        name=text_of(first.metadata.get("general.name")),
        file_type=file_type_of(first, tensors),
        parameters=sum(tensor.elements for tensor in tensors),
        shape=shape,
        weights=weights_of(tensors),
        layers=layers,
        notes=reader.notes,
    )
