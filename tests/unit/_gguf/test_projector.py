# SPDX-License-Identifier: GPL-3.0-or-later
"""The check whether a projector fits a model; tests/integration/test_pictures.py asks llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import GgufError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.projector import projector_problem

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


def written(path: Path, architecture: str, metadata: dict[str, Any]) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}[type(value)]
        add(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("metadata", [PROJECTOR, OLD, OF_TWO], ids=["new", "by-an-old-converter", "of-two-encoders"])
def test_it_fits(tmp_path: Path, metadata: dict[str, Any]) -> None:
    model, projector = written(tmp_path / "m.gguf", "llama", MODEL), written(tmp_path / "p.gguf", "clip", metadata)
    assert projector_problem(model, projector) == ""


@pytest.mark.parametrize(
    ("architecture", "metadata", "said"),
    [
        pytest.param(
            "llama", MODEL, "is no projector of llama.cpp: its architecture is llama and not clip.", id="model"
        ),
        pytest.param(
            "clip", {}, "is no projector of llama.cpp: it has no encoder for pictures or sound.", id="nothing"
        ),
        pytest.param(
            "clip",
            {"clip.has_vision_encoder": True},
            "is no projector of llama.cpp: it does not say its clip.projector_type.",
            id="type",
        ),
        pytest.param(
            "clip",
            {**PROJECTOR, "clip.vision.projection_dim": 2560},
            "it makes vectors of 2560 numbers, and the model takes 64. Take the projector of this model.",
            id="width",
        ),
        pytest.param(
            "clip", {**OF_TWO, "clip.audio.projection_dim": 65}, "it makes vectors of 65 numbers, and", id="sound"
        ),
    ],
)
def test_it_does_not_fit(tmp_path: Path, architecture: str, metadata: dict[str, Any], said: str) -> None:
    model = written(tmp_path / "m.gguf", "llama", MODEL)
    projector = written(tmp_path / "p.gguf", architecture, metadata)
    problem = projector_problem(model, projector)
    assert problem.startswith(f"{projector} ")
    assert said in problem
    assert problem.endswith(".")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    model = written(tmp_path / "m.gguf", "llama", MODEL)
    with pytest.raises(GgufError, match=r"none.gguf is not a complete GGUF model: there is no such file\.$"):
        projector_problem(model, tmp_path / "none.gguf")
