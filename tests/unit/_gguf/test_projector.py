# SPDX-License-Identifier: GPL-3.0-or-later
"""The check whether a projector fits a model; tests/integration/test_pictures.py asks llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.projector import projector_problem

from support.gguf_headers import write_gguf

if TYPE_CHECKING:
    from pathlib import Path

MODEL: dict[str, Any] = {"llama.embedding_length": 64}
PROJECTOR: dict[str, Any] = {
    "clip.has_vision_encoder": True,
    "clip.projector_type": "gemma3",
    "clip.vision.projection_dim": 64,
}
OLD = {**PROJECTOR, "clip.has_text_encoder": False, "clip.vision.projection_dim": 768}
OF_TWO: dict[str, Any] = {
    "clip.has_vision_encoder": True,
    "clip.has_audio_encoder": True,
    "clip.vision.projector_type": "gemma4v",
    "clip.audio.projector_type": "gemma4a",
    "clip.vision.projection_dim": 64,
    "clip.audio.projection_dim": 64,
}


@pytest.mark.parametrize(
    ("architecture", "metadata", "said"),
    [
        ("clip", PROJECTOR, ""),
        ("clip", OLD, ""),
        ("clip", OF_TWO, ""),
        ("llama", MODEL, "is no projector of llama.cpp: its architecture is llama and not clip."),
        ("clip", {}, "is no projector of llama.cpp: it has no encoder for pictures or sound."),
        ("clip", {"clip.has_vision_encoder": True}, "is no projector of llama.cpp: it does not say its clip.proj"),
        (
            "clip",
            {**PROJECTOR, "clip.vision.projection_dim": 2560},
            "makes vectors of 2560 numbers, and the model take",
        ),
        ("clip", {**OF_TWO, "clip.audio.projection_dim": 65}, "it makes vectors of 65 numbers, and"),
    ],
    ids=["new", "by-an-old-converter", "of-two-encoders", "a-model", "nothing", "no-type", "width", "sound"],
)
def test_a_projector_fits_a_model_or_the_reason_is_said(
    tmp_path: Path, architecture: str, metadata: dict[str, Any], said: str
) -> None:
    model = write_gguf(tmp_path / "m.gguf", "llama", MODEL)
    projector = write_gguf(tmp_path / "p.gguf", architecture, metadata)
    problem = projector_problem(model, projector)
    assert said in problem if said else problem == ""
    assert not said or problem.startswith(f"{projector} ")
