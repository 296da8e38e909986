# SPDX-License-Identifier: GPL-3.0-or-later
"""The notes of an upgrade on a host are complete or missing, and they are true."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release import journal
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.journal import (
    JournalError,
    at_work,
    begin,
    finish,
    read,
    wait,
    withdraw,
)

OLD, NEW = "0.3.35-4df29be4f-a", "0.3.36-0c1e57098-b"
NOTE = {"run": "1", "from": OLD, "to": NEW, "time": "noon", "way": "upgrade"}


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    for name in (OLD, NEW):
        (tmp_path / "releases" / name).mkdir(parents=True)
        (tmp_path / "releases" / name / "manifest.json").write_text(json.dumps({"version": name[:6]}))
    (tmp_path / "releases" / f".{NEW}").mkdir()
    use(tmp_path, OLD)
    return tmp_path


def use(prefix: Path, release: str) -> None:
    (prefix / "current").unlink(missing_ok=True)
    (prefix / "current").symlink_to(f"releases/{release}")


def files(prefix: Path) -> set[str]:
    return {path.name for path in prefix.iterdir() if path.is_file() and not path.is_symlink()}


def test_a_host_without_notes_and_one_without_anything(prefix: Path, tmp_path: Path) -> None:
    found = read(prefix)
    assert (found["current"], set(found["releases"])) == (OLD, {OLD, NEW})
    assert (found["unfinished"], found["finished"]) == (None, None)
    assert read(tmp_path / "none") == {"current": None, "releases": {}, "unfinished": None, "finished": None}


def test_the_way_to_a_good_end(prefix: Path) -> None:
    assert begin(prefix, "1", NEW, "noon")
    assert read(prefix)["unfinished"] == NOTE
    assert not begin(prefix, "1", NEW, "noon"), "the same again changes nothing"
    use(prefix, NEW)
    assert finish(prefix, "1")
    assert files(prefix) == {"upgraded.json"}
    assert read(prefix)["finished"] == NOTE
    assert not finish(prefix, "1")


def test_the_way_back_keeps_what_the_upgrade_before_has_noted(prefix: Path) -> None:
    begin(prefix, "1", NEW, "noon")
    use(prefix, NEW)
    finish(prefix, "1")
    begin(prefix, "2", OLD, "later")
    use(prefix, OLD)
    use(prefix, NEW)
    assert withdraw(prefix, "2")
    assert (read(prefix)["unfinished"], read(prefix)["finished"]) == (None, NOTE)
    assert not withdraw(prefix, "2")


def test_what_only_this_host_has_noted_as_good_is_forgotten_with_it(prefix: Path) -> None:
    begin(prefix, "1", NEW, "noon")
    use(prefix, NEW)
    journal._write(prefix / "upgraded.json", NOTE)  # and then the run was ended
    use(prefix, OLD)
    assert withdraw(prefix, "1")
    assert files(prefix) == set()


def test_a_roll_back_is_noted_as_one(prefix: Path) -> None:
    begin(prefix, "1", NEW, "noon", way="rollback")
    assert read(prefix)["unfinished"] == {**NOTE, "way": "rollback"}


def test_check_mode_writes_nothing(prefix: Path) -> None:
    assert begin(prefix, "1", NEW, "noon", write=False)
    assert files(prefix) == set()
    begin(prefix, "1", NEW, "noon")
    assert withdraw(prefix, "1", write=False)
    assert files(prefix) == {"upgrade.json"}


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda prefix: begin(prefix, "2", NEW, "later"), "another upgrade, begun noon, has not ended"),
        (lambda prefix: finish(prefix, "1"), f"the release in use is {OLD}, and not {NEW}"),
        (lambda prefix: (use(prefix, NEW), withdraw(prefix, "1")), f"the release in use is {NEW}, and not {OLD}"),
    ],
    ids=["another-run", "not-there-yet", "not-back-yet"],
)
def test_a_note_that_would_be_wrong_is_refused(prefix: Path, act: Any, sentence: str) -> None:
    begin(prefix, "1", NEW, "noon")
    with pytest.raises(JournalError, match=sentence):
        act(prefix)
    assert read(prefix)["unfinished"] == NOTE


def test_a_release_that_is_not_there_is_refused(prefix: Path) -> None:
    with pytest.raises(JournalError, match="there is no release 1"):
        begin(prefix, "1", "1", "noon")
    (prefix / "current").unlink()
    with pytest.raises(JournalError, match="no release is in use"):
        begin(prefix, "1", NEW, "noon")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", json.dumps({**NOTE, "from": "../../etc"}), json.dumps({**NOTE, "to": ""}), "\xff"],
)
def test_a_file_that_is_no_note_is_named(prefix: Path, text: str) -> None:
    (prefix / "upgrade.json").write_text(text, encoding="latin-1")
    with pytest.raises(JournalError, match=r"upgrade[.]json .*(remove it|correct that)"):
        read(prefix)


def test_a_note_that_cannot_be_written_leaves_nothing(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal.os, "fsync", full)
    with pytest.raises(JournalError, match=r"upgrade[.]json cannot be written \(No space left on device\)"):
        begin(prefix, "1", NEW, "noon")
    assert files(prefix) == set()


def test_the_role_reads_the_note_without_python(prefix: Path) -> None:
    """tasks/probe.yml: sed -n 's/^ *"from": "\\(...\\)",*$/\\1/p'."""
    begin(prefix, "1", NEW, "noon")
    assert f'  "from": "{OLD}",\n' in (prefix / "upgrade.json").read_text()


@contextmanager
def task(prefix: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process like one of an upgrade's task; it ends with its input."""
    environment = {**os.environ, "LLAMA_CPP_CLUSTER_UPGRADE": str(prefix)}
    with subprocess.Popen(["cat"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        # The kernel has no environment of a process until the program is loaded. Its answer shows that it is.
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"x\n"
        yield process


def test_what_a_killed_run_still_does_is_waited_for_and_named(prefix: Path) -> None:
    wait(prefix, 0)
    with task(prefix) as process:
        assert at_work(prefix) == f"cat, process {process.pid}"
        assert at_work(prefix.parent) == "", "another installation's is nobody's business"
        with pytest.raises(JournalError, match=rf"has not ended within 1 s \(cat, process {process.pid}\): run this"):
            wait(prefix, 1)
    wait(prefix, 0)
