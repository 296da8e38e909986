# SPDX-License-Identifier: GPL-3.0-or-later
"""The progress of a run: read from real output of llama.cpp, written to a file, and shown in a line."""

from __future__ import annotations

import io
import stat
import sys
from pathlib import Path

import pytest
from ansible import constants
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.progress import Step, read_step
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.progress import (
    GENERATING,
    LOADING,
    PREPARING,
    PROMPT,
    VERIFYING,
    progress_in,
)
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils import _lines
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[3]
LOGS = ROOT / "tests/fixtures/logs"
# Real runs, and the dots that they print.
RUNS = {
    "protocol 7": ("completion-0c1e57098-rpc7.0.0-3workers-lv4", 54),
    "protocol 2": ("completion-4227c9be-rpc2.0.0", 37),
    "split mode tensor": ("completion-0c1e57098-rpc7.0.0-2workers-lv4-tensor", 54),
}


def followed(path: Path, pieces: list[bytes]) -> list[Step]:
    """Return the steps in the file after each piece of a log, without repetitions."""
    found: list[Step] = []
    with progress_in(str(path)) as progress:
        progress.begin(1, 100, 64)
        for piece in pieces:
            progress.log(piece)
            step = read_step(path.read_text())
            assert step is not None
            if not found or step != found[-1]:
                found.append(step)
    return found


def log_of(name: str) -> bytes:
    return (LOGS / f"{RUNS[name][0]}.log").read_bytes()


@pytest.mark.parametrize("name", RUNS)
def test_the_phases_of_a_real_run_come_in_order_and_its_file_is_the_users_alone(name: str, tmp_path: Path) -> None:
    log = log_of(name)
    steps = followed(tmp_path / "f", [log[i : i + 1] for i in range(len(log))])
    loading = [Step(LOADING, percent, 100) for percent in range(RUNS[name][1] + 1)]
    assert steps == [*loading, Step(PREPARING), Step(PROMPT)]
    with progress_in(str(tmp_path / "f")):
        assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o600
        assert read_step((tmp_path / "f").read_text()) == Step(VERIFYING)
    assert list(tmp_path.iterdir()) == []


@given(cuts=st.lists(st.integers(0, 20_000), max_size=30))
@settings(max_examples=25, deadline=None)
def test_it_is_the_same_in_whatever_pieces_the_log_comes(
    cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = log_of("protocol 7")
    edges = [0, *sorted(cut for cut in cuts if cut < len(log)), len(log)]
    last = followed(tmp_path_factory.mktemp("f") / "f", [log[a:b] for a, b in zip(edges, edges[1:])])[-1]
    assert last == Step(PROMPT)


ODD = b"llama-bench: benchmark 1/0: warmup prompt run\n\xff\x00" + b"." * 9999 + b"\n...\ngenerate: n_ctx = \n"


@given(log=st.lists(st.sampled_from([b".", b"\n", b"\r\n", ODD, b"generate: n_ctx = 1\n", b"x" * 5000]), max_size=20))
@settings(max_examples=50, deadline=None)
def test_no_log_ends_a_run(log: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    assert all(step.done <= max(step.total, 0) for step in followed(tmp_path_factory.mktemp("f") / "f", log))


def test_text_is_counted_and_never_beyond_what_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with progress_in(str(path)) as progress:
        progress.begin(1, 10, 3)
        progress.text(b"")
        assert progress.step.what == LOADING, "the end of an output is no text"
        progress.text(b" a")
        assert read_step(path.read_text()) == Step(GENERATING, 1, 3, "tokens at most")
        progress.log(b"generate: n_ctx = 1\n")
        assert progress.step.what == GENERATING, "nothing goes back"
        for _number in range(5):
            progress.text(b" b")
        assert progress.step.done == 3
        progress.begin(2, 10, 3)
        progress.log(b"...")
        assert progress.step == Step(f"{LOADING} again, as the end of the output was lost", 0, 10)


@pytest.mark.parametrize("obstacle", ["none wanted", "no folder", "a file", "a link"])
def test_a_run_goes_on_without_a_file(obstacle: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    victim = tmp_path / "victim"
    victim.write_text("kept")
    if obstacle == "a file":
        path.write_text("kept")
    if obstacle == "a link":
        path.symlink_to(victim)
    name = {"none wanted": None, "no folder": str(tmp_path / "none" / "f")}.get(obstacle, str(path))
    with progress_in(name) as progress:
        progress.begin(1, 10, 3)
        progress.log(log_of("protocol 7"))
        progress.text(b"a")
    assert victim.read_text() == "kept"
    assert obstacle != "a file" or path.read_text() == "kept"
    assert obstacle != "a link" or path.is_symlink()


@pytest.mark.parametrize(
    ("callback", "people"),
    [
        ("default", True),
        ("ansible.builtin.default", True),
        ("community.general.yaml", True),
        ("ansible.posix.json", False),
        ("minimal", False),
        ("somebody.s.own", False),
    ],
)
def test_lines_come_at_once_to_people_and_the_output_of_others_is_left_alone(
    callback: str, people: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DEFAULT_STDOUT_CALLBACK", callback)
    assert _lines.wanted() == people
    written = io.BytesIO()
    # Python's standard output for a file or a pipe; closed; and of another kind.
    for output in (io.TextIOWrapper(written), None, io.StringIO()):
        monkeypatch.setattr(sys, "stdout", output)
        _lines.come_at_once()
        if output:
            output.write("a line\n")
        assert (written.getvalue() == b"a line\n") == people
