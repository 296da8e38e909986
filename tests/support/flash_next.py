# SPDX-License-Identifier: GPL-3.0-or-later
"""The header of Qwen3.8 Flash Next: 125B weights, 12 layers with an attention cache, 36 with a state, and n-grams."""

from __future__ import annotations

import math
import os
from pathlib import Path

import gguf
import numpy as np

from support.synthetic_models import Q8_0, RMS, Numbers, Tensors, add_key, file_name, quantised

ALIGNMENT = 32


def write_flash_next(path: Path) -> tuple[Path, int]:
    """Write the header in Q8_0, and a hole in place of the weights; return the path, and the bytes of the weights."""
    width, streams, rank, inner, experts, vocabulary_size = 2560, 4, 320, 640, 512, 248320
    state, key_heads, value_heads, heads, head = 128, 16, 48, 24, 256
    tables = (3, 23, 33, 47, 59, 63, 69, 77, 81, 93, 107, 147, 153, 159, 161, 171)
    sizes = [20_000_000 + size for size in tables]
    keys: Numbers = {
        "block_count": 48,
        "context_length": 262144,
        "embedding_length": width,
        "vocab_size": vocabulary_size,
        "attention.head_count": heads,
        "attention.head_count_kv": 2,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.compress_ratios": [0, 0, 0, 4] * 12,
        "attention.indexer.head_count": 4,
        "attention.indexer.key_length": 128,
        "attention.indexer.top_k": 2048,
        RMS: 1e-6,
        "rope.dimension_count": 64,
        "rope.dimension_sections": [11, 11, 10, 0],
        "rope.freq_base": 1e7,
        "ssm.conv_kernel": 4,
        "ssm.group_count": key_heads,
        "ssm.inner_size": value_heads * state,
        "ssm.state_size": state,
        "ssm.time_step_rank": value_heads,
        "expert_count": experts,
        "expert_used_count": 10,
        "expert_feed_forward_length": inner,
        "expert_shared_feed_forward_length": inner,
        "hyper_connection.count": streams,
        "hyper_connection.low_rank": rank,
        "embedding_length_per_layer_input": 160,
        "ple.layers": [1],
        "ple.ngram_size": 3,
        "ple.heads_per_ngram": 8,
        "ple.conv_kernel": 4,
        "ple.eos_token_id": 248044,
        "ple.layer_multipliers": [23703573157769, 20109073645365, 8052911324071],
        "ple.head_offsets": [sum(sizes[:index]) for index in range(16)],
        "ple.head_vocab_sizes": sizes,
    }
    mixers: Tensors = {}
    for part in ("attn", "ffn"):
        mixers |= {f"hc_{part}_norm": (streams * width,), f"hc_{part}_down": (rank, streams * width)}
        mixers |= {f"hc_{part}_up": (streams * width, rank), f"hc_{part}_inject": (streams, streams * width)}
    feed: Tensors = {
        "ffn_gate_inp": (experts, width),
        "ffn_gate_exps": (experts, inner, width),
        "ffn_up_exps": (experts, inner, width),
        "ffn_down_exps": (experts, width, inner),
        "ffn_gate_inp_shexp": (width,),
        "ffn_gate_shexp": (inner, width),
        "ffn_up_shexp": (inner, width),
        "ffn_down_shexp": (width, inner),
    }
    full: Tensors = {
        "attn_q": (2 * heads * head, width),
        "attn_k": (2 * head, width),
        "attn_v": (2 * head, width),
        "attn_output": (width, heads * head),
        "attn_q_norm": (head,),
        "attn_k_norm": (head,),
        "indexer.q_proj": (4 * 128, width),
        "indexer.k_proj": (128, width),
        "indexer.q_norm": (128,),
        "indexer.k_norm": (128,),
    }
    linear: Tensors = {
        "attn_qkv": ((2 * key_heads + value_heads) * state, width),
        "attn_gate": (value_heads * state, width),
        "ssm_conv1d": ((2 * key_heads + value_heads) * state, 4),
        "ssm_dt.bias": (value_heads,),
        "ssm_a.": (value_heads,),
        "ssm_beta": (value_heads, width),
        "ssm_alpha": (value_heads, width),
        "ssm_norm": (state,),
        "ssm_out": (width, value_heads * state),
    }
    lookup: Tensors = {
        "ple_key": (streams * width, width),
        "ple_value": (width, width),
        **dict.fromkeys(("ple_norm_key", "ple_norm_query", "ple_norm_conv"), (streams * width,)),
        "ple_conv1d": (streams * width, 4),
    }
    tensors: Tensors = {
        "token_embd": (vocabulary_size, width),
        "output": (vocabulary_size, width),
        "output_hc_norm": (streams * width,),
        "output_hc_down": (rank, streams * width),
        "output_hc_up": (streams * width, rank),
        "per_layer_token_embd": (sum(sizes) + 90, 160),
    }
    for layer in range(48):
        kinds = {**mixers, **feed, **(full if layer % 4 == 3 else linear), **(lookup if layer == 1 else {})}
        tensors |= {f"blk.{layer}.{name}": shape for name, shape in kinds.items()}
    writer = gguf.GGUFWriter(path, "qwen4exp")
    writer.add_tokenizer_model("no_vocab")
    for key, value in keys.items():
        add_key(writer, f"qwen4exp.{key}", value)
    weights, hole = 0, 0
    for name, shape in tensors.items():
        small = not quantised(name, shape)
        size = math.prod(shape) * 4 if small else math.prod(shape) // 32 * 34
        stored = shape if small else (*shape[:-1], shape[-1] // 32 * 34)
        kind = np.dtype(np.float32 if small else np.uint8)
        writer.add_tensor_info(file_name(name), stored, kind, size, None if small else Q8_0)
        weights += size
        hole += -(-size // ALIGNMENT) * ALIGNMENT
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, path.stat().st_size + hole + ALIGNMENT)
    return path, weights
