# SPDX-License-Identifier: GPL-3.0-or-later
"""The check whether a model may draft for another one; tests/integration/test_speculation.py asks llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import GgufError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.vocabulary import draft_problem

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = [b"<unk>", b"<s>", b"</s>", *(b"word %d" % number for number in range(300))]
SENTENCE_PIECE: dict[str, Any] = {"model": "llama", "tokens": TOKENS, "bos_token_id": 1, "eos_token_id": 2}
BYTE_PAIRS: dict[str, Any] = {**SENTENCE_PIECE, "model": "gpt2", "pre": "qwen2"}


def written(path: Path, **vocabulary: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in vocabulary.items():
        key = f"tokenizer.ggml.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def other(token: int) -> list[bytes]:
    return [*TOKENS[:token], b"\xff\xc3\xa4", *TOKENS[token + 1 :]]


@pytest.mark.parametrize(
    ("model", "draft"),
    [
        pytest.param(SENTENCE_PIECE, SENTENCE_PIECE, id="the-same"),
        pytest.param(SENTENCE_PIECE, {**SENTENCE_PIECE, "tokens": TOKENS[:180]}, id="fewer-tokens"),
        pytest.param(SENTENCE_PIECE, {**SENTENCE_PIECE, "tokens": other(4)}, id="the-first-five-may-differ"),
        pytest.param(SENTENCE_PIECE, {"model": "llama", "tokens": TOKENS}, id="what-sentencepiece-has-by-default"),
        pytest.param(SENTENCE_PIECE, {**SENTENCE_PIECE, "eos_token_id": 7}, id="an-end-that-is-not-added"),
        pytest.param(BYTE_PAIRS, {**BYTE_PAIRS, "bos_token_id": 7}, id="a-beginning-that-is-not-added"),
        pytest.param(BYTE_PAIRS, {**BYTE_PAIRS, "model": "whitespace"}, id="one-kind-by-two-names"),
        pytest.param(
            {**BYTE_PAIRS, "add_bos_token": True}, {**BYTE_PAIRS, "pre": "llama-bpe"}, id="what-llama-3-has-by-default"
        ),
    ],
)
def test_it_may(tmp_path: Path, model: dict[str, Any], draft: dict[str, Any]) -> None:
    assert draft_problem(written(tmp_path / "m.gguf", **model), written(tmp_path / "d.gguf", **draft)) == ""


@pytest.mark.parametrize(
    ("model", "draft", "said"),
    [
        pytest.param(
            SENTENCE_PIECE,
            BYTE_PAIRS,
            "the tokenizer of the model is llama, and that of the draft model gpt2",
            id="kind",
        ),
        pytest.param(
            SENTENCE_PIECE,
            {**SENTENCE_PIECE, "model": "\x1b]0;x\x07"},
            "the tokenizer of the model is llama, and that of the draft model \ufffd]0;x\ufffd",
            id="kind-that-controls-a-terminal",
        ),
        pytest.param(
            SENTENCE_PIECE,
            {**SENTENCE_PIECE, "bos_token_id": 2},
            "a text begins with token 1 in the model, and with token 2 in the draft model",
            id="beginning",
        ),
        pytest.param(
            BYTE_PAIRS,
            {**BYTE_PAIRS, "add_bos_token": True},
            "a text begins with no token in the model, and with token 1 in the draft model",
            id="beginning-that-is-added",
        ),
        pytest.param(
            {**BYTE_PAIRS, "pre": "glm4", "add_bos_token": True},
            {**BYTE_PAIRS, "pre": "gemma4", "add_bos_token": False, "bos_token_id": 3},
            "a text begins with token 1 in the model, and with token 3 in the draft model",
            id="gemma4-always-adds-it",
        ),
        pytest.param(
            {**SENTENCE_PIECE, "add_eos_token": True},
            SENTENCE_PIECE,
            "a text ends with token 2 in the model, and with no token in the draft model",
            id="end",
        ),
        pytest.param(
            SENTENCE_PIECE,
            {**SENTENCE_PIECE, "tokens": TOKENS[:174]},
            "the model has 303 tokens and the draft model 174, and at most 128 may be missing",
            id="size",
        ),
        pytest.param(
            SENTENCE_PIECE,
            {**SENTENCE_PIECE, "tokens": other(5)},
            "token 5 is 'word 2' in the model, and '\ufffdä' in the draft model",
            id="text",
        ),
    ],
)
def test_it_may_not(tmp_path: Path, model: dict[str, Any], draft: dict[str, Any], said: str) -> None:
    one, two = written(tmp_path / "m.gguf", **model), written(tmp_path / "d.gguf", **draft)
    expected = f"{two} cannot draft tokens for {one}: {said}. Take a draft model of the same family, "
    assert draft_problem(one, two) == f"{expected}which has the same tokenizer."


def test_a_file_that_is_no_model_is_told(tmp_path: Path) -> None:
    model = written(tmp_path / "m.gguf", **SENTENCE_PIECE)
    (tmp_path / "d.gguf").write_bytes(b"")
    with pytest.raises(GgufError, match=r"d\.gguf is not a complete GGUF model: it is empty\.$"):
        draft_problem(model, tmp_path / "d.gguf")
