# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: what llama.cpp does with each architecture's cache, windows and tensors, as tables.

They follow src/llama-arch.cpp, src/llama-model.cpp and src/models/*.cpp.
"""

from __future__ import annotations

from typing import NamedTuple

# The architectures of src/llama-arch.cpp (LLM_ARCH_NAMES), except those below that have another kind of cache.
PLAIN = frozenset(
    """
    afmoe apertus arcee arctic baichuan bailingmoe bailingmoe2 bitnet bloom chameleon chatglm codeshell cogvlm cohere2
    cohere2moe command-r dbrx deci deepseek deepseek2 deepseek2-ocr dots1 ernie4_5 ernie4_5-moe exaone exaone-moe
    exaone4 falcon gemma gemma2 gemma3 gemma3n gemma4 glm4 glm4moe gpt-oss gpt2 gptj gptneox granite granite_swa
    granitemoe grok grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2 jais jais2 laguna llama
    llama-embed llama4 maincoder maple mellum mimo2 minicpm minicpm3 minimax-m2 mistral3 mistral4 mpt muse-glimmer
    nanbeige nemotron olmo olmo2 olmoe openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plamo3 plm qwen
    qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe refact seed_oss smallthinker smollm3 spark2_5 stablelm
    starcoder starcoder2 step35 t5 t5encoder talkie xverse
    """.split()
)
# llama_model::create_memory gives these no cache at all.
CACHELESS = frozenset(
    """
    bert dream eurobert gemma-embedding jina-bert-v2 jina-bert-v3 llada llada-moe modern-bert neo-bert nomic-bert
    nomic-bert-moe rnd1 wavtokenizer-dec
    """.split()
)
# Models that return embeddings, or whose input is not text.
WITHOUT_OUTPUT = frozenset(
    """
    bert clip eurobert gemma-embedding jina-bert-v2 jina-bert-v3 modern-bert neo-bert nomic-bert nomic-bert-moe
    t5encoder wavtokenizer-dec
    """.split()
)
# llm_arch_is_recurrent
RECURRENT = frozenset("arwkv7 mamba mamba2 rwkv6 rwkv6qwen2 rwkv7".split())
# llm_arch_is_hybrid, by the rule for recurrent layers: a layer without heads for keys and values (HEADS), a layer that
# is not the last of its interval (full_attention_interval), or all layers, which are also attention layers (BOTH).
HYBRID_BY_HEADS = frozenset(
    "granitehybrid jamba kimi-linear lfm2 lfm2moe nemotron_h nemotron_h_moe plamo2".split(),
)
HYBRID_BY_INTERVAL = frozenset("qwen35 qwen35moe qwen3next".split())
HYBRID_BOTH = frozenset(["falcon-h1"])
# llm_arch_supports_rs_rollback, without those of OF_ITS_OWN: a recurrent layer can keep its state of earlier tokens.
ROLLBACK = frozenset("lfm2 lfm2moe nemotron_h nemotron_h_moe qwen35 qwen35moe".split())
# In split mode "tensor", llama.cpp divides the states of these among devices (src/llama-model.cpp), and points views
# without elements (src/llama-graph.cpp, build_rs) beyond a device's part. RPC servers refuse these views, or end.
UNDIVIDED = HYBRID_BY_INTERVAL
# Upstream knows these, but this code does not follow their caches (indexers, compression, drafts of other models).
OF_ITS_OWN = frozenset(
    """
    bailingmoe3 deepseek32 deepseek4 dflash dots3note eagle3 gemma4-assistant glm-dsa glm5-next graniteswitch hy_v4
    kimi-k3 minimax-01 minimax-m3 pockettts qwen3tts qwen4exp
    """.split()
)
FOLLOWED = PLAIN | CACHELESS | RECURRENT | HYBRID_BY_HEADS | HYBRID_BY_INTERVAL | HYBRID_BOTH


class Window(NamedTuple):
    """The sliding window of an architecture (src/models/*.cpp): in each period, all layers but one have the window.

    If the period is None, the file must say it layer by layer. If it is 0, all layers have the window.
    """

    period: int | None
    dense_first: bool = False
    default: int = 0  # the window's size if the file gives none
    fixed: int = 0  # the size that replaces the file's, unless the file says 0


# Upstream ignores the key attention.sliding_window of other architectures.
WINDOWS = {
    "afmoe": Window(4),
    "cohere2": Window(4),
    "cohere2moe": Window(4, dense_first=True),
    "exaone-moe": Window(4, default=128),
    "exaone4": Window(4, default=4096),
    "gemma2": Window(2, default=4096),
    "gemma3": Window(6),
    "gemma3n": Window(5),
    "gemma4": Window(None),
    "gpt-oss": Window(2),
    "granite_swa": Window(None),
    "laguna": Window(4, dense_first=True),
    "lfm2": Window(0),
    "llama4": Window(4, default=8192, fixed=8192),
    "maple": Window(None),
    "mellum": Window(4),
    "mimo2": Window(None),
    "muse-glimmer": Window(4),
    "olmo2": Window(4),
    "plamo3": Window(8),
    "smallthinker": Window(4, dense_first=True, fixed=4096),
    "spark2_5": Window(None),
    "step35": Window(None),
}
# The places of tensors outside of the layers (src/llama-arch.cpp, LLM_TENSOR_INFOS): INPUT tensors go with the input,
# which stays in the master's memory. SHARED tensors go with layers, to each device. All others go with the output.
INPUT = frozenset("token_embd position_embd token_types per_layer_token_embd".split())
SHARED = frozenset(
    """
    per_layer_model_proj per_layer_proj_norm rope_factors_long rope_factors_short rope_freqs token_embd_norm
    """.split()
)
# In these architectures, token_embd_norm is the norm of the output.
NORM_IS_OUTPUT = frozenset(["lfm2", "lfm2moe"])
