# SPDX-License-Identifier: GPL-3.0-or-later
"""Write small models of random weights in the types that kernels are made for, dense or of experts.

Unlike the zeros of synthetic_models.py they compute something, so that logits can be compared. Types can be mixed, as
in people's models, or all be the same.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from random_model import add_shape, add_tokenizer, vocabulary

Type = gguf.GGMLQuantizationType
# The offsets in a block of the scales that are 16-bit floats, each with its ratio to the first one. The ratios make the
# weights' mean about 0.
SCALES: dict[Type, tuple[tuple[int, float], ...]] = {
    Type.Q4_0: ((0, 1),),
    Type.Q8_0: ((0, 1),),
    Type.IQ4_NL: ((0, 1),),
    Type.Q2_K: ((80, 1), (82, 1.5)),
    Type.Q4_K: ((0, 1), (2, 7.5)),
    Type.Q5_K: ((0, 1), (2, 15.5)),
    Type.Q6_K: ((208, 1),),
    Type.MXFP4: (),
}
TYPES = tuple(SCALES)
# Rows of 256 numbers are whole blocks of all types.
WIDTH, LAYERS, CONTEXT = 256, 2, 1024


def random_blocks(rng: np.random.Generator, kind: Type, rows: int, columns: int) -> np.ndarray:
    """Return a weight of random blocks with the deviation of a usual initialisation."""
    size, width = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, size=(rows * columns // size, width), dtype=np.uint8)
    wanted = 1 / np.sqrt(columns)

    def put(scale: float) -> None:
        if kind == Type.MXFP4:
            blocks[:, 0] = 128 + round(np.log2(scale))
        for at, share in SCALES[kind]:
            blocks[:, at : at + 2] = np.frombuffer(np.float16(scale * share).tobytes(), dtype=np.uint8)

    put(1)
    put(wanted / gguf.dequantize(blocks[:256], kind).std())
    return blocks.reshape(rows, -1)


def write_quantised(
    path: Path,
    types: tuple[Type, ...],
    *,
    experts: int = 0,
    tied: bool = False,
    layers: int = LAYERS,
    width: int = WIDTH,
    seed: int = 1,
) -> tuple[Path, int]:
    """Write a model whose weights are of these types in turn; return its file and the number of its tokens."""
    rng = np.random.default_rng(seed)
    tokens, scores, kinds = vocabulary()
    if tied:
        # Without these, the number of rows is one that kernels do not interleave, and the weight stays plain.
        for number in range(-len(tokens) % 32):
            tokens.append(b"<unused%d>" % number)
            scores.append(0.0)
            kinds.append(int(gguf.TokenType.UNUSED))
    feed_forward, heads = width * 2, width // 64
    heads_kv = max(1, heads // 2)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random weights of several types")
    add_shape(writer, CONTEXT, width, layers, feed_forward, heads, heads_kv, len(tokens))
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
    add_tokenizer(writer, tokens, scores, kinds)
    written = 0

    def weight(name: str, rows: int, columns: int, kind: Type | None = None) -> None:
        nonlocal written
        kind = kind or types[written % len(types)]
        written += 1
        many = experts if "_exps" in name else 1
        data = random_blocks(rng, kind, many * rows, columns)
        writer.add_tensor(name, data.reshape(many, rows, -1) if many > 1 else data, raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(width, dtype=np.float32))

    weight("token_embd.weight", len(tokens), width, types[0] if tied else Type.Q8_0)
    norm("output_norm.weight")
    if not tied:
        weight("output.weight", len(tokens), width)
    for layer in range(layers):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm.weight")
        weight(f"{block}.attn_q.weight", width, width)
        weight(f"{block}.attn_k.weight", heads_kv * 64, width)
        weight(f"{block}.attn_v.weight", heads_kv * 64, width)
        weight(f"{block}.attn_output.weight", width, width)
        norm(f"{block}.ffn_norm.weight")
        if experts:
            writer.add_tensor(
                f"{block}.ffn_gate_inp.weight", rng.standard_normal((experts, width), dtype=np.float32) / 16
            )
        suffix = "_exps" if experts else ""
        weight(f"{block}.ffn_gate{suffix}.weight", feed_forward, width)
        weight(f"{block}.ffn_up{suffix}.weight", feed_forward, width)
        weight(f"{block}.ffn_down{suffix}.weight", width, feed_forward)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, len(tokens)
