# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the description of a model that is not loaded yet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """One repeating layer (`blk.N.`)."""

    index: int
    tensors: int
    bytes: int | None
    heads: int | None = None
    kv_heads: int | None = None
    feed_forward_length: int | None = None


@dataclass(frozen=True)
class Shape:
    """The numbers of a model; None if the file does not give one or if the layers differ."""

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
    """The share of one tensor type in the weights."""

    type: str
    tensors: int
    parameters: int
    bytes: int | None


@dataclass(frozen=True)
class Weights:
    """The bytes of the weights by place.

    `bytes` is the sum of layers, input, output and shared. Shared weights are small and go to each device that has
    layers. With `tied_embeddings` there is no matrix for the output: if the model has one, it uses the embedding
    (`embedding_bytes`), and llama.cpp keeps a second copy of it where the output is.
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
class Model:
    """The description of a model that is not loaded yet."""

    architecture: str | None
    name: str | None
    file_type: str
    parameters: int
    shape: Shape
    weights: Weights
    layers: list[Layer]
    notes: list[str]
