# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of llama-server's options, and the check for the module that measures a server of its own."""

from __future__ import annotations

import re

from ansible_collections.llama_cpp.cluster.plugins.module_utils._serve.options import EARLIER, OWN, endings, refusals

from support.tree import ROOT

RECORDED = ROOT / "tests/fixtures/capabilities"


def test_options_of_earlier_versions_are_those_of_recorded_help() -> None:
    texts = [path.read_text() for path in RECORDED.glob("*-help.txt") if "b11549" not in path.name]
    known = set(re.findall(r"(?<![\w-])-{1,2}[a-z][\w-]*", "\n".join(texts)))
    assert {*EARLIER.split()} <= known


def test_who_sets_fewer_options_allows_more() -> None:
    known = endings({"-m --model": "model"}, "the module")
    assert refusals(["-m", "x"], "extra_args", known) == [
        "extra_args holds -m, which the module sets itself: use model."
    ]
    assert refusals(["--lora", "x", "--spec-type", "ngram-mod"], "extra_args", known) == []
    assert refusals(["-lv", "5"], "extra_args", known)[0].startswith("extra_args holds -lv, which could write prompts")
    assert all(endings()[name] for names in OWN for name in names.split())
