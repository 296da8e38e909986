# SPDX-License-Identifier: GPL-3.0-or-later
"""The progress of a run: read from real output of llama.cpp, written to a file, and shown in a line."""

from __future__ import annotations

import io
import json
import stat
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from ansible import constants
from ansible_collections.llama_cpp.cluster.plugins.action.distributed_inference import (
    ProgressFormatter,
    loaded_percent,
    sent_bytes,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.progress import (
    GENERATING,
    LOADING,
    PREPARING,
    PROMPT,
    VERIFYING,
    State,
    progress_in,
    read_state,
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


def followed(path: Path, pieces: list[bytes]) -> list[State]:
    """Return the states in the file after each piece of a log, without repetitions."""
    found: list[State] = []
    with progress_in(str(path)) as progress:
        progress.begin(1, 10, 64, ["127.0.0.1:50052"])
        for piece in pieces:
            progress.log(piece)
            state = read_state(path.read_text())
            assert state is not None
            if not found or state != found[-1]:
                found.append(state)
    return found


def log_of(name: str) -> bytes:
    return (LOGS / f"{RUNS[name][0]}.log").read_bytes()


@pytest.mark.parametrize("name", RUNS)
def test_the_phases_of_a_real_run_come_in_order_and_its_file_is_the_users_alone(name: str, tmp_path: Path) -> None:
    log = log_of(name)
    states = followed(tmp_path / "f", [log[i : i + 1] for i in range(len(log))])
    assert list(dict.fromkeys(state.phase for state in states)) == [LOADING, PREPARING, PROMPT]
    assert [state.loaded_percent for state in states] == [*range(RUNS[name][1] + 1), 100, 100]
    with progress_in(str(tmp_path / "f")):
        assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o600
        assert read_state((tmp_path / "f").read_text()) == State(VERIFYING)
    assert list(tmp_path.iterdir()) == []


@given(cuts=st.lists(st.integers(0, 20_000), max_size=30))
@settings(max_examples=25, deadline=None)
def test_it_is_the_same_in_whatever_pieces_the_log_comes(
    cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = log_of("protocol 7")
    edges = [0, *sorted(cut for cut in cuts if cut < len(log)), len(log)]
    last = followed(tmp_path_factory.mktemp("f") / "f", [log[a:b] for a, b in zip(edges, edges[1:])])[-1]
    assert (last.phase, last.loaded_percent) == (PROMPT, 100.0)


ODD = b"llama-bench: benchmark 1/0: warmup prompt run\n\xff\x00" + b"." * 9999 + b"\n...\ngenerate: n_ctx = \n"


@given(log=st.lists(st.sampled_from([b".", b"\n", b"\r\n", ODD, b"generate: n_ctx = 1\n", b"x" * 5000]), max_size=20))
@settings(max_examples=50, deadline=None)
def test_no_log_ends_a_run(log: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    states = followed(tmp_path_factory.mktemp("f") / "f", log)
    assert all(0 <= state.loaded_percent <= 100 for state in states)


def test_text_is_counted_and_never_beyond_what_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with progress_in(str(path)) as progress:
        progress.begin(1, 10, 3, [])
        progress.text(b"")
        assert progress.state.phase == LOADING, "the end of an output is no text"
        progress.text(b" a")
        first = read_state(path.read_text())
        assert first is not None
        assert (first.phase, first.tokens) == (GENERATING, 1)
        progress.log(b"generate: n_ctx = 1\n")
        assert progress.state.phase == GENERATING, "nothing goes back"
        for _number in range(5):
            progress.text(b" b")
        assert progress.state.tokens == 3


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
        progress.begin(1, 10, 3, [])
        progress.log(log_of("protocol 7"))
        progress.text(b"a")
    assert victim.read_text() == "kept"
    assert obstacle != "a file" or path.read_text() == "kept"
    assert obstacle != "a link" or path.is_symlink()


WHOLE = json.dumps(asdict(State(LOADING)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        WHOLE[: len(WHOLE) // 2],
        "[1, 2]",
        '{"phase": "loading"}',
        WHOLE.replace('"tokens": 0', '"tokens": "x"'),
        WHOLE.replace('"model_bytes": 0', '"model_bytes": NaN'),
        WHOLE.replace('"loaded_percent": 0.0', '"loaded_percent": 1e999'),
        WHOLE.replace('"tokens": 0', '"tokens": -1'),
        WHOLE.replace('"model_bytes": 0', '"model_bytes": 1e300'),
        "[" * 1900,
    ],
    ids=["empty", "half", "list", "missing", "text", "no number", "no end", "negative", "beyond all", "deep"],
)
def test_what_is_no_state_is_none(text: str) -> None:
    assert read_state(text) is None


MIB = 2**20
SS = """\
0      0        10.0.0.1:44210    10.0.0.11:50052
\t bbr wscale:10,10 rto:208 rtt:6.181/11.264 cwnd:543 bytes_sent:9788536 bytes_acked:5242880
0      0        10.0.0.1:44212    10.0.0.12:50052
\t cubic wscale:7,7 rto:204 bytes_sent:45520 bytes_retrans:20 bytes_acked:5242880 segs_out:1711 minrtt:0.005
"""


@pytest.mark.parametrize(
    ("state", "sent", "percent"),
    [
        (State(LOADING), "", 0.0),
        # The dots of a small model are few; from the workers' caches nothing is sent.
        (State(LOADING, loaded_percent=20, model_bytes=20 * MIB), SS, 50.0),
        (State(LOADING, loaded_percent=70, model_bytes=20 * MIB), SS, 70.0),
        (State(LOADING, model_bytes=9 * MIB), SS, 99.0),
    ],
)
def test_what_is_loaded_is_what_workers_have_got_and_never_too_much(state: State, sent: str, percent: float) -> None:
    assert loaded_percent(state, sent_bytes(sent)) == percent


LOAD = State(LOADING, model_bytes=37 * 1024 * MIB, tokens_asked=64)
TEXT = State(GENERATING, tokens_asked=64)


def at(percent: float, **more: int) -> State:
    return replace(LOAD, loaded_percent=percent, **more)


# The states seen at which second, and the line for the last one.
LINES = {
    "before the load": ([(5, State(VERIFYING))], "verifying the workers"),
    "a first look gives no rate": ([(5, at(10))], "loading the model, 10 % of 37.0 GiB"),
    "nothing loaded gives no rate": ([(5, LOAD), (15, LOAD)], "loading the model, 0 % of 37.0 GiB"),
    "a rate": ([(5, at(10)), (10, at(20))], "loading the model, 20 % of 37.0 GiB, about 0:40 more"),
    "what came before the load is not in its rate": (
        [(5, State(VERIFYING)), (100, LOAD), (105, at(1)), (115, at(3))],
        "loading the model, 3 % of 37.0 GiB, about 8:05 more",
    ),
    "it stands": ([(5, at(10)), (600, at(10))], "loading the model, 10 % of 37.0 GiB"),
    "loaded": ([(5, State(PREPARING))], "the model is loaded, preparing the context"),
    "prompt": ([(5, State(PROMPT))], "reading the prompt"),
    "text has a rate of its own": (
        [(50, at(99)), (60, replace(TEXT, tokens=4)), (70, replace(TEXT, tokens=14))],
        "generating, 14 of at most 64 tokens, about 0:50 more",
    ),
    "all text": ([(5, replace(TEXT, tokens=4)), (70, replace(TEXT, tokens=64))], "generating, 64 of at most 64 tokens"),
    "again": (
        [(50, at(50)), (60, at(60, attempt=2))],
        "loading the model, 60 % of 37.0 GiB, attempt 2 as the end of the output was lost",
    ),
    "of a later release": ([(5, State("thinking"))], "running"),
}


@pytest.mark.parametrize(("looks", "line"), LINES.values(), ids=LINES.keys())
def test_a_line_says_where_a_run_is(looks: list[tuple[float, State]], line: str) -> None:
    teller = ProgressFormatter()
    assert [teller.line(state, 0, now) for now, state in looks][-1] == line


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
