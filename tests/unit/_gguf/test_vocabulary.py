# SPDX-License-Identifier: GPL-3.0-or-later
"""The check whether a model may draft for another one; tests/integration/test_speculation.py asks llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.vocabulary import draft_problem

from support.gguf_headers import write_gguf

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = [b"<unk>", b"<s>", b"</s>", *(b"word %d" % number for number in range(300))]
SENTENCE_PIECE: dict[str, Any] = {"model": "llama", "tokens": TOKENS, "bos_token_id": 1, "eos_token_id": 2}
BYTE_PAIRS: dict[str, Any] = {**SENTENCE_PIECE, "model": "gpt2", "pre": "qwen2"}


def other(token: int) -> list[bytes]:
    return [*TOKENS[:token], b"\xff\xc3\xa4", *TOKENS[token + 1 :]]


@pytest.mark.parametrize(
    ("model", "draft", "said"),
    [
        pytest.param(SENTENCE_PIECE, SENTENCE_PIECE, "", id="the-same"),
        pytest.param(SENTENCE_PIECE, {"tokens": TOKENS[:180]}, "", id="fewer-tokens"),
        pytest.param(SENTENCE_PIECE, {"tokens": other(4)}, "", id="the-first-five-may-differ"),
        pytest.param({"model": "llama", "tokens": TOKENS}, SENTENCE_PIECE, "", id="what-sentencepiece-has-by-default"),
        pytest.param(SENTENCE_PIECE, {"eos_token_id": 7}, "", id="an-end-that-is-not-added"),
        pytest.param(BYTE_PAIRS, {"bos_token_id": 7}, "", id="a-beginning-that-is-not-added"),
        pytest.param(BYTE_PAIRS, {"model": "whitespace"}, "", id="one-kind-by-two-names"),
        pytest.param({**BYTE_PAIRS, "pre": "llama-bpe"}, {"add_bos_token": True}, "", id="what-llama-3-has-by-default"),
        pytest.param(SENTENCE_PIECE, BYTE_PAIRS, "the model is llama, and that of the draft model gpt2", id="kind"),
        pytest.param(
            SENTENCE_PIECE, {"model": "\x1b]0;x\x07"}, "of the draft model \ufffd]0;x\ufffd", id="controls-a-terminal"
        ),
        pytest.param(
            SENTENCE_PIECE, {"bos_token_id": 2}, "begins with token 1 in the model, and with token 2 in", id="beginning"
        ),
        pytest.param(
            BYTE_PAIRS, {"add_bos_token": True}, "begins with no token in the model, and with token 1", id="added"
        ),
        pytest.param(
            {**BYTE_PAIRS, "pre": "glm4", "add_bos_token": True},
            {"pre": "gemma4", "add_bos_token": False, "bos_token_id": 3},
            "begins with token 1 in the model, and with token 3 in the draft model",
            id="gemma4-always-adds-it",
        ),
        pytest.param(
            {**SENTENCE_PIECE, "add_eos_token": True},
            {"add_eos_token": False},
            "ends with token 2 in the model, and with no token in the draft model",
            id="end",
        ),
        pytest.param(
            SENTENCE_PIECE, {"tokens": TOKENS[:174]}, "the draft model 174, and at most 128 may be", id="size"
        ),
        pytest.param(SENTENCE_PIECE, {"tokens": other(5)}, "'word 2' in the model, and '\ufffdä' in the", id="text"),
    ],
)
def test_a_model_may_draft_for_another_or_the_reason_is_said(
    tmp_path: Path, model: dict[str, Any], draft: dict[str, Any], said: str
) -> None:
    one, two = (
        write_gguf(tmp_path / name, "llama", {f"tokenizer.ggml.{key}": value for key, value in of.items()})
        for name, of in (("m.gguf", model), ("d.gguf", {**model, **draft}))
    )
    problem = draft_problem(one, two)
    assert said in problem if said else problem == ""
    assert not said or problem.startswith(f"{two} cannot draft tokens for {one}: ")
