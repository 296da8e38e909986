# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the options of llama.cpp that a plan depends on."""

from __future__ import annotations

from typing import Any, Sequence

from .._gguf.ggml_types import CACHE_TYPES

# common/arg.cpp: options with a value and without one. The first spelling of each is the one that this code uses.
_WITH_VALUE = """
    -m,--model -c,--ctx-size -np,--parallel --kv-unified-per-slot -b,--batch-size -ub,--ubatch-size
    -ctk,--cache-type-k -ctv,--cache-type-v -fa,--flash-attn -ngl,--gpu-layers,--n-gpu-layers -sm,--split-mode
    -ts,--tensor-split -mg,--main-gpu -ot,--override-tensor -ncmoe,--n-cpu-moe -ncffn,--n-cpu-ffn --lora --lora-scaled
    --control-vector --control-vector-scaled --override-kv --pooling -mm,--mmproj --image-min-tokens --image-max-tokens
    --mtmd-batch-max-tokens --spec-type -md,--model-draft,--spec-draft-model -devd,--device-draft,--spec-draft-device
    -ngld,--gpu-layers-draft,--n-gpu-layers-draft,--spec-draft-ngl -ctkd,--cache-type-k-draft,--spec-draft-type-k
    -ctvd,--cache-type-v-draft,--spec-draft-type-v -otd,--override-tensor-draft,--spec-draft-override-tensor
    -ncmoed,--n-cpu-moe-draft,--spec-draft-n-cpu-moe,--spec-draft-ncmoe --spec-draft-n-max --spec-ngram-simple-size-m
    --spec-ngram-map-k-size-m --spec-ngram-map-k4v-size-m --spec-ngram-mod-n-max
"""
_ALONE = """
    -kvu,--kv-unified -no-kvu,--no-kv-unified -kvo,--kv-offload -nkvo,--no-kv-offload --swa-full -cmoe,--cpu-moe
    -cmoed,--cpu-moe-draft,--spec-draft-cpu-moe --repack -nr,--no-repack --no-host --op-offload --no-op-offload
    --embedding,--embeddings --rerank,--reranking --mmproj-offload --no-mmproj-offload --no-mmproj
"""


def _spellings(table: str) -> dict[str, str]:
    return {name: group.partition(",")[0] for group in table.split() for name in group.split(",")}


# Layers that predict further tokens draft. They are of the model, or in a file of their own.
DRAFT_MTP = "draft-mtp"
_VALUED, _FLAGS = _spellings(_WITH_VALUE), _spellings(_ALONE)
# The options of drafts and of pictures. Without them, llama.cpp loads the model alone.
SPECULATION = (
    *(name for name in dict.fromkeys(_VALUED.values()) if "spec" in name),
    *("-md", "-devd", "-ngld", "-ctkd", "-ctvd", "-otd", "-ncmoed", "-cmoed"),
)
PROJECTOR = (
    *("-mm", "--mmproj-offload", "--no-mmproj-offload"),
    *("--image-min-tokens", "--image-max-tokens", "--mtmd-batch-max-tokens"),
)
# The options that a benchmark measures the model with too, and their names there.
NAMED = {
    "-b": "batch_size",
    "-ub": "ubatch_size",
    "-ctk": "cache_type_k",
    "-ctv": "cache_type_v",
    "-fa": "flash_attn",
    "-sm": "split_mode",
}
_FLASH = {"1": "on", "true": "on", "on": "on", "0": "off", "false": "off", "off": "off", "-1": "auto", "auto": "auto"}


def planned_options(words: Sequence[Any]) -> list[str]:
    """Return the options that a plan depends on, each by its first spelling, with their values."""
    found: list[str] = []
    given = [str(word) for word in words]
    for index, word in enumerate(given):
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        name = name.replace("_", "-") if name.startswith("--") else name
        if name in _FLAGS:
            found.append(_FLAGS[name])
        elif name in _VALUED:
            after = given[index + 1 : index + 2]
            found += [_VALUED[name], *([value] if equals else after)]
    return found


def value_of(options: Sequence[str], name: str, default: str = "") -> str:
    """Return the value of an option in the form of planned_options; the last one applies, as on the command line."""
    values = [options[index + 1] for index, word in enumerate(options[:-1]) if word == name]
    return values[-1] if values else default


def number_of(options: Sequence[str], name: str, default: int = 0) -> int:
    """Return the value of an option as a number; the default if it is none."""
    value = value_of(options, name)
    return int(value) if value.isdecimal() else default


def without(options: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return options in the form of planned_options, without those of these names."""
    flags, index = set(_FLAGS.values()), 0
    kept: list[str] = []
    while index < len(options):
        width = 1 if options[index] in flags else 2
        if options[index] not in names:
            kept += options[index : index + width]
        index += width
    return tuple(kept)


def named_options(words: Sequence[Any]) -> dict[str, Any]:
    """Return the options of NAMED by their names, with numbers as numbers; None for one that is not given."""
    options = planned_options(words)
    found: dict[str, Any] = dict.fromkeys(NAMED.values())
    for short, name in NAMED.items():
        value = value_of(options, short)
        if name.endswith("_size") and value.isdecimal():
            found[name] = int(value)
        elif name == "flash_attn":
            found[name] = _FLASH.get(value)
        elif (name.startswith("cache_type") and value in CACHE_TYPES) or (name == "split_mode" and value):
            found[name] = value
    return found
