# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of docs/how-to/size.md: the planner's figures for models of some shapes, before anybody has such a model.

A model here is only its header, because the planner reads nothing else of a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.ggml_types import TENSOR_TYPES
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import Header, Tensor
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.inputs import Cluster, Load, Worker
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.result import plan

GIB, MIB = 1 << 30, 1 << 20
TYPES = {kind.name: number for number, kind in TENSOR_TYPES.items()}
# The load is an API with the defaults of role llama_server, and the reserve is that of module split_plan_info.
LOAD = Load(ctx_size=4 * 4096, parallel=4, master_other_bytes=1024 * MIB)
RESERVE_BYTES, RESERVE_PERCENT = 256 * MIB, 5.0
COUNTS, HOSTS_GIB = (1, 2, 3, 4, 8), (7, 15, 31, 63)
PLENTY = 1024 * GIB


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


SHAPES = (
    Shape("3B", 28, 3072, 8192, 24, 8, 128256, tied=True),
    Shape("8B", 32, 4096, 14336, 32, 8, 128256),
    Shape("14B", 48, 5120, 13824, 40, 8, 152064),
    Shape("30B, 128 experts", 48, 2048, 768, 32, 4, 151936, experts=128),
    Shape("32B", 64, 5120, 27648, 40, 8, 152064),
    Shape("70B", 80, 8192, 28672, 64, 8, 128256),
)


def tensors(shape: Shape) -> list[Tensor]:
    """Return the tensors that upstream's llama-quantize makes for Q4_0: Q6_K for the output, Q4_0, and F32."""
    found: list[Tensor] = []

    def add(name: str, *sizes: int, kind: str = "") -> None:
        number = TYPES[kind or ("q4_0" if len(sizes) > 1 else "f32")]
        elements = prod(sizes)
        size = elements // TENSOR_TYPES[number].block * TENSOR_TYPES[number].block_bytes
        found.append(Tensor(f"{name}.weight", sizes, number, 0, elements, size))

    s = shape
    add("token_embd", s.width, s.vocabulary, kind="q6_K" if s.tied else "q4_0")
    add("output_norm", s.width)
    if not s.tied:
        add("output", s.width, s.vocabulary, kind="q6_K")
    for layer in range(s.layers):
        block = f"blk.{layer}."
        add(block + "attn_norm", s.width)
        add(block + "attn_q", s.width, s.heads * 128)
        add(block + "attn_k", s.width, s.kv_heads * 128)
        add(block + "attn_v", s.width, s.kv_heads * 128)
        add(block + "attn_output", s.heads * 128, s.width)
        add(block + "ffn_norm", s.width)
        if s.experts:
            add(block + "attn_q_norm", 128)
            add(block + "attn_k_norm", 128)
            add(block + "ffn_gate_inp", s.width, s.experts, kind="f32")
        names, many = ("_exps", (s.experts,)) if s.experts else ("", ())
        add(f"{block}ffn_gate{names}", s.width, s.feed_forward, *many)
        add(f"{block}ffn_up{names}", s.width, s.feed_forward, *many)
        add(f"{block}ffn_down{names}", s.feed_forward, s.width, *many)
    return found


def header(shape: Shape) -> Header:
    """Return the header of a GGUF file of this shape."""
    architecture = "qwen3moe" if shape.experts else "llama"
    numbers = {
        "block_count": shape.layers,
        "context_length": 32768,
        "embedding_length": shape.width,
        "feed_forward_length": shape.feed_forward,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": 128,
        "attention.value_length": 128,
        "vocab_size": shape.vocabulary,
    }
    if shape.experts:
        numbers |= {
            "expert_count": shape.experts,
            "expert_used_count": 8,
            "expert_feed_forward_length": shape.feed_forward,
        }
    metadata = {f"{architecture}.{name}": number for name, number in numbers.items()}
    of_model = tuple(tensors(shape))
    return Header(3, len(of_model), None, {"general.architecture": architecture, **metadata}, tensors=of_model)


def fits(of: Header, workers: int, each_bytes: int, master_bytes: int = PLENTY) -> bool:
    """Return whether an API fits on so many equal workers with so much memory available each."""
    hosts = tuple(Worker(f"worker{number}:50052", each_bytes) for number in range(workers))
    result = plan(
        [of], LOAD, Cluster(hosts, RESERVE_BYTES, RESERVE_PERCENT, master_memory_available_bytes=master_bytes)
    )
    assert result["kv_known"]
    assert result["compute_known"]
    return bool(result["fits"])


def least_tenths(of: Header, workers: int) -> int:
    """Return the least memory that each worker must have available, in tenths of a GiB."""
    low, high = 0, 10 * 64
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(of, workers, middle * GIB // 10) else (middle, high)
    return high


def least_master_tenths(of: Header) -> int:
    """Return the least memory that the master must have available, in tenths of a GiB, if two workers have plenty."""
    tenths = 10
    while not fits(of, 2, PLENTY, tenths * GIB // 10):
        tenths += 1
    return tenths


def by_memory() -> list[str]:
    """Return the table's rows: model, file, the memory that each worker needs for so many workers, and the master's."""
    rows = []
    for shape in SHAPES:
        of = header(shape)
        size = sum(tensor.bytes or 0 for tensor in of.tensors) / 1e9
        cells = [f"{least_tenths(of, count) / 10:.1f}" for count in COUNTS]
        rows.append(f"| {shape.name} | {size:.1f} GB | {' | '.join(cells)} | {least_master_tenths(of) / 10:.1f} |")
    return rows


def by_hosts() -> list[str]:
    """Return the table's rows: the number of equal workers that each model needs, by the memory available on each."""
    rows = []
    for shape in SHAPES:
        of = header(shape)
        cells = [next((str(n) for n in range(1, 16) if fits(of, n, host * GIB)), "more than 15") for host in HOSTS_GIB]
        rows.append(f"| {shape.name} | {' | '.join(cells)} |")
    return rows


def shapes() -> list[str]:
    """Return the rows of the table of shapes."""
    return [
        f"| {s.name} | {s.layers} | {s.width} | {s.feed_forward}{' for each expert' if s.experts else ''} | {s.heads} "
        f"| {s.kv_heads} | {s.vocabulary} |"
        for s in SHAPES
    ]
