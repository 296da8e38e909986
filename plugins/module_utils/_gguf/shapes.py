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
_MOSTLY_Q4_0, _MXFP4_MOE = 2, 38  # LLAMA_FTYPE_MOSTLY_Q4_0, LLAMA_FTYPE_MOSTLY_MXFP4_MOE


@dataclass(frozen=True)
class Shape:
    """The shape of a model; `feed_forward` is that of an expert if there are experts.

    The first `dense` layers have no experts, and a feed-forward network of `dense_feed_forward`.
    """

    name: str
    layers: int
    width: int
    feed_forward: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool = False
    architecture: str = "llama"
    head: int = 128
    experts: int = 0
    used: int = 8
    shared: int = 0
    dense: int = 0
    dense_feed_forward: int = 0


SHAPES = (
    Shape("3B", 28, 3072, 8192, 24, 8, 128256, tied=True),
    Shape("8B", 32, 4096, 14336, 32, 8, 128256),
    Shape("14B", 48, 5120, 13824, 40, 8, 152064),
    Shape("32B", 64, 5120, 27648, 40, 8, 152064),
    Shape("70B", 80, 8192, 28672, 64, 8, 128256),
    Shape("gpt-oss-20b", 24, 2880, 2880, 64, 8, 201088, False, "gpt-oss", 64, 32, 4),
    Shape("Qwen3-30B-A3B", 48, 2048, 768, 32, 4, 151936, False, "qwen3moe", 128, 128),
    Shape("GLM-4.5-Air", 46, 4096, 1408, 96, 8, 151552, False, "glm4moe", 128, 128, 8, 1, 1, 10944),
    Shape("gpt-oss-120b", 36, 2880, 2880, 64, 8, 201088, False, "gpt-oss", 64, 128, 4),
    Shape("Qwen3-235B-A22B", 94, 4096, 1536, 64, 4, 151936, False, "qwen3moe", 128, 128),
    Shape("DeepSeek-V3", 61, 7168, 2048, 128, 1, 129280, False, "deepseek2", 192, 256, 8, 1, 3, 18432),
    Shape("Kimi-K2", 61, 7168, 2048, 64, 1, 163840, False, "deepseek2", 192, 384, 8, 1, 1, 18432),
)
# Latent attention, as DeepSeek V3 and its relatives have it: ranks of queries and of the cache, and the part of a head
# that is rotated.
_Q_RANK, _KV_RANK, _ROTATED, _VALUE = 1536, 512, 64, 128


