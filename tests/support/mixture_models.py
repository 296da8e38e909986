# SPDX-License-Identifier: GPL-3.0-or-later
"""Write models with the layers of well-known mixtures of experts, but few of them, and with random weights.

A layer has the real number and size of experts, heads and states, and is quantised as the files that people use. So a
token costs per layer what it costs with the real model. The text is noise. A router of random weights spreads the
tokens over the experts about evenly.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import gguf
import numpy as np

from random_model import add_tokenizer, random_q8_0, vocabulary
from support.synthetic_models import RMS, Numbers, Tensors, add_key, file_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TYPE = gguf.GGMLQuantizationType
# Standard deviations of the random values below, as multiples of a block's scale.
Q4_K_DEVIATION, MXFP4_DEVIATION = 69.0, 2.9


class Mixture(NamedTuple):
    """The architecture, the number of layers that are written, keys, the tensors of a layer, and the experts' type."""

    architecture: str
    layers: int
    keys: Numbers
    tensors: Callable[[int, Numbers], Tensors]
    experts: gguf.GGMLQuantizationType = TYPE.Q4_K


def _attention(k: Numbers, *, bias: bool = False) -> Tensors:
    width, heads, kv, size = (
        k[name]
        for name in ("embedding_length", "attention.head_count", "attention.head_count_kv", "attention.key_length")
    )
    kv = max(kv) if isinstance(kv, list) else kv
    rows = {"attn_q": heads * size, "attn_k": kv * size, "attn_v": kv * size}
    found: Tensors = {"attn_norm": (width,), **{name: (count, width) for name, count in rows.items()}}
    found["attn_output"] = (width, heads * size)
    if bias:
        found |= {f"{name}.bias": (count,) for name, count in {**rows, "attn_output": width}.items()}
    return found


def _experts(k: Numbers, *, shared: int = 0) -> Tensors:
    width, count, size = k["embedding_length"], k["expert_count"], k["expert_feed_forward_length"]
    found: Tensors = {
        "ffn_gate_inp": (count, width),
        "ffn_gate_exps": (count, size, width),
        "ffn_up_exps": (count, size, width),
        "ffn_down_exps": (count, width, size),
    }
    if shared:
        found |= {
            "ffn_gate_shexp": (shared, width),
            "ffn_up_shexp": (shared, width),
            "ffn_down_shexp": (width, shared),
        }
    return found


def _qwen3moe(_layer: int, k: Numbers) -> Tensors:
    size, width = k["attention.key_length"], k["embedding_length"]
    norms: Tensors = {"attn_q_norm": (size,), "attn_k_norm": (size,), "ffn_norm": (width,)}
    return {**_attention(k), **norms, **_experts(k)}


def _gpt_oss(_layer: int, k: Numbers) -> Tensors:
    width, count, size = k["embedding_length"], k["expert_count"], k["expert_feed_forward_length"]
    return {
        **_attention(k, bias=True),
        "post_attention_norm": (width,),
        "attn_sinks": (k["attention.head_count"],),
        **_experts(k),
        "ffn_gate_inp.bias": (count,),
        "ffn_gate_exps.bias": (count, size),
        "ffn_up_exps.bias": (count, size),
        "ffn_down_exps.bias": (count, width),
    }


def _deepseek2(layer: int, k: Numbers) -> Tensors:
    width, heads, latent = k["embedding_length"], k["attention.head_count"], k["attention.kv_lora_rank"]
    rope, value = k["rope.dimension_count"], k["attention.value_length_mla"]
    key, query = k["attention.key_length_mla"], k["attention.q_lora_rank"]
    found: Tensors = {
        "attn_norm": (width,),
        "attn_q_a": (query, width),
        "attn_q_a_norm": (query,),
        "attn_q_b": (heads * key, query),
        "attn_kv_a_norm": (latent,),
        "attn_kv_a_mqa": (latent + rope, width),
        "attn_k_b": (heads, latent, key - rope),
        "attn_v_b": (heads, value, latent),
        "attn_output": (width, heads * value),
        "ffn_norm": (width,),
    }
    if layer < k["leading_dense_block_count"]:
        size = k["feed_forward_length"]
        return {**found, "ffn_gate": (size, width), "ffn_up": (size, width), "ffn_down": (width, size)}
    return {**found, **_experts(k, shared=k["expert_shared_count"] * k["expert_feed_forward_length"])}


