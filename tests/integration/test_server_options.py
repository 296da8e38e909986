# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of llama-server's options match its help, and its parser accepts what the check takes it to accept."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._serve import options

from support.harness import completed

if TYPE_CHECKING:
    from support.harness import Release

pytestmark = pytest.mark.llama

# A line of the help begins with all spellings of an option.
SPELLINGS = re.compile(r"^-{1,2}[^\W\d_][\w.-]*(?:, +-{1,2}[^\W\d_][\w.-]*)*", re.MULTILINE)
TABLES = (*options.OWN, *options.REFUSED.values(), *options.ALLOWED.values())


def asked(release: Release, *words: str) -> subprocess.CompletedProcess[str]:
    return completed(release.bin / "llama-server", *words)


@pytest.fixture(scope="module")
def spellings(release: Release) -> list[list[str]]:
    return [re.split(", +", names) for names in SPELLINGS.findall(asked(release, "--help").stdout)]


def test_each_spelling_of_an_option_is_classified_once(spellings: list[list[str]]) -> None:
    there = [name for names in spellings for name in names]
    assert len(there) > 400
    classified = Counter(" ".join(TABLES).split())
    where = "plugins/module_utils/_serve/options.py"
    assert sorted({*there} - {*classified}) == [], f"say in {where} whether the API allows these new options"
    assert sorted({*classified} - {*there}) == [], f"llama-server has these no more: take them out of {where}"
    assert [name for name, count in classified.items() if count > 1] == [], "these have two classes"


def test_all_spellings_of_an_option_have_one_reason(spellings: list[list[str]]) -> None:
    endings = options.endings()
    for names in spellings:
        # An option and its negation, such as --slots and --no-slots, may differ.
        for side in (True, False):
            same = [name for name in names if bool(re.match("-{1,2}no-|-n(kvo|r|ocb)$", name)) is side]
            assert len({endings[name] for name in same}) <= 1, same


def test_no_option_begins_as_the_check_does_not_expect(spellings: list[list[str]]) -> None:
    assert [name for names in spellings for name in names if not re.match(options.OPTION, name)] == []


def test_options_of_earlier_versions_are_not_in_this_one(spellings: list[list[str]]) -> None:
    assert {*options.EARLIER.split()} & {name for names in spellings for name in names} == set()


@pytest.mark.parametrize(
    ("word", "taken"),
    [("--top-k", True), ("--top_k", True), ("--top-", False), ("-top-k", False), ("--TOP-K", False)],
)
def test_names_are_complete_and_an_underscore_is_a_dash(release: Release, word: str, taken: bool) -> None:
    # --version ends the program as soon as it is read.
    done = asked(release, word, "1", "--version")
    assert (done.returncode == 0) is taken, done.stderr
    assert ("invalid argument" in done.stderr) is not taken


@pytest.mark.parametrize("word", ["--top-k=1", "--verbosity=5", "-lv5", "-lv 5", "-ctk_draft"])
def test_an_option_and_its_value_are_two_words(release: Release, word: str) -> None:
    done = asked(release, word, "--version")
    assert done.returncode != 0
    assert "invalid argument" in done.stderr
