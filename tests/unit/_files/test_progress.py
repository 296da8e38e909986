# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules note about the bytes of files, and what is read of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files import progress
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.progress import (
    DOWNLOADING,
    VERIFYING,
    Count,
    Step,
    noted,
    read_step,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.record import digest_of_file

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "WRITE_EVERY_S", 0)


def test_files_count_as_one_if_all_sizes_are_known(tmp_path: Path) -> None:
    path = tmp_path / "note"
    with noted(str(path)) as note:
        for sizes, done in (([70, 30], Step(DOWNLOADING, 75, 100)), ([70, None], Step(DOWNLOADING, 5, 30))):
            count = Count(note, sizes)
            count.next(70)
            count.tell(DOWNLOADING, 5, 30)
            assert read_step(path.read_text()) == done
        # A note is never shorter than the last one, so that no rest of that remains.
        Count(note, [None]).tell(VERIFYING, 1, None)
        assert read_step(path.read_text()) == Step(VERIFYING, 1, 0)
    assert not path.exists()


def test_a_digest_tells_how_far_it_is(tmp_path: Path) -> None:
    file, told = tmp_path / "file", []
    file.write_bytes(bytes(3 << 20))
    digest_of_file(file, tell=lambda *words: told.append(words))
    assert told == [(VERIFYING, done << 20, 3 << 20) for done in (1, 2, 3)]


def test_a_note_that_nobody_reads_is_not_written_and_what_is_none_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("of somebody else")
    for path in (None, str(tmp_path / "taken"), str(tmp_path / "missing/note")):
        with noted(path) as note:
            Count(note, [1]).tell(DOWNLOADING, 1, 1)
            assert not note.is_read
    assert (tmp_path / "taken").read_text() == "of somebody else"
    whole = Step("x", 1, 2).noted()
    wrong = [whole.replace("1", value) for value in ('"y"', "-1", "NaN", "1e999", "1e300")]
    for text in ("", whole[:9], "[]", "[" * 1900, '{"what": "x"}', *wrong):
        assert read_step(text) is None, text
