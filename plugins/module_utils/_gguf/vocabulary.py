# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: checks the vocabularies, as llama.cpp does, to see whether one model may draft tokens for another.

common/speculative.cpp (common_speculative_are_compatible) compares what src/llama-vocab.cpp reads. If the vocabularies
differ, llama-server continues without the draft model and logs the reason at a level that is not shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from .header import Header, read_header
from .numbers import printable

# SPEC_VOCAB_MAX_SIZE_DIFFERENCE and SPEC_VOCAB_CHECK_START_TOKEN_ID
MAX_SIZE_DIFFERENCE = 128
FIRST_COMPARED = 5

_TOKENS = "tokenizer.ggml.tokens"
# The kinds of tokenizers that have another name, and each kind's first and last token if the file does not say.
_KINDS = {"none": "no_vocab", "hybriddna": "gpt2", "whitespace": "gpt2", "gemma4": "gpt2"}
_BEGINS = {"llama": 1, "bert": 101, "gpt2": 11, "plamo2": 1}
_ENDS = {"llama": 2, "gpt2": 11, "t5": 1, "plamo2": 2}
# The kinds and pre-tokenizers that add these tokens, or have none, if the file does not say.
_ADDS_BEGIN = ("llama", "bert")
PRE_ADDS_BEGIN = frozenset(
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken chameleon gemma4".split()
)
_ADDS_END = ("t5",)
PRE_WITHOUT_BEGIN = frozenset("chatglm-bpe glm4 glm5 gemma4".split())


class _Vocabulary(NamedTuple):
    kind: str
    begins: int | None  # the token that each text begins with, if one is added
    ends: int | None
    tokens: tuple[bytes, ...]


def _added(header: Header, name: str, default: int | None, size: int, *, adds: bool) -> int | None:
    """Return the token that is added, or None. The file's value takes precedence over the default."""
    said = header.metadata.get(f"tokenizer.ggml.{name}_token_id", default)
    token = said if isinstance(said, int) and said < size else default if (default or 0) < size else None
    return token if header.metadata.get(f"tokenizer.ggml.add_{name}_token", adds) else None


def _read(path: Path) -> _Vocabulary:
    header = read_header(path, _TOKENS)
    model = str(header.metadata.get("tokenizer.ggml.model", "no_vocab"))
    # Upstream has a separate kind for this model. The rules are the same.
    pre = "gemma4" if model == "gemma4" else str(header.metadata.get("tokenizer.ggml.pre", ""))
    kind = _KINDS.get(model, model)
    begins, ends = _BEGINS.get(kind), _ENDS.get(kind)
    if kind == "gpt2" and pre in PRE_WITHOUT_BEGIN:
        begins = None
    if pre == "gemma4":
        ends = None
        header.metadata.pop("tokenizer.ggml.add_bos_token", None)  # upstream ignores it
    adds_begin = kind in _ADDS_BEGIN or (kind == "gpt2" and pre in PRE_ADDS_BEGIN)
    size = len(header.texts)
    return _Vocabulary(
        kind,
        _added(header, "bos", begins, size, adds=adds_begin),
        _added(header, "eos", ends, size, adds=kind in _ADDS_END),
        header.texts,
    )


def _token(number: int | None) -> str:
    return "no token" if number is None else f"token {number}"


def _difference(one: _Vocabulary, other: _Vocabulary) -> str:
    """Return the first difference between the model and the draft model as text; empty if there is none."""
    if one.kind != other.kind:
        kinds = [printable(kind[:40]) for kind in (one.kind, other.kind)]
        return f"the tokenizer of the model is {kinds[0]}, and that of the draft model {kinds[1]}"
    for what, mine, theirs in (("begins", one.begins, other.begins), ("ends", one.ends, other.ends)):
        if mine != theirs:
            return f"a text {what} with {_token(mine)} in the model, and with {_token(theirs)} in the draft model"
    sizes = len(one.tokens), len(other.tokens)
    if abs(sizes[0] - sizes[1]) > MAX_SIZE_DIFFERENCE:
        return (
            f"the model has {sizes[0]} tokens and the draft model {sizes[1]}, and at most {MAX_SIZE_DIFFERENCE} "
            "may be missing"
        )
    for number, (mine_text, their_text) in enumerate(zip(one.tokens, other.tokens)):
        if number >= FIRST_COMPARED and mine_text != their_text:
            texts = [repr(text[:40].decode("utf-8", "replace")) for text in (mine_text, their_text)]
            return f"token {number} is {texts[0]} in the model, and {texts[1]} in the draft model"
    return ""


def draft_problem(model: Path, draft: Path) -> str:
    """Return a sentence that says why `draft` cannot draft tokens for `model`; empty if it can."""
    difference = _difference(_read(model), _read(draft))
    if not difference:
        return ""
    return (
        f"{draft} cannot draft tokens for {model}: {difference}. Take a draft model of the same family, which has the "
        "same tokenizer."
    )
