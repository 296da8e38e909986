# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: what there is to know about a model before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Layer:
    """One repeating layer (`blk.N.`).

    `cache` is what it keeps of the context: `full`, `window` (the last tokens only), `recurrent` (a state of fixed
    size), `both` (full and a state), `none`, or None if that is not known. Widths are elements per token.
    """

    index: int
    tensors: int
    bytes: int | None
    heads: int | None = None
    kv_heads: int | None = None
    feed_forward_length: int | None = None
    cache: str | None = None
    key_width: int | None = None
    value_width: int | None = None
    kv_bytes_per_token: dict[str, int | None] = field(default_factory=dict)
    state_bytes: int | None = None


@dataclass(frozen=True)
class Shape:
    """The model's numbers, None where the file does not say or where layers differ."""

    layers: int | None = None
    predict_layers: int = 0
    embedding_length: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    key_length: int | None = None
    value_length: int | None = None
    feed_forward_length: int | None = None
    experts: int = 0
    experts_used: int = 0
    expert_feed_forward_length: int | None = None
    context_length: int | None = None
    vocabulary: int | None = None


@dataclass(frozen=True)
class TypeShare:
    """What a type of numbers has of the weights."""

    type: str
    tensors: int
    parameters: int
    bytes: int | None


@dataclass(frozen=True)
class Weights:
    """Where the bytes of the weights are.

    Those of layers, input, output and shared make up `bytes`; shared ones are small and go to each device that has
    layers. With `tied_embeddings` the output is made with the embedding, of `embedding_bytes`, of which llama.cpp keeps
    a second copy where the output is.
    """

    bytes: int | None
    layers_bytes: int | None
    input_bytes: int | None
    output_bytes: int | None
    shared_bytes: int | None
    embedding_bytes: int | None
    tied_embeddings: bool
    types: list[TypeShare]


@dataclass(frozen=True)
class Cache:
    """What the context takes, by cache type, all layers together; None if it is not known.

    A type whose blocks do not fit the heads is None as well: llama.cpp refuses it.
    """

    known: bool
    bytes_per_token: dict[str, int | None]
    # Of the layers with a window: for each of at most this many tokens and those of a batch.
    window_tokens: int | None
    window_bytes_per_token: dict[str, int | None]
    # Of recurrent layers, for each sequence.
    state_bytes: int | None


@dataclass(frozen=True)
class Model:
    """What there is to know about a model before it is loaded."""

    architecture: str | None
    name: str | None
    file_type: str
    parameters: int
    shape: Shape
    weights: Weights
    cache: Cache
    layers: list[Layer]
    notes: list[str]
