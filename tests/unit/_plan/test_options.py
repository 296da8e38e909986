# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of llama.cpp that a plan depends on."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.options import (
    PROJECTOR,
    SPECULATION,
    named_options,
    number_of,
    planned_options,
    value_of,
    without,
)


@pytest.mark.parametrize(
    ("words", "planned"),
    [
        (["--ctx-size", 512, "--parallel", "2"], ["-c", "512", "-np", "2"]),
        (["--cache_type_k", "q8_0", "--split_mode=row"], ["-ctk", "q8_0", "-sm", "row"]),
        (["--gpu-layers", "-1", "--n-gpu-layers", "all"], ["-ngl", "-1", "-ngl", "all"]),
        (["--temp", "1", "--mlock", "--kv-unified", "--no-mmap", "--rerank"], ["-kvu", "--rerank"]),
        (["-fa", "--mlock"], ["-fa", "--mlock"]),
        (["-np", "2", "-ctk"], ["-np", "2", "-ctk"]),
        (["--spec-draft-model", "d.gguf", "--override-tensor", "a=CPU"], ["-md", "d.gguf", "-ot", "a=CPU"]),
        ([], []),
    ],
    ids=str,
)
def test_what_changes_memory_is_kept_in_one_spelling(words: list[Any], planned: list[str]) -> None:
    assert planned_options(words) == planned


def test_the_last_value_applies() -> None:
    options = planned_options(["-c", "512", "-ngl", "auto", "--ctx-size", "1024", "-np"])
    assert (value_of(options, "-c"), number_of(options, "-c")) == ("1024", 1024)
    # No number, no value, and not given.
    assert [number_of(options, name, 7) for name in ("-ngl", "-np", "-ub")] == [7, 7, 7]
    assert [value_of(options, name, "none") for name in ("-ngl", "-np", "-ub")] == ["auto", "none", "none"]


def test_a_draft_and_a_projector_are_left_out_with_their_options() -> None:
    words = ["--spec-type", "draft-simple", "-c", "512", "--model-draft", "d.gguf", "--cpu-moe-draft", "--swa-full"]
    words += ["--mmproj", "p.gguf", "--no-mmproj-offload", "--spec-draft-n-max", "3", "-ub", "64"]
    options = planned_options(words)
    projector = ("-mm", "p.gguf", "--no-mmproj-offload")
    assert without(options, SPECULATION) == ("-c", "512", "--swa-full", *projector, "-ub", "64")
    assert without(without(options, SPECULATION), PROJECTOR) == ("-c", "512", "--swa-full", "-ub", "64")
    for name in (*SPECULATION, *PROJECTOR):
        assert planned_options([name]) == [name]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--temp", "1", "-b", "1024"], {"batch_size": 1024}),
        (["-ub", "128", "-ctk", "q8_0"], {"ubatch_size": 128, "cache_type_k": "q8_0"}),
        (["--cache_type_v", "q4_0", "-fa", "on"], {"cache_type_v": "q4_0", "flash_attn": "on"}),
        (["-fa", "0"], {"flash_attn": "off"}),
        (["--split-mode", "tensor", "-nkvo"], {"split_mode": "tensor"}),
        # What is no value, or has none, is left to llama.cpp.
        (["-b", "many", "-ctk", "q3", "-ub", "64", "-fa", "--mlock"], {"ubatch_size": 64}),
        (["-ub", "64", "-sm"], {"ubatch_size": 64}),
    ],
    ids=str,
)
def test_what_a_benchmark_takes_too_has_a_name(words: list[str], named: dict[str, Any]) -> None:
    found = named_options(words)
    assert {name: value for name, value in found.items() if value is not None} == named
    assert found.keys() >= {"batch_size", "ubatch_size", "cache_type_k", "cache_type_v", "flash_attn", "split_mode"}
