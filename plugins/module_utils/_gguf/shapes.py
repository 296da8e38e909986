# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the shapes of common models, and the header of a GGUF file of each, for a plan before anybody has the file.

docs/how-to/size.md lists them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from typing import Iterator

from .ggml_types import TENSOR_TYPES
from .header import DEFAULT_ALIGNMENT, MAGIC, VERSIONS

_TYPES = {kind.name: number for number, kind in TENSOR_TYPES.items()}
_MOSTLY_Q4_0 = 2  # LLAMA_FTYPE_MOSTLY_Q4_0


@dataclass(frozen=True)
class Shape:
    """The shape of a model of the architecture llama, or of qwen3moe if it has experts; heads are of 128."""

    name: str
    layers: int
    width: int
    feed_forward: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool = False
    experts: int = 0

    @property
    def typed(self) -> str:
        """The name as a user types it, without what comes after a comma."""
        return self.name.partition(",")[0]


SHAPES = (
    Shape("3B", 28, 3072, 8192, 24, 8, 128256, tied=True),
    Shape("8B", 32, 4096, 14336, 32, 8, 128256),
    Shape("14B", 48, 5120, 13824, 40, 8, 152064),
    Shape("30B, 128 experts", 48, 2048, 768, 32, 4, 151936, experts=128),
    Shape("32B", 64, 5120, 27648, 40, 8, 152064),
    Shape("70B", 80, 8192, 28672, 64, 8, 128256),
)


def _tensors(s: Shape) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Yield name, shape and type of the tensors that upstream's llama-quantize makes for Q4_0."""

    def of(name: str, *sizes: int, kind: str = "") -> tuple[str, tuple[int, ...], int]:
        return f"{name}.weight", sizes, _TYPES[kind or ("q4_0" if len(sizes) > 1 else "f32")]

    yield of("token_embd", s.width, s.vocabulary, kind="q6_K" if s.tied else "q4_0")
    yield of("output_norm", s.width)
    if not s.tied:
        yield of("output", s.width, s.vocabulary, kind="q6_K")
    names, many = ("_exps", (s.experts,)) if s.experts else ("", ())
    for layer in range(s.layers):
        block = f"blk.{layer}."
        yield of(block + "attn_norm", s.width)
        yield of(block + "attn_q", s.width, s.heads * 128)
        yield of(block + "attn_k", s.width, s.kv_heads * 128)
        yield of(block + "attn_v", s.width, s.kv_heads * 128)
        yield of(block + "attn_output", s.heads * 128, s.width)
        yield of(block + "ffn_norm", s.width)
        if s.experts:
            yield of(block + "attn_q_norm", 128)
            yield of(block + "attn_k_norm", 128)
            yield of(block + "ffn_gate_inp", s.width, s.experts, kind="f32")
        yield of(f"{block}ffn_gate{names}", s.width, s.feed_forward, *many)
        yield of(f"{block}ffn_up{names}", s.width, s.feed_forward, *many)
        yield of(f"{block}ffn_down{names}", s.feed_forward, s.width, *many)


def _metadata(s: Shape) -> dict[str, str | int]:
    architecture = "qwen3moe" if s.experts else "llama"
    numbers = {
        "block_count": s.layers,
        "context_length": 32768,
        "embedding_length": s.width,
        "feed_forward_length": s.feed_forward,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.kv_heads,
        "attention.key_length": 128,
        "attention.value_length": 128,
        "vocab_size": s.vocabulary,
    }
    if s.experts:
        numbers.update(expert_count=s.experts, expert_used_count=8, expert_feed_forward_length=s.feed_forward)
    return {
        "general.architecture": architecture,
        "general.name": s.name,
        "general.file_type": _MOSTLY_Q4_0,
        **{f"{architecture}.{name}": number for name, number in numbers.items()},
    }


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def encoded(shape: Shape) -> tuple[bytes, int]:
    """Return the header of a GGUF file of this shape in Q4_0, and the size of the whole file in bytes."""
    metadata, entries, offset = _metadata(shape), [], 0
    for name, sizes, number in _tensors(shape):
        entries.append(
            _text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, number, offset),
        )
        size = prod(sizes) // TENSOR_TYPES[number].block * TENSOR_TYPES[number].block_bytes
        offset += -(-size // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
    pairs = [
        _text(key) + (struct.pack("<II", 4, value) if isinstance(value, int) else struct.pack("<I", 8) + _text(value))
        for key, value in metadata.items()
    ]
    head = MAGIC + struct.pack("<IQQ", VERSIONS[-1], len(entries), len(pairs)) + b"".join(pairs + entries)
    return head, -(-len(head) // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT + offset