def _granite_hybrid(layer: int, k: Numbers) -> Tensors:
    width, inner, heads = k["embedding_length"], k["ssm.inner_size"], k["ssm.time_step_rank"]
    convolved = inner + 2 * k["ssm.group_count"] * k["ssm.state_size"]
    mamba: Tensors = {
        "attn_norm": (width,),
        "ssm_in": (inner + convolved + heads, width),
        "ssm_conv1d": (convolved, k["ssm.conv_kernel"]),
        "ssm_conv1d.bias": (convolved,),
        "ssm_dt.bias": (heads,),
        "ssm_a.": (heads, 1),
        "ssm_d.": (heads, 1),
        "ssm_norm": (k["ssm.group_count"], inner // k["ssm.group_count"]),
        "ssm_out": (width, inner),
    }
    mixer = _attention(k) if k["attention.head_count_kv"][layer] else mamba
    experts = _experts(
        {**k, "expert_feed_forward_length": k["feed_forward_length"]}, shared=k["expert_shared_feed_forward_length"]
    )
    return {**mixer, "ffn_norm": (width,), **experts}


# Numbers from the models' public configurations.
MIXTURES = {
    "qwen3moe": Mixture(
        "qwen3moe",
        4,
        {
            "embedding_length": 2048,
            "feed_forward_length": 6144,
            "attention.head_count": 32,
            "attention.head_count_kv": 4,
            "attention.key_length": 128,
            "attention.value_length": 128,
            "rope.dimension_count": 128,
            "expert_count": 128,
            "expert_used_count": 8,
            "expert_feed_forward_length": 768,
        },
        _qwen3moe,
    ),
    "gpt-oss": Mixture(
        "gpt-oss",
        4,
        {
            "embedding_length": 2880,
            "feed_forward_length": 2880,
            "attention.head_count": 64,
            "attention.head_count_kv": 8,
            "attention.key_length": 64,
            "attention.value_length": 64,
            "attention.sliding_window": 128,
            "rope.dimension_count": 64,
            "expert_count": 32,
            "expert_used_count": 4,
            "expert_feed_forward_length": 2880,
        },
        _gpt_oss,
        TYPE.MXFP4,
    ),
    "deepseek2": Mixture(
        "deepseek2",
        5,
        {
            "embedding_length": 2048,
            "feed_forward_length": 10944,
            "attention.head_count": 16,
            "attention.head_count_kv": 1,
            "attention.key_length": 576,
            "attention.value_length": 512,
            "attention.kv_lora_rank": 512,
            "attention.q_lora_rank": 1536,
            "attention.key_length_mla": 192,
            "attention.value_length_mla": 128,
            "rope.dimension_count": 64,
            "leading_dense_block_count": 1,
            "expert_count": 64,
            "expert_used_count": 6,
            "expert_shared_count": 2,
            "expert_feed_forward_length": 1408,
            "expert_weights_scale": 1.0,
        },
        _deepseek2,
    ),
    "granitehybrid": Mixture(
        "granitehybrid",
        10,
        {
            "embedding_length": 1536,
            "feed_forward_length": 512,
            "attention.head_count": 12,
            "attention.head_count_kv": [0, 0, 0, 0, 0, 4, 0, 0, 0, 0],
            "attention.key_length": 128,
            "attention.value_length": 128,
            "rope.dimension_count": 128,
            "expert_count": 64,
            "expert_used_count": 6,
            "expert_shared_feed_forward_length": 1024,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 3072,
            "ssm.state_size": 128,
            "ssm.time_step_rank": 48,
            "ssm.group_count": 1,
        },
        _granite_hybrid,
    ),
}


def _q4_k(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return a (rows, columns) weight as Q4_K blocks of 256: two float16, eight scales and minima, 128 bytes of values.

    All scales and minima are 15, so a value is 15 * (scale * nibble - minimum), which is 0 on average.
    """
    scale = 1.0 / (Q4_K_DEVIATION * np.sqrt(columns))
    blocks = np.empty((rows, columns // 256, 144), np.uint8)
    blocks[:, :, :4] = np.array([scale, 7.5 * scale], np.float16).view(np.uint8)
    blocks[:, :, 4:12], blocks[:, :, 12:16] = 15, 255
    blocks[:, :, 16:] = rng.integers(0, 256, size=(rows, columns // 256, 128), dtype=np.uint8)
    return blocks.reshape(rows, -1)


def _mxfp4(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return a (rows, columns) weight as MXFP4 blocks of 32: an exponent, and 16 bytes of values."""
    blocks = np.empty((rows, columns // 32, 17), np.uint8)
    blocks[:, :, 0] = 127 + round(float(np.log2(1.0 / (MXFP4_DEVIATION * np.sqrt(columns)))))
    blocks[:, :, 1:] = rng.integers(0, 256, size=(rows, columns // 32, 16), dtype=np.uint8)
    return blocks.reshape(rows, -1)


def _weight(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], experts: gguf.GGMLQuantizationType
) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    """Return the values of a tensor in the type that it usually has in a file of four bits."""
    plain = ("norm", "bias", "gate_inp", "ssm_a", "ssm_d", "ssm_conv", "sinks")
    if len(shape) == 1 or any(part in name for part in plain):
        values = np.ones(shape) if "norm" in name else rng.standard_normal(shape) / np.sqrt(shape[-1])
        return (-abs(values) if name.startswith("ssm_a") else values).astype(np.float32), TYPE.F32
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    if "_exps" in name and experts == TYPE.MXFP4:
        data, kind = _mxfp4(rng, rows, columns), TYPE.MXFP4
    elif columns % 256 == 0 and "_b" not in name:
        data, kind = _q4_k(rng, rows, columns), TYPE.Q4_K
    else:
        data, kind = random_q8_0(rng, rows, columns), TYPE.Q8_0
    return data.reshape(*shape[:-1], -1), kind


def write_mixture(path: Path, name: str, context: int = 16384) -> Path:
    """Write the model of this name (a key of MIXTURES) to `path`, which appears only when it is complete."""
    mixture, rng = MIXTURES[name], np.random.default_rng(1)
    tokens, scores, types = vocabulary()
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    writer = gguf.GGUFWriter(partial, mixture.architecture)
    writer.add_name(f"random weights in layers of {name}")
    for key, value in {"block_count": mixture.layers, "context_length": context, RMS: 1e-6, **mixture.keys}.items():
        add_key(writer, f"{mixture.architecture}.{key}", value)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    add_tokenizer(writer, tokens, scores, types)
    width = mixture.keys["embedding_length"]
    all_tensors = {"token_embd": (len(tokens), width), "output_norm": (width,), "output": (len(tokens), width)}
    for layer in range(mixture.layers):
        all_tensors |= {f"blk.{layer}.{key}": shape for key, shape in mixture.tensors(layer, mixture.keys).items()}
    for tensor, shape in all_tensors.items():
        data, kind = _weight(rng, tensor.rpartition("blk.")[2].partition(".")[2] or tensor, shape, mixture.experts)
        writer.add_tensor(file_name(tensor), data, raw_dtype=kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path
