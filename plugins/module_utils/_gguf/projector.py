# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: projectors, with which a model takes pictures: whether one fits a model (tools/mtmd/clip.cpp)."""

from __future__ import annotations

from pathlib import Path

from .header import Header, read_header
from .numbers import natural, printable

ARCHITECTURE = "clip"
_ENCODERS = ("vision", "audio")


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
    """Return a sentence that says why `model` cannot take pictures with `projector`; empty if it can."""
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
