# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: describes a model from its headers as llama.cpp sees it: shape, weights by layer, and size of its cache.

`describe` never fails. A value is None if the header does not give it, or if llama.cpp handles it in a way that this
code does not follow. Then `notes` says so in a sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .architectures import RECURRENT
from .cache import (
    Heads,
    all_heads_of,
    cache_kinds,
    cache_of,
    followed,
    kv_bytes,
    kv_heads_of,
    read_heads,
    state_bytes,
    widths,
    window_size,
)
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
            f"{reader.architecture}.block_count is {'missing' if count is None else count}, so the layers and the "
            f"cache are not known; llama.cpp wants 1 to {MAX_LAYERS}."
        )
        return None
    return count


def _vocabulary(reader: Numbers) -> int | None:
    length = reader.header.lengths.get("tokenizer.ggml.tokens")
    return reader.number("vocab_size") if length is None else length


def _layers(reader: Numbers, count: int, shape: Shape, heads: Heads, repeating: dict[int, Repeating]) -> list[Layer]:
    """Return the repeating layers."""
    all_heads = all_heads_of(reader, count)
    kv_heads = kv_heads_of(reader, count, all_heads)
    feed_forward = reader.each("feed_forward_length", count, 0)
    kinds: Sequence[str | None] = [None] * count
    if followed(reader):
        main = count - shape.predict_layers
        found = cache_kinds(reader, main, kv_heads, feed_forward)
        # The other layers do not attend to the layers that predict further tokens.
        kinds = [*found, *["none"] * shape.predict_layers] if found is not None else kinds
    state = state_bytes(reader, shape.embedding_length, all_heads[0])
    layers = []
    for index, kind in enumerate(kinds):
        keys, values, key_head, value_head = (None,) * 4 if kind is None else widths(kind, kv_heads[index], heads)
        weights = repeating.get(index, Repeating(0, 0))
        layers.append(
            Layer(
                index=index,
                tensors=weights.tensors,
                bytes=weights.bytes,
                heads=all_heads[index],
                kv_heads=kv_heads[index],
                feed_forward_length=feed_forward[index],
                cache=kind,
                key_width=keys,
                value_width=values,
                kv_bytes_per_token=kv_bytes(keys, values, key_head, value_head),
                state_bytes=(state if kind in ("recurrent", "both") else 0) if kind else None,
            )
        )
    return layers


def _shape(reader: Numbers, count: int | None) -> tuple[Shape, Heads]:
    embedding = reader.number("embedding_length")
    all_heads = all_heads_of(reader, count)
    for name in ["embedding_length"] + ["attention.head_count"] * (reader.architecture not in RECURRENT):
        if not reader.has(name) and reader.architecture != "clip":
            reader.note(f"{reader.architecture}.{name} is missing, which llama.cpp needs.")
    kv_heads = kv_heads_of(reader, count, all_heads)
    heads = read_heads(reader, embedding, all_heads[0])
    predict = reader.number("nextn_predict_layers", 0) or 0
    if count is not None and predict > count:
        reader.note(f"{reader.architecture}.nextn_predict_layers is {predict}, more than there are layers.")
        predict = 0
    shape = Shape(
        layers=count,
        predict_layers=predict,
        embedding_length=embedding,
        heads=same(all_heads),
        kv_heads=same(kv_heads),
        key_length=heads.key,
        value_length=heads.value,
        feed_forward_length=same(reader.each("feed_forward_length", count, 0)),
        experts=reader.number("expert_count", 0) or 0,
        experts_used=max((used or 0 for used in reader.each("expert_used_count", count, 0)), default=0),
        expert_feed_forward_length=same(reader.each("expert_feed_forward_length", count)),
        context_length=reader.number("context_length"),
        vocabulary=_vocabulary(reader),
    )
    return shape, heads


def describe(headers: Sequence[Header]) -> Model:
    """Return the description of a model from the headers of its files."""
    first = headers[0]
    tensors = [tensor for header in headers for tensor in header.tensors]
    architecture = text_of(first.metadata.get("general.architecture"))
    reader = Numbers(first, architecture or "")
    if architecture is None:
        reader.note("general.architecture is missing, so only the weights are known.")
        shape, heads, count = Shape(vocabulary=_vocabulary(reader)), Heads(None, None, None, None, latent=False), None
    else:
        count = _layer_count(reader) if architecture != "clip" else None
        shape, heads = _shape(reader, count)
    repeating = repeating_of(tensors)
    layers = _layers(reader, count, shape, heads, repeating) if count is not None else []
    if architecture == "clip":
        followed(reader)
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
        weights=weights_of(tensors, architecture or ""),
        cache=cache_of(
            layers, known=count is not None, window=window_size(reader, (count or 0) - shape.predict_layers)
        ),
        layers=layers,
        notes=reader.notes,
    )
