# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: projectors, with which a model takes pictures: whether one fits a model, and the memory that it needs.

The reader is tools/mtmd/clip.cpp. It keeps the weights in memory, and allocates the compute buffer for the largest
picture so far, which no log tells beforehand. So that buffer is an estimate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .header import read_header
from .numbers import Numbers, natural, printable

if TYPE_CHECKING:
    from pathlib import Path

    from .header import Header

ARCHITECTURE = "clip"
_ENCODERS = ("vision", "audio")
# clip.cpp (load_hparams): the most tokens of a picture, by type of projector. For other types the file says it.
MOST_TOKENS = {
    "gemma4uv": 1120,
    "gemma4v": 1120,
    "glm4v": 4096,
    "hunyuanvl": 16384,
    "kimik25": 4096,
    "kimivl": 1024,
    "lfm2": 256,
    "ling3vl": 4096,
    "minimax_m3": 576,
    "muse-glimmer": 4096,
    "pixtral": 1024,
    "qwen2.5vl_merger": 4096,
    "qwen2vl_merger": 4096,
    "qwen3vl_merger": 4096,
    "youtuvl": 62500,
}
# models/models.h (support_batch): projectors that encode several pictures, or parts of one, at a time, and mtmd.cpp
# (batch_max_tokens): how many tokens these have at most.
BATCHED = frozenset(("gemma4v", "internvl", "deepseekocr", "deepseekocr2"))
BATCH_TOKENS = 1024
# The most tokens of the picture for which clip.cpp allocates the buffer at the start.
FIRST_TOKENS = 46 * 46
# How many patches a side of a token has if the file does not say.
_MERGED = {"gemma4v": 3, "gemma4uv": 3, "deepseekocr": 4, "deepseekocr2": 4, "pixtral": 1}
_MERGED_OTHERWISE = 2
# Half a minute of sound, as the encoders of Whisper take it.
_POSITIONS_OF_SOUND = 1500


def _text(header: Header, key: str) -> str:
    return str(header.metadata.get(key, ""))


def _type(header: Header, encoder: str) -> str:
    return _text(header, "clip.projector_type") or _text(header, f"clip.{encoder}.projector_type")


def _encoders(header: Header) -> list[str]:
    return [name for name in _ENCODERS if header.metadata.get(f"clip.has_{name}_encoder") is True]


def _problem(header: Header) -> str:
    """Return why a file is no projector that llama.cpp loads, as the end of a sentence; empty if it is one."""
    architecture = _text(header, "general.architecture")
    if architecture != ARCHITECTURE:
        return f"its architecture is {printable(architecture) or 'missing'} and not {ARCHITECTURE}"
    encoders = _encoders(header)
    if not encoders:
        return "it has no encoder for pictures or sound"
    if not all(_type(header, encoder) for encoder in encoders):
        return "it does not say its clip.projector_type"
    return ""


def projector_problem(model: Path, projector: Path) -> str:
    """Return a sentence that says why `model` cannot take pictures with `projector`; empty if it can.

    Raises GgufError if one of them is not a complete GGUF file.
    """
    header = read_header(projector)
    reason = _problem(header)
    if reason:
        return (
            f"{projector} is no projector of llama.cpp: {reason}. Take the file of the model's publisher whose name "
            "begins with mmproj."
        )
    # Older converters wrote something else there. They also wrote this key.
    if "clip.has_text_encoder" in header.metadata:
        return ""
    metadata = read_header(model).metadata
    wanted = natural(metadata.get(f"{metadata.get('general.architecture')}.embedding_length", 0))
    for encoder in _encoders(header):
        made = natural(header.metadata.get(f"clip.{encoder}.projection_dim", 0))
        if made and wanted and made != wanted:
            return (
                f"{projector} does not fit {model}: it makes vectors of {made} numbers, and the model takes {wanted}. "
                "Take the projector of this model."
            )
    return ""


def _patches(reader: Numbers, kind: str, context: int) -> int:
    """Return the patches of the largest picture that fits the context, or of those that are encoded at a time."""
    patch = reader.number("vision.patch_size", 0) or 1
    merged = reader.number("vision.spatial_merge_size") or reader.number("vision.projector.scale_factor")
    area = (merged or _MERGED.get(kind, _MERGED_OTHERWISE)) ** 2
    side = (reader.number("vision.image_size", 0) or 0) // patch
    dynamic = max(
        (reader.number("vision.image_max_pixels", 0) or 0) // patch**2,
        MOST_TOKENS.get(kind, 0) * area,
        BATCH_TOKENS * area if kind in BATCHED else 0,
    )
    return max(side * side, min(dynamic, max(context, FIRST_TOKENS) * area))


def _compute(reader: Numbers, encoder: str, kind: str, context: int, *, gated: bool, flash_attention: bool) -> int:
    width = reader.number(f"{encoder}.embedding_length", 0) or 0
    inner = reader.number(f"{encoder}.feed_forward_length", 0) or 0
    heads = reader.number(f"{encoder}.attention.head_count", 0) or 0
    pictures = encoder == "vision"
    positions = _patches(reader, kind, context) if pictures else _POSITIONS_OF_SOUND
    # The pixels of a patch, as they are, and in rows to be multiplied.
    pixels = 3 * (reader.number("vision.patch_size", 0) or 0) ** 2 if pictures else 0
    # clip.cpp (build_vit): beside the input of a layer either queries, keys, values and copies of them, or the parts of
    # the feed-forward network; the processor's kernels convert what they multiply.
    numbers = max(5 * width, 2 * width + inner * (3 if gated else 1)) + width + inner // 2 + 2 * pixels
    # Some encoders have a mask of all pairs, in two formats and on its way into the buffer.
    windows = any(reader.has(f"{encoder}.{name}") for name in ("n_wa_pattern", "window_size", "wa_layer_indexes"))
    return 4 * positions * numbers + positions**2 * ((10 if windows else 0) + (0 if flash_attention else 4 * heads))


def projector_bytes(header: Header, context: int, *, flash_attention: bool = True) -> int:
    """Return the bytes of a projector's weights and, as an estimate, of its compute buffers.

    A picture has at most as many tokens as the context of a slot, as llama-server refuses longer prompts.
    """
    reader = Numbers(header, ARCHITECTURE)
    gated = any(".ffn_gate." in tensor.name for tensor in header.tensors)
    return sum(tensor.bytes or 0 for tensor in header.tensors) + sum(
        _compute(reader, encoder, _type(header, encoder), context, gated=gated, flash_attention=flash_attention)
        for encoder in _encoders(header)
    )