def _attention(s: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes of the matrices and vectors of a layer's attention."""
    if s.architecture == "deepseek2":
        yield "attn_q_a", (s.width, _Q_RANK)
        yield "attn_q_a_norm", (_Q_RANK,)
        yield "attn_q_b", (_Q_RANK, s.heads * s.head)
        yield "attn_kv_a_mqa", (s.width, _KV_RANK + _ROTATED)
        yield "attn_kv_a_norm", (_KV_RANK,)
        yield "attn_k_b", (s.head - _ROTATED, _KV_RANK, s.heads)
        yield "attn_v_b", (_KV_RANK, _VALUE, s.heads)
        yield "attn_output", (s.heads * _VALUE, s.width)
        return
    for name, heads in (("q", s.heads), ("k", s.kv_heads), ("v", s.kv_heads)):
        yield f"attn_{name}", (s.width, heads * s.head)
        if s.architecture in ("glm4moe", "gpt-oss"):
            yield f"attn_{name}.bias", (heads * s.head,)
    yield "attn_output", (s.heads * s.head, s.width)
    if s.architecture == "gpt-oss":
        yield "attn_output.bias", (s.width,)
        yield "attn_sinks", (s.heads,)
    if s.architecture in ("qwen3moe", "glm4moe"):
        yield "attn_q_norm", (s.head,)
        yield "attn_k_norm", (s.head,)


def _feed_forward(s: Shape, *, experts: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes of the rest of a layer."""
    after = ("glm4moe", "gpt-oss")
    yield ("post_attention_norm" if s.architecture in after else "ffn_norm"), (s.width,)
    inner, kind = (s.feed_forward, "_exps") if experts else (s.dense_feed_forward or s.feed_forward, "")
    many = (s.experts,) if experts else ()
    for name in ("gate", "up"):
        yield f"ffn_{name}{kind}", (s.width, inner, *many)
    yield f"ffn_down{kind}", (inner, s.width, *many)
    if not experts:
        return
    yield "ffn_gate_inp", (s.width, s.experts)
    if s.architecture in ("glm4moe", "deepseek2"):
        yield "exp_probs_b.bias", (s.experts,)
    if s.architecture == "gpt-oss":
        yield "ffn_gate_inp.bias", (s.experts,)
        for name, size in (("gate", inner), ("up", inner), ("down", s.width)):
            yield f"ffn_{name}_exps.bias", (size, s.experts)
    if s.shared:
        yield "ffn_gate_shexp", (s.width, inner * s.shared)
        yield "ffn_up_shexp", (s.width, inner * s.shared)
        yield "ffn_down_shexp", (inner * s.shared, s.width)


def _tensors(s: Shape) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Yield name, shape and type of the tensors: Q4_0 as upstream's llama-quantize makes it, or gpt-oss's MXFP4."""
    most = "q8_0" if s.architecture == "gpt-oss" else "q4_0"

    def of(name: str, sizes: tuple[int, ...], kind: str = "") -> tuple[str, tuple[int, ...], int]:
        plain = len(sizes) == 1 or name.endswith((".bias", "ffn_gate_inp"))
        kind = kind or ("f32" if plain else "mxfp4" if "_exps" in name and most == "q8_0" else most)
        return name if name.endswith(".bias") else f"{name}.weight", sizes, _TYPES[kind]

    output = "q8_0" if s.architecture == "gpt-oss" else "q6_K"
    yield of("token_embd", (s.width, s.vocabulary), output if s.tied else most)
    yield of("output_norm", (s.width,))
    if not s.tied:
        yield of("output", (s.width, s.vocabulary), output)
    for layer in range(s.layers):
        block = f"blk.{layer}."
        yield of(f"{block}attn_norm", (s.width,))
        for name, sizes in (*_attention(s), *_feed_forward(s, experts=bool(s.experts) and layer >= s.dense)):
            yield of(block + name, sizes)


def _metadata(s: Shape) -> dict[str, str | int | float]:
    numbers: dict[str, int | float] = {
        "block_count": s.layers,
        "context_length": 32768,
        "embedding_length": s.width,
        "feed_forward_length": s.dense_feed_forward or s.feed_forward,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.kv_heads,
        "attention.key_length": s.head,
        "attention.value_length": s.head,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": min(s.head, 64 if s.experts and s.architecture != "qwen3moe" else s.head),
        "vocab_size": s.vocabulary,
    }
    if s.experts:
        numbers.update(expert_count=s.experts, expert_used_count=s.used, expert_feed_forward_length=s.feed_forward)
    if s.shared:
        numbers.update(expert_shared_count=s.shared, leading_dense_block_count=s.dense)
    if s.architecture == "gpt-oss":
        numbers["attention.sliding_window"] = 128
    if s.architecture == "deepseek2":
        numbers.update(
            {
                "attention.key_length": _KV_RANK + _ROTATED,
                "attention.value_length": _KV_RANK,
                "attention.key_length_mla": s.head,
                "attention.value_length_mla": _VALUE,
                "attention.q_lora_rank": _Q_RANK,
                "attention.kv_lora_rank": _KV_RANK,
                "expert_gating_func": 2,
            }
        )
    return {
        "general.architecture": s.architecture,
        "general.name": s.name,
        "general.file_type": _MXFP4_MOE if s.architecture == "gpt-oss" else _MOSTLY_Q4_0,
        # A plan takes no tokenizer.
        "tokenizer.ggml.model": "no_vocab",
        **{f"{s.architecture}.{name}": number for name, number in numbers.items()},
    }


def bytes_a_token(shape: Shape) -> int:
    """Return the bytes of weights that one token reads: all but those of experts that it does not use."""
    found = 0
    for name, sizes, number in _tensors(shape):
        size = prod(sizes) // TENSOR_TYPES[number].block * TENSOR_TYPES[number].block_bytes
        if "_exps" in name:
            size = size * shape.used // shape.experts
        # Of the table of embeddings it reads one row.
        found += size if name != "token_embd.weight" or shape.tied else 0
    return found


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: str | float) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    return struct.pack("<II", 4, value) if isinstance(value, int) else struct.pack("<If", 6, value)


def encoded(shape: Shape) -> tuple[bytes, int]:
    """Return the header of a GGUF file of this shape in Q4_0, and the size of the whole file in bytes."""
    metadata, entries, offset = _metadata(shape), [], 0
    for name, sizes, number in _tensors(shape):
        entries.append(
            _text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, number, offset),
        )
        size = prod(sizes) // TENSOR_TYPES[number].block * TENSOR_TYPES[number].block_bytes
        offset += -(-size // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
    pairs = [_text(key) + _value(value) for key, value in metadata.items()]
    head = MAGIC + struct.pack("<IQQ", VERSIONS[-1], len(entries), len(pairs)) + b"".join(pairs + entries)
    return head, -(-len(head) // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT + offset
