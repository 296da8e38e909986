# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a folder as it comes from a hub: a Llama model of random weights with a tokenizer, in the safetensors format.

Run it with a Python that has what upstream's converter needs: `python tiny_safetensors.py FOLDER`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import sentencepiece
from safetensors.numpy import save_file

WORDS = "the river and the stone under the old tree were there before the first light of the morning came again".split()
HIDDEN, FEED_FORWARD, LAYERS, HEADS, HEADS_KV, VOCABULARY = 256, 512, 2, 4, 2, 330


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # A Llama tokenizer uses bytes for text that no piece fits.
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(WORDS[n:] + WORDS[:n]) for n in range(len(WORDS))]),
        model_prefix=str(folder / "tokenizer"),
        model_type="bpe",
        vocab_size=VOCABULARY,
        byte_fallback=True,
        minloglevel=2,
    )
    (folder / "tokenizer.vocab").unlink()
    rng = np.random.default_rng(1)

    def weights(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float16)

    head = HIDDEN // HEADS
    tensors = {
        "model.embed_tokens.weight": weights(VOCABULARY, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float16),
        "lm_head.weight": weights(VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        shapes = {
            "self_attn.q_proj": (HIDDEN, HIDDEN),
            "self_attn.k_proj": (HEADS_KV * head, HIDDEN),
            "self_attn.v_proj": (HEADS_KV * head, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HIDDEN),
            "mlp.gate_proj": (FEED_FORWARD, HIDDEN),
            "mlp.up_proj": (FEED_FORWARD, HIDDEN),
            "mlp.down_proj": (HIDDEN, FEED_FORWARD),
        }
        tensors |= {f"model.layers.{layer}.{name}.weight": weights(*shape) for name, shape in shapes.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = np.ones(HIDDEN, np.float16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    # save_file lets only its own account read it.
    (folder / "model.safetensors").chmod(0o644)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS_KV,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
