# SPDX-License-Identifier: GPL-3.0-or-later
"""The releases of a host, the notes of upgrades, and what an earlier run still does."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.journal import (
    JournalError,
    at_work,
    read,
    wait,
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


def test_a_host_without_notes_and_one_without_anything(prefix: Path, tmp_path: Path) -> None:
    found = read(prefix)
    assert (found["current"], set(found["releases"])) == (OLD, {OLD, NEW})
    assert (found["unfinished"], found["finished"]) == (None, None)
    assert read(tmp_path / "none") == {"current": None, "releases": {}, "unfinished": None, "finished": None}


def test_notes_are_read(prefix: Path) -> None:
    (prefix / "upgrade.json").write_text(json.dumps(NOTE))
    (prefix / "upgraded.json").write_text(json.dumps({**NOTE, "run": "0"}))
    assert (read(prefix)["unfinished"], read(prefix)["finished"]) == (NOTE, {**NOTE, "run": "0"})


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", json.dumps({**NOTE, "from": "../../etc"}), json.dumps({**NOTE, "to": ""}), "\xff"],
)
def test_a_file_that_is_no_note_is_named(prefix: Path, text: str) -> None:
    (prefix / "upgrade.json").write_text(text, encoding="latin-1")
    with pytest.raises(JournalError, match=r"upgrade[.]json .*(remove it|correct that)"):
        read(prefix)


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
