# SPDX-License-Identifier: GPL-3.0-or-later
"""What role llama_server passes on of llama_server_extra_args, and what they say of the rest."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._serve import options

from support.templates import loaded, worked_out
from support.tree import ROOT

ROLE = ROOT / "roles/llama_server"
VARIABLES = {
    **loaded(ROOT / "roles/common/vars/main.yml"),
    **loaded(ROLE / "defaults/main.yml"),
    **loaded(ROLE / "vars/main.yml"),
    "groups": {},
    "inventory_hostname": "master",
}
RULES = loaded(ROLE / "tasks/validate.yml")[0]["vars"]

# Words, and the sentence about them.
LOGS = "which could write prompts and answers to a log: take it out."
FETCHES = "which fetches files from the network, and the API fetches nothing: take it out."
BAD: dict[str, tuple[list[Any], str]] = {
    "level": (["-lv", 5], f"holds -lv, {LOGS}"),
    "level-with-underscores": (["--log_verbosity", "9"], f"holds --log-verbosity, {LOGS}"),
    "level-in-one-word": (["-lv 5"], f"holds -lv, {LOGS}"),
    "log-file": (["--log-file", "/srv/log"], f"holds --log-file, {LOGS}"),
    "form-of-the-log": (["--log-jsonl"], "holds --log-jsonl, which changes the log"),
    "file-of-the-network": (["--mmproj-url", "https://example.com/m.gguf"], f"holds --mmproj-url, {FETCHES}"),
    "preset": (["--vision-gemma-4b-default"], f"holds --vision-gemma-4b-default, {FETCHES}"),
    "own-projector": (["-mm", "/srv/m.gguf"], "holds -mm, which the role sets itself: use llama_server_mmproj."),
    "pictures": (["--mmproj-device", "RPC0"], "holds --mmproj-device, which changes where pictures are computed"),
    "video": (["--video-fps", "1"], "holds --video-fps, which is for video, for which llama-server would run ffmpeg"),
    "tools": (["--mcp-servers-json", "{}"], "holds --mcp-servers-json, which lets clients run tools"),
    "state": (["--lookup-cache-dynamic", "/srv/x"], "holds --lookup-cache-dynamic, which reads or writes files"),
    "slots": (["--no-slots"], "holds --no-slots, which hides from the service whether llama-server works"),
    "end": (["--list-devices"], "holds --list-devices, which ends llama-server instead of serving"),
    "own": (["--ctx_size=9"], "holds --ctx-size, which the role sets itself: use llama_server_ctx_size."),
    "own-key": (["--api-key", "secret"], "holds --api-key, which the role sets itself: use llama_server_api_keys."),
    "own-without-a-variable": (["-ngl", "1"], "holds -ngl, which the role sets itself: take it out."),
    "of-a-later-version": (
        ["--log-everything"],
        "holds --log-everything, which the llama.cpp version that this collection pins does not have, so nobody has",
    ),
    "a-value-that-could-be-an-option": (["--reverse-prompt", "--dump"], "holds --dump, which the llama.cpp version"),
    "one-word": (["--top-k=20"], "holds --top-k, which is one word with its value, and llama.cpp takes two: give the"),
}
GOOD: dict[str, list[Any]] = {
    "nothing": [],
    "of-the-pages": ["--cache-type-k", "q8_0", "--cache-type-v", "q8_0", "--turns", "1"],
    "of-tune": ["--ubatch-size", "512", "--split-mode", "tensor", "-fa", "on", "-kvu", "--check-tensors"],
    "numbers": ["--top_k", 20, "--seed", "-1", "--min-p", "-.5", "-n", -1],
    "data": ["--chat-template-kwargs", '{"a": "-lv=5"}', "--logit-bias", "15043-1"],
    "of-an-earlier-version": ["--mlock", "--no-mmap"],
    "with-known-holes-of-its-own": ["--context-shift"],
}


def said(extra_args: object, **more: Any) -> list[str]:
    """Return what the role says of these options, with nothing else to complain of."""
    given = {
        "gguf_model_path": "/srv/models/m.gguf", "inference_endpoints": ["10.0.0.11:50052"],
        "llama_server_extra_args": extra_args, **more,
    }  # fmt: skip
    found: list[str] = worked_out(RULES["__llama_server_violations"], {**VARIABLES, **RULES, **given})
    return found


@pytest.mark.parametrize("name", BAD)
def test_an_option_that_would_break_what_the_pages_say_is_named(name: str) -> None:
    words, sentence = BAD[name]
    (found,) = said(words)
    assert found.startswith(f"llama_server_extra_args {sentence}")
    assert found.endswith(".")
    assert "secret" not in found


@pytest.mark.parametrize("name", GOOD)
def test_other_options_are_passed_on(name: str) -> None:
    assert said(GOOD[name]) == []


def test_each_option_has_a_sentence() -> None:
    found = said(["-b", "64", "-lv", "5", "--port", "1"])
    assert [sentence.split(", ")[0].rpartition(" ")[2] for sentence in found] == ["-lv", "--port"]


def test_a_client_with_a_name_is_refused_because_the_filter_would_leave_it_out() -> None:
    outside = {"llama_server_bind_address": "10.0.0.10"}
    assert said([], **outside, llama_server_trusted_sources=["10.0.0.0/24", "10.0.1.4"]) == []
    assert said([], **outside, llama_server_trusted_sources=["0.0.0.0/0"]) == []
    (found,) = said([], **outside, llama_server_trusted_sources=["gateway.example"])
    assert found.startswith("llama_server_trusted_sources cannot be used. gateway.example is neither an IPv4 or IPv6")


def test_a_text_is_no_list() -> None:
    assert said("--jinja") == [
        'llama_server_extra_args is --jinja, which is no list: give words, such as [--top-k, "20"].'
    ]


def test_what_the_role_gives_llama_server_is_its_own() -> None:
    everything = {
        "llama_server_ui": True, "inference_threads": 1, "llama_server_draft_model": "/c",
        "__llama_server_split": [1], "gguf_model_path": "/d", "inference_endpoints": ["10.0.0.11:50052"],
        "llama_server_extra_args": [], "llama_server_mmproj": "/e",
    }  # fmt: skip
    types = VARIABLES["__llama_server_spec_types"]
    given_to_it = {"--rpc", "--device", *(it["option"] for it in types.values())}
    for given in (everything, {**everything, "llama_server_ui": False}):
        words = worked_out(VARIABLES["__llama_server_settings"]["arguments"], {**VARIABLES, **given})
        given_to_it |= {word for word in words if word.startswith("--")}
    assert len(given_to_it) > 20
    endings = options.endings()
    assert [name for name in sorted(given_to_it) if not endings[name].startswith("which the role sets itself")] == []
