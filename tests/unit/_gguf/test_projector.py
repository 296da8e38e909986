# SPDX-License-Identifier: GPL-3.0-or-later
"""The check whether a projector fits a model, and its memory; tests/integration/test_pictures.py asks llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import GgufError, Header, read_header
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.projector import (
    projector_bytes,
    projector_problem,
)

from support.tiny_projector import write_projector

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


def header(kind: str, **numbers: int) -> Header:
    given = {"embedding_length": 100, "feed_forward_length": 400, "patch_size": 10, "attention.head_count": 2}
    metadata = {f"clip.vision.{name}": number for name, number in {**given, **numbers}.items()}
    return Header(3, 0, None, {"clip.has_vision_encoder": True, "clip.projector_type": kind, **metadata})


# What a patch takes in these headers, by the sum in the code.
EACH = 4 * (2 * 100 + 400 + 100 + 200 + 2 * 300)


@pytest.mark.parametrize(
    ("kind", "numbers", "context", "patches"),
    [
        pytest.param("mlp", {"image_size": 240}, 4096, 24 * 24, id="of-one-size"),
        pytest.param("step3vl", {"image_max_pixels": 100000}, 4096, 1000, id="of-a-limit-in-the-file"),
        pytest.param("glm4v", {}, 8192, 4096 * 4, id="of-a-limit-in-llama.cpp"),
        pytest.param("pixtral", {"spatial_merge_size": 2}, 4096, 1024 * 4, id="of-a-merge-in-the-file"),
        pytest.param("glm4v", {}, 3000, 3000 * 4, id="no-larger-than-a-slot"),
        pytest.param("glm4v", {}, 64, 46 * 46 * 4, id="as-large-as-at-the-start"),
        pytest.param("internvl", {"image_size": 320}, 4096, 1024 * 4, id="several-at-a-time"),
    ],
)
def test_the_buffer_is_for_the_largest_picture(kind: str, numbers: dict[str, int], context: int, patches: int) -> None:
    assert projector_bytes(header(kind, **numbers), context) == patches * EACH


def test_masks_and_attention_without_flash_attention_grow_with_all_pairs_of_patches() -> None:
    plain = projector_bytes(header("mlp", image_size=100), 4096)
    assert projector_bytes(header("mlp", image_size=100, window_size=112), 4096) == plain + 10 * 100**2
    assert projector_bytes(header("mlp", image_size=100), 4096, flash_attention=False) == plain + 4 * 2 * 100**2


def test_weights_are_counted_and_a_header_may_say_anything(tmp_path: Path) -> None:
    found = read_header(write_projector(tmp_path / "p.gguf", 64))
    weights = sum(tensor.bytes or 0 for tensor in found.tensors)
    assert weights < projector_bytes(found, 4096) < weights + (1 << 20)
    for value in (0, "many", -1, 1 << 40):
        found.metadata["clip.vision.patch_size"] = value
        assert projector_bytes(found, 4096) >= weights
