# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the options of llama.cpp that a plan depends on."""

from __future__ import annotations

from typing import Any, Sequence

from .._gguf.ggml_types import CACHE_TYPES

# common/arg.cpp: the options that the plan takes into account and, below, those whose effect it does not know.
PLANNED = {
    "-b": "batch_size",
    "-ub": "ubatch_size",
    "-ctk": "cache_type_k",
    "-ctv": "cache_type_v",
    "-fa": "flash_attn",
    "-sm": "split_mode",
}
_FOLLOWED = {**PLANNED, **{f"--{option.replace('_', '-')}": option for option in PLANNED.values()}}
_OTHERWISE = frozenset(
    """
    -ot --override-tensor -cmoe --cpu-moe -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn -nkvo --no-kv-offload -np --parallel
    --swa-full --lora --lora-scaled --control-vector -md --model-draft -mm --mmproj -mg --main-gpu
    """.split()
)
_UNIFIED = {"-kvu": True, "--kv-unified": True, "-no-kvu": False, "--no-kv-unified": False}
_FLASH = {"1": "on", "true": "on", "on": "on", "0": "off", "false": "off", "off": "off", "-1": "auto", "auto": "auto"}


def read_options(
    extra_args: Sequence[str], variable: str = "inference_extra_args"
) -> tuple[dict[str, Any], str | None]:
    """Return the options that a plan takes into account, and the reason if one of them rules out a plan.

    The reason forms the end of a sentence, and names the variable that holds the options.
    """
    words = [str(word) for word in extra_args]
    found: dict[str, Any] = {}
    reasons = []
    for index, word in enumerate(words):
        name = word.replace("_", "-") if word.startswith("--") else word
        if name in _OTHERWISE:
            reasons.append(f"{variable} holds {word}, whose effect the plan does not know")
        if name in _UNIFIED:
            found["kv_unified"] = _UNIFIED[name]
        option = _FOLLOWED.get(name)
        if option is None:
            continue
        value = words[index + 1] if index + 1 < len(words) else ""
        if option.endswith("_size") and value.isdecimal():
            found[option] = int(value)
        elif option.startswith("cache_type") and value in CACHE_TYPES:
            found[option] = value
        elif option == "flash_attn":
            # In the oldest builds this option has no value.
            found[option] = _FLASH.get(value, "on")
        elif option == "split_mode" and value:
            found[option] = value
            if value != "layer":
                reasons.append(f"{variable} holds {word} {value}, and a plan is only for split mode layer")
        else:
            reasons.append(f"{variable} holds {word} {value}".rstrip() + ", which is not a value of it")
    return found, next(iter(reasons), None)
