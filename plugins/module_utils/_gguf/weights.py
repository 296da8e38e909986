# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the bytes of the weights by place and type, and the file type."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from .described import TypeShare, Weights
from .ggml_types import FILE_TYPES, GUESSED, GUESSED_FILE_TYPES, GUESSED_PREFIX, UNKNOWN_FILE_TYPE
from .header import Header, Tensor
from .numbers import natural, total

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


# The places of tensors outside of the layers (src/llama-arch.cpp, LLM_TENSOR_INFOS): INPUT tensors go with the input,
# which stays in the master's memory. SHARED tensors go with layers, to each device. All others go with the output.
INPUT = frozenset("token_embd position_embd token_types per_layer_token_embd".split())
SHARED = frozenset(
    """
    per_layer_model_proj per_layer_proj_norm rope_factors_long rope_factors_short rope_freqs token_embd_norm
    """.split()
)
# The layer of a tensor. Models with an encoder have two layers of each number, which go to the same place.
_LAYER = re.compile(r"^(?:enc\.|dec\.)?blk\.(\d{1,3})\.")


class Repeating(NamedTuple):
    """The tensors of a repeating layer."""

    tensors: int
    bytes: int | None


def repeating_of(tensors: Iterable[Tensor]) -> dict[int, Repeating]:
    found: dict[int, Repeating] = {}
    for tensor in tensors:
        match = _LAYER.match(tensor.name)
        if match:
            index = int(match.group(1))
            before = found.get(index, Repeating(0, 0))
            found[index] = Repeating(before.tensors + 1, total((before.bytes, tensor.bytes)))
    return found


def place(name: str) -> str:
    """Return the place of a tensor: layers, input, shared or output."""
    if _LAYER.match(name):
        return "layers"
    kind = name.partition(".")[0]
    return "input" if kind in INPUT else "shared" if kind in SHARED else "output"


def weights_of(tensors: Sequence[Tensor]) -> Weights:
    types: dict[str, list[Tensor]] = {}
    places: dict[str, list[Tensor]] = {"layers": [], "input": [], "output": [], "shared": []}
    for tensor in tensors:
        types.setdefault(tensor.type_name, []).append(tensor)
        places[place(tensor.name)].append(tensor)
    shares = [
        TypeShare(name, len(of), sum(tensor.elements for tensor in of), total(tensor.bytes for tensor in of))
        for name, of in types.items()
    ]
    embedding = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)
    has_output = any(tensor.name == "output.weight" for tensor in tensors)
    tied = embedding is not None and not has_output
    return Weights(
        bytes=total(tensor.bytes for tensor in tensors),
        layers_bytes=total(tensor.bytes for tensor in places["layers"]),
        input_bytes=total(tensor.bytes for tensor in places["input"]),
        output_bytes=total(tensor.bytes for tensor in places["output"]),
        shared_bytes=total(tensor.bytes for tensor in places["shared"]),
        embedding_bytes=embedding.bytes if embedding else None,
        tied_embeddings=tied,
        types=sorted(shares, key=lambda share: (-(share.bytes or 0), share.type)),
    )


def _upstream_order(tensor: Tensor) -> tuple[int, bytes]:
    """Return a sort key for the order of src/llama-model-loader.h (weight_name_comparer)."""
    match = re.match(r"blk\.(\d{1,9})\.", tensor.name)
    return int(match.group(1)) if match else -1, tensor.name.encode()


def file_type_of(header: Header, tensors: Sequence[Tensor]) -> str:
    said = header.metadata.get("general.file_type")
    number = None if said is None else natural(said)
    if number is not None:
        prefix = GUESSED_PREFIX if number & GUESSED else ""
        return prefix + FILE_TYPES.get(number & ~GUESSED, UNKNOWN_FILE_TYPE)
    # Upstream counts the types of the tensors by layer and name, and takes the type that first has the highest count.
    counts: Counter[str] = Counter()
    most, highest = "f32", 0
    for tensor in sorted(tensors, key=_upstream_order):
        counts[tensor.type_name] += 1
        if counts[tensor.type_name] > highest:
            most, highest = tensor.type_name, counts[tensor.type_name]
    return GUESSED_PREFIX + FILE_TYPES[GUESSED_FILE_TYPES.get(most, 0)]
