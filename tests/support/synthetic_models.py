# SPDX-License-Identifier: GPL-3.0-or-later
"""Write small models of many architectures and shapes, with exactly the tensors that llama.cpp wants for each.

Their weights are zeros. They serve to measure memory, which llama.cpp reports for them as for any model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import gguf
import numpy as np

from random_model import add_tokenizer, vocabulary

F32, Q8_0 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0
Numbers = dict[str, Any]
Tensors = dict[str, tuple[int, ...]]

WIDTH, HEADS, LAYERS, CONTEXT = 256, 4, 6, 4096


def attention(layer: int, n: Numbers) -> Tensors:
    kv_heads = n["kv_heads"][layer] if isinstance(n["kv_heads"], list) else n["kv_heads"]
    return {
        "attn_norm": (WIDTH,),
        "attn_q": (HEADS * n["key"], WIDTH),
        "attn_k": (kv_heads * n["key"], WIDTH),
        "attn_v": (kv_heads * n["value"], WIDTH),
        "attn_output": (WIDTH, HEADS * n["value"]),
    }


def feed_forward(n: Numbers) -> Tensors:
    return {
        "ffn_norm": (WIDTH,),
        "ffn_gate": (n["ff"], WIDTH),
        "ffn_up": (n["ff"], WIDTH),
        "ffn_down": (WIDTH, n["ff"]),
    }


def experts(n: Numbers) -> Tensors:
    return {
        "ffn_norm": (WIDTH,),
        "ffn_gate_inp": (n["experts"], WIDTH),
        "ffn_gate_exps": (n["experts"], n["ff"], WIDTH),
        "ffn_up_exps": (n["experts"], n["ff"], WIDTH),
        "ffn_down_exps": (n["experts"], WIDTH, n["ff"]),
    }


def llama(layer: int, n: Numbers) -> Tensors:
    return {**attention(layer, n), **(experts(n) if n["experts"] else feed_forward(n))}


def qwen3(layer: int, n: Numbers) -> Tensors:
    return {**llama(layer, n), "attn_q_norm": (n["key"],), "attn_k_norm": (n["key"],)}


def gemma2(layer: int, n: Numbers) -> Tensors:
    return {**llama(layer, n), "post_attention_norm": (WIDTH,), "post_ffw_norm": (WIDTH,)}


def gemma3(layer: int, n: Numbers) -> Tensors:
    return {**gemma2(layer, n), **qwen3(layer, n)}


def deepseek2(layer: int, n: Numbers) -> Tensors:
    rope, latent = 32, n["key"] - 32
    return {
        "attn_norm": (WIDTH,),
        "attn_kv_a_norm": (latent,),
        "attn_q": (HEADS * 96, WIDTH),
        "attn_kv_a_mqa": (latent + rope, WIDTH),
        "attn_k_b": (HEADS, latent, 64),
        "attn_v_b": (HEADS, 64, latent),
        "attn_output": (WIDTH, HEADS * 64),
        **({**experts(n), **shared_expert(n)} if layer else feed_forward(n)),
    }


def shared_expert(n: Numbers) -> Tensors:
    return {"ffn_gate_shexp": (n["ff"], WIDTH), "ffn_up_shexp": (n["ff"], WIDTH), "ffn_down_shexp": (WIDTH, n["ff"])}


def mamba(_layer: int, _n: Numbers) -> Tensors:
    inner, state, rank = 2 * WIDTH, 16, 32
    return {
        "attn_norm": (WIDTH,),
        "ssm_in": (2 * inner, WIDTH),
        "ssm_conv1d": (inner, 4),
        "ssm_conv1d.bias": (inner,),
        "ssm_x": (rank + 2 * state, inner),
        "ssm_dt": (inner, rank),
        "ssm_dt.bias": (inner,),
        "ssm_a.": (inner, state),
        "ssm_d.": (inner,),
        "ssm_out": (WIDTH, inner),
    }


def lfm2(layer: int, n: Numbers) -> Tensors:
    if n["kv_heads"][layer]:
        return qwen3(layer, n)
    convolution = {"shortconv.conv": (WIDTH, 3), "shortconv.in_proj": (3 * WIDTH, WIDTH)}
    return {"attn_norm": (WIDTH,), **convolution, "shortconv.out_proj": (WIDTH, WIDTH), **feed_forward(n)}


def mamba2(_layer: int, _n: Numbers) -> Tensors:
    inner, heads, convolved = 2 * WIDTH, 8, 2 * WIDTH + 2 * 16
    return {
        "attn_norm": (WIDTH,),
        "ssm_in": (inner + convolved + heads, WIDTH),
        "ssm_conv1d": (convolved, 4),
        "ssm_conv1d.bias": (convolved,),
        "ssm_dt.bias": (heads,),
        "ssm_a.": (heads, 1),
        "ssm_d.": (heads, 1),
        "ssm_norm": (1, inner),
        "ssm_out": (WIDTH, inner),
    }


def falcon_h1(layer: int, n: Numbers) -> Tensors:
    tensors = {**mamba2(layer, n), **llama(layer, n)}
    tensors["ffn_norm."] = tensors.pop("ffn_norm")
    return tensors


def delta_net(state: int, key_heads: int, value_heads: int) -> Tensors:
    convolved = (2 * key_heads + value_heads) * state
    return {
        "attn_qkv": (convolved, WIDTH),
        "attn_gate": (value_heads * state, WIDTH),
        "ssm_conv1d": (convolved, 4),
        "ssm_dt.bias": (value_heads,),
        "ssm_a.": (value_heads,),
        "ssm_beta": (value_heads, WIDTH),
        "ssm_alpha": (value_heads, WIDTH),
        "ssm_norm": (state,),
        "ssm_out": (WIDTH, value_heads * state),
    }


def qwen35(layer: int, n: Numbers) -> Tensors:
    tensors = {**feed_forward(n), "attn_norm": (WIDTH,), "post_attention_norm": (WIDTH,)}
    del tensors["ffn_norm"]
    if layer % 4 == 3:
        whole = {**attention(layer, n), "attn_q_norm": (n["key"],), "attn_k_norm": (n["key"],)}
        return {**tensors, **whole, "attn_q": (2 * HEADS * n["key"], WIDTH)}
    return {**tensors, **delta_net(state=64, key_heads=2, value_heads=4)}


def gemma4(layer: int, n: Numbers) -> Tensors:
    full = layer in (2, 5)
    head, kv_heads = (128, 1) if full else (64, 2)
    return {
        **gemma3(layer, n),
        "attn_q": (HEADS * head, WIDTH),
        "attn_k": (kv_heads * head, WIDTH),
        "attn_v": (kv_heads * head, WIDTH),
        "attn_output": (WIDTH, HEADS * head),
        "attn_q_norm": (head,),
        "attn_k_norm": (head,),
    }


def predicting(layer: int, n: Numbers) -> Tensors:
    """Return the tensors of a layer of a model whose fifth layer predicts a further token."""
    if layer < 4:
        return qwen35(layer, n)
    return {**qwen35(3, n), "nextn.eh_proj": (WIDTH, 2 * WIDTH), "nextn.enorm": (WIDTH,), "nextn.hnorm": (WIDTH,)}


def gemma4_assistant(layer: int, n: Numbers) -> Tensors:
    width, head = n["width"], (64, 128)[layer]
    return {
        **dict.fromkeys(("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"), (width,)),
        "attn_q": (HEADS * head, width),
        "attn_q_norm": (head,),
        "attn_output": (width, HEADS * head),
        "layer_output_scale": (1,),
        "ffn_gate": (n["ff"], width),
        "ffn_up": (n["ff"], width),
        "ffn_down": (width, n["ff"]),
    }


def qwen35_of_27b(layer: int, n: Numbers) -> Tensors:
    """Return the tensors of a layer with the heads and states of Qwen3.6 27B; the last of 65 layers predicts."""
    head = n["key"]
    if layer % 4 == 3 or layer == 64:
        tensors = {
            "attn_q": (2 * n["heads"] * head, WIDTH),
            "attn_output": (WIDTH, n["heads"] * head),
            "attn_k": (n["kv_heads"] * head, WIDTH),
            "attn_v": (n["kv_heads"] * head, WIDTH),
            "attn_q_norm": (head,),
            "attn_k_norm": (head,),
        }
    else:
        tensors = delta_net(state=128, key_heads=16, value_heads=48)
    more = predicting(4, n) if layer == 64 else qwen35(0, n)
    shared = ("ffn_", "attn_norm", "post_attention_norm", "nextn.")
    return {**tensors, **{name: shape for name, shape in more.items() if name.startswith(shared)}}


SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 2 * WIDTH, "ssm.state_size": 16, "ssm.time_step_rank": 32}
SSM_2 = {**SSM, "ssm.time_step_rank": 8, "ssm.group_count": 1}
RMS = "attention.layer_norm_rms_epsilon"

# The architecture, its unusual numbers, the tensors of a layer, and further keys.
Kind = tuple[str, Numbers, Callable[[int, Numbers], Tensors], Numbers]
KINDS: dict[str, Kind] = {
    "dense": ("llama", {"kv_heads": 4}, llama, {}),
    "grouped queries": ("llama", {"kv_heads": 1}, llama, {}),
    "tied embeddings": ("llama", {"tied": True}, llama, {}),
    "experts": ("llama", {"experts": 4}, llama, {"expert_count": 4, "expert_used_count": 2}),
    "window, five of six": ("gemma3", {"tied": True}, gemma3, {"attention.sliding_window": 512}),
    "window, other heads, layers that share": (
        "gemma4",
        {"tied": True, "kv_heads": [2, 2, 1, 2, 2, 1], "key": 128, "value": 128, "extra": {"rope_freqs": (64,)}},
        gemma4,
        {
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": [True, True, False, True, True, False],
            "attention.shared_kv_layers": 3,
            "attention.key_length_swa": 64,
            "attention.value_length_swa": 64,
            "rope.dimension_count_swa": 64,
            "embedding_length_per_layer_input": 0,
        },
    ),
    "latent attention": (
        "deepseek2",
        {"kv_heads": 1, "key": 160, "value": 128, "experts": 4},
        deepseek2,
        {
            "attention.kv_lora_rank": 128,
            "attention.q_lora_rank": 0,
            "attention.key_length_mla": 96,
            "attention.value_length_mla": 64,
            "rope.dimension_count": 32,
            "leading_dense_block_count": 1,
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_shared_count": 1,
            "expert_feed_forward_length": 512,
            "expert_weights_scale": 1.0,
        },
    ),
    "recurrent": ("mamba", {"heads": 0, "kv_heads": 0}, mamba, SSM),
    "hybrid, each layer both": ("falcon-h1", {}, falcon_h1, SSM_2),
    "hybrid, every fourth": (
        "qwen35",
        {},
        qwen35,
        {
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 256,
            "ssm.state_size": 64,
            "ssm.time_step_rank": 4,
            "ssm.group_count": 2,
            "rope.dimension_sections": [16, 8, 8, 0],
        },
    ),
    "hybrid, convolution": (
        "lfm2",
        {"kv_heads": [0, 2, 0, 0, 2, 0], "tied": True},
        lfm2,
        {"shortconv.l_cache": 3},
    ),
}


# Models with layers that predict further tokens (draft-mtp). The first has five layers, the second 65, the last two.
_QWEN35, _GEMMA4 = KINDS["hybrid, every fourth"], KINDS["window, other heads, layers that share"]
PREDICTING: dict[str, Kind] = {
    "a layer that predicts": ("qwen35", {}, predicting, {**_QWEN35[3], "nextn_predict_layers": 1}),
    "layers and states of a 27B": (
        "qwen35",
        {"heads": 24, "kv_heads": 4, "key": 256, "value": 256, "ff": 256},
        qwen35_of_27b,
        {
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 48 * 128,
            "ssm.state_size": 128,
            "ssm.time_step_rank": 48,
            "ssm.group_count": 16,
            "rope.dimension_sections": [11, 11, 10, 0],
            "rope.dimension_count": 64,
            "nextn_predict_layers": 1,
        },
    ),
    "window, other heads": (*_GEMMA4[:3], {**_GEMMA4[3], "attention.shared_kv_layers": 0}),
    "layers that predict for other heads": (
        "gemma4-assistant",
        {
            **_GEMMA4[1],
            "width": WIDTH // 2,
            "kv_heads": [2, 1],
            "extra": {
                "rope_freqs": (64,),
                "nextn.pre_projection": (WIDTH // 2, 2 * WIDTH),
                "nextn.post_projection": (WIDTH, WIDTH // 2),
            },
        },
        gemma4_assistant,
        {
            **_GEMMA4[3],
            "attention.sliding_window_pattern": [True, False],
            "attention.shared_kv_layers": 2,
            "embedding_length_out": WIDTH,
            "nextn_predict_layers": 2,
        },
    ),
}


def add_key(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, list) and max(value) > 1 << 24:
        writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT64)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def file_name(name: str) -> str:
    """Return the name that a tensor has in a file: one that ends with a dot gets no suffix."""
    return name[:-1] if name.endswith(".") else name if name.endswith(".bias") else f"{name}.weight"


def quantised(name: str, shape: tuple[int, ...]) -> bool:
    """Say whether it is in Q8_0: not routers, and rows that are not whole blocks, as in the models that people use."""
    plain = ("gate_inp", "ssm_a", "conv", "ssm_dt", "norm")
    return len(shape) > 1 and shape[-1] % 32 == 0 and not any(part in name for part in plain)


def add_weight(writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...]) -> None:
    if quantised(name, shape):
        writer.add_tensor(file_name(name), np.zeros((*shape[:-1], shape[-1] // 32 * 34), np.uint8), raw_dtype=Q8_0)
    else:
        writer.add_tensor(file_name(name), np.zeros(shape, np.float32))


def write_synthetic(path: Path, kind: str, *, layers: int = LAYERS) -> Path:
    """Write the model of this kind (a key of KINDS or PREDICTING)."""
    architecture, unusual, tensors, further = {**PREDICTING, **KINDS}[kind]
    n = {"heads": HEADS, "kv_heads": 2, "key": 64, "value": 64, "ff": 512, "experts": 0, "tied": False, **unusual}
    width = n.get("width", WIDTH)
    tokens, scores, types = vocabulary()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"synthetic {kind}")
    keys: Numbers = {
        "block_count": layers,
        "context_length": CONTEXT,
        "embedding_length": width,
        "feed_forward_length": n["ff"],
        "attention.head_count": n["heads"],
        "attention.head_count_kv": n["kv_heads"],
        "attention.key_length": n["key"],
        "attention.value_length": n["value"],
        RMS: 1e-5,
        "rope.dimension_count": n["key"],
        **further,
    }
    for key, value in keys.items():
        add_key(writer, f"{architecture}.{key}", value)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    add_tokenizer(writer, tokens, scores, types)
    add_weight(writer, "token_embd", (len(tokens), width))
    add_weight(writer, "token_embd_norm" if architecture == "lfm2" else "output_norm", (width,))
    for name, shape in n.get("extra", {}).items():
        add_weight(writer, name, shape)
    if not n["tied"]:
        add_weight(writer, "output", (len(tokens), width))
    for layer in range(layers):
        for name, shape in tensors(layer, n).items():
            add_weight(writer, f"blk.{layer}.{name}", shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
