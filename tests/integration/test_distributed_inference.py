# SPDX-License-Identifier: GPL-3.0-or-later
"""The module as users run it, on real workers: its results and its failures."""

from __future__ import annotations

import math
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.harness import HANG_S, Release, Worker, free_port, run_module
from support.runs import failure, generating, held_by_another_client, masters, wait_for, wrapped
from support.stand_in_workers import many_workers
from support.synthetic_models import write_synthetic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Start = Callable[..., Worker]
    Infer = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.llama

PROMPT = "Here's a knock knock joke for children:"
# Longer than any test waits: 16 thousand tokens.
ENDLESS = {"ctx_size": 16384, "n_predict": 16000, "extra_args": ["--ignore-eos"]}

VERIFY = pytest.mark.parametrize("verify", [True, False], ids=["verified", "unverified"])


@pytest.fixture
def infer(release: Release, model: Path) -> Infer:
    """Run the module over workers on this machine; return its result."""

    def run(
        *workers: str, check: bool = False, environment: dict[str, str] | None = None, **args: Any
    ) -> dict[str, Any]:
        given = {"bin_folder": str(release.bin), "model": str(model), "prompt": PROMPT, "n_predict": 16, **args}
        given = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
        arguments = {**given, "workers": workers}
        return run_module("distributed_inference", arguments, check=check, environment=environment)

    return run


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def http_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", free_port()), BaseHTTPRequestHandler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("kind", ["hybrid, every fourth", "dense"])
def test_split_mode_tensor_divides_states_too(infer: Infer, start: Start, tmp_path: Path, kind: str) -> None:
    """The slices of states are views of no elements on a worker that has none. Before protocol 8 they ended it."""
    path = write_synthetic(tmp_path / "m.gguf", kind, layers=4)
    workers = [start() for _number in range(3)]
    texts = set()
    for many, mode in ((1, "layer"), (2, "tensor"), (3, "tensor")):
        result = infer(*[worker.endpoint for worker in workers[:many]], model=path, extra_args=["--split-mode", mode])
        assert result["failure"] is None, result["msg"]
        texts.add(result["text"])
    assert len(texts) == 1
    assert all("[rpc_check] refused" not in worker.log.read_text() for worker in workers)


# Success


def test_the_text_is_the_same_over_one_two_and_three_workers(infer: Infer, start: Start) -> None:
    workers = [start() for _number in range(3)]
    texts = set()
    for count in (1, 2, 3):
        endpoints = [worker.endpoint for worker in workers[:count]]
        result = infer(*endpoints)
        assert result["failure"] is None
        texts.add(result["text"])
        held = {device["endpoint"]: device for device in result["devices"] if device["endpoint"]}
        assert sorted(held) == sorted(endpoints)
        for device in held.values():
            assert device["model_buffer_mib"] > 1
            assert device["kv_buffer_mib"] > 1
            assert device["compute_buffer_mib"] > 1
        assert result["offload"] == {"layers": 9, "layers_total": 9}
        perf = result["perf"]
        assert perf["eval"]["runs"] == 15
        assert perf["prompt_eval"]["tokens"] > 5
        assert 0 < perf["eval"]["time_ms"] < perf["total"]["time_ms"] < result["wall_time_ms"]
        assert perf["eval"]["tokens_per_second"] > 1
    assert len(texts) == 1
    (text,) = texts
    # The model of random weights generates one word a token.
    assert len(text.split()) == 16


def test_a_prompt_a_path_and_a_name_are_taken_as_they_are(
    infer: Infer, model: Path, start: Start, tmp_path: Path
) -> None:
    endpoint = f"LocalHost:{start().port}"
    odd = tmp_path / "m\u00f6d\u00e9l $ ; 'x' %s \u0022 \u6a21"
    odd.symlink_to(model)
    tokens = {}
    special = "'q' \"d\" $HOME `x` ü "
    for prompt in ("--help", special + "a\nb\nc", special + r"a\nb\nc", ""):
        result = infer(endpoint, model=odd, prompt=prompt, n_predict=4)
        assert result["failure"] is None, (prompt, result["msg"])
        assert [device["endpoint"] for device in result["devices"] if device["endpoint"]] == [endpoint]
        assert len(result["text"].split()) == 4
        tokens[prompt] = result["perf"]["prompt_eval"]["tokens"]
    # A backslash and an n are two characters, not a line feed.
    assert tokens[special + r"a\nb\nc"] > tokens[special + "a\nb\nc"]


def test_a_prompt_longer_than_a_command_line_is_read_whole(infer: Infer, start: Start) -> None:
    words = 25_000
    result = infer(start().endpoint, prompt="garden " * words)
    assert failure(result) == ("option_rejected", None)
    counted = int(result["msg"].split(" tokens")[0].rsplit(" ", 1)[1])
    assert words <= counted <= words + 10
    assert "-bf" in result["command"]


def test_the_program_gets_no_input_no_debugger_and_a_limit_from_the_model_s_size(
    infer: Infer, release: Release, model: Path, start: Start, tmp_path: Path
) -> None:
    programs = wrapped(
        release, tmp_path, r"{ readlink /proc/$$/fd/0; tr '\0' ' ' </proc/$PPID/cmdline; echo; env; } >$here/seen"
    )
    result = infer(start().endpoint, bin_folder=programs, environment={"LLAMA_ARG_TOP_K": "x"})
    assert result["failure"] is None, result["msg"]
    stdin, limited, *environment = (tmp_path / "seen").read_text().splitlines()
    assert stdin == "/dev/null"
    seconds = 120 + model.stat().st_size / 10_000_000 + len(PROMPT) / 40 + 16 * 2
    assert f"timeout -s TERM -k 5 {math.ceil(seconds)} {programs}/" in limited
    assert {"GGML_NO_BACKTRACE=1", "GGML_RPC_NO_COMM=1"} <= set(environment)
    assert not [line for line in environment if line.startswith("LLAMA_ARG_")]


CUT = r"""
n=$(($(cat $here/runs 2>/dev/null) + 1)); echo $n >$here/runs
if [ $n -le LIMIT ]; then
  until "$real" "$@" >$here/out 2>$here/log && grep -q "graphs reused" $here/log; do :; done
  sed -n 'PART' $here/log >&2
  head -c BYTES $here/out
  exit 0
fi"""


def cut(times: int, lines: str, size: int) -> str:
    """Return a script that cuts off a run's output, as upstream's logger does on a busy host."""
    return CUT.replace("LIMIT", str(times)).replace("PART", lines).replace("BYTES", str(size))


@pytest.mark.parametrize(
    ("lines", "size"),
    # If the figures are in the log, the text is complete.
    [("/ total time/q;p", 9999), ("", 20)],
    ids=["last-figures", "everything"],
)
def test_a_run_that_lost_its_last_lines_is_repeated(
    infer: Infer, release: Release, start: Start, tmp_path: Path, lines: str, size: int
) -> None:
    worker = start()
    whole = infer(worker.endpoint)
    result = infer(worker.endpoint, bin_folder=wrapped(release, tmp_path, cut(1, lines, size)))
    assert result["failure"] is None, result["msg"]
    assert result["text"] == whole["text"]
    assert result["perf"]["eval"]["runs"] == 15
    assert "log_tail" not in result
    assert result["attempts"] == int((tmp_path / "runs").read_text()) >= 2
    assert "warnings" not in result


def test_a_text_that_may_be_cut_off_is_no_result(infer: Infer, release: Release, start: Start, tmp_path: Path) -> None:
    worker = start()
    programs = wrapped(release, tmp_path, cut(99, "/_perf_print/!p", 20))
    result = infer(worker.endpoint, bin_folder=programs)
    assert failure(result) == ("unknown", None)
    assert "the text may be cut off; run again" in result["msg"]
    assert (result["attempts"], (tmp_path / "runs").read_text()) == (6, "6\n")
    # The time limit leaves no time for another attempt.
    result = infer(worker.endpoint, bin_folder=wrapped(release, tmp_path, "sleep 5" + cut(99, "", 20)), timeout=10)
    assert failure(result) == ("unknown", None)
    assert (result["attempts"], (tmp_path / "runs").read_text()) == (1, "7\n")


def test_a_whole_text_counts_although_its_last_figures_are_lost_and_a_repetition_fails(
    infer: Infer, release: Release, start: Start, tmp_path: Path
) -> None:
    programs = wrapped(release, tmp_path, cut(1, "/ total time/q;p", 9999) + cut(99, "", 20))
    result = infer(start().endpoint, bin_folder=programs)
    assert result["failure"] is None, result["msg"]
    assert len(result["text"].split()) == 16
    assert result["perf"]["eval"]["runs"] == 15
    assert result["perf"]["total"] == {"time_ms": None, "tokens": None}
    assert result["attempts"] == 2
    assert "log_tail" not in result


def test_check_mode_verifies_the_workers_and_runs_nothing(
    infer: Infer, release: Release, start: Start, tmp_path: Path
) -> None:
    worker = start()
    result = infer(worker.endpoint, bin_folder=wrapped(release, tmp_path, "touch $here/run"), check=True)
    assert not (tmp_path / "run").exists()
    assert result["failure"] is None
    assert (result["text"], result["perf"], result["wall_time_ms"], result["attempts"]) == (None, None, None, 0)
    assert "--rpc" in result["command"]
    missing = f"127.0.0.1:{free_port()}"
    assert failure(infer(worker.endpoint, missing, check=True)) == ("worker_unreachable", missing)


# Workers that are not as they should be


@VERIFY
def test_a_refused_worker(infer: Infer, start: Start, verify: bool) -> None:
    missing = f"127.0.0.1:{free_port()}"
    result = infer(start().endpoint, missing, verify=verify)
    assert failure(result) == ("worker_unreachable", missing)
    assert "start the RPC server" in result["msg"]
    assert (result["wall_time_ms"] is None) == verify


def test_a_held_worker_is_busy(infer: Infer, start: Start) -> None:
    free, held = start(), start()
    with held_by_another_client(held):
        result = infer(free.endpoint, held.endpoint)
        assert failure(result) == ("worker_busy", held.endpoint)
        assert held.alive
    assert infer(free.endpoint, held.endpoint)["failure"] is None


def test_a_held_worker_that_nobody_asked_first_is_named_when_time_is_out(infer: Infer, start: Start) -> None:
    free, held = start(), start()
    with held_by_another_client(held):
        result = infer(free.endpoint, held.endpoint, verify=False, timeout=2)
        assert failure(result) == ("timed_out", held.endpoint)
        assert "another client most likely holds it" in result["msg"]
        assert not masters(free.endpoint)
        assert free.alive
        assert held.alive


def test_a_worker_killed_during_generation_is_named(infer: Infer, start: Start) -> None:
    stays, dies = start(), start()
    with ThreadPoolExecutor() as pool:
        run = pool.submit(infer, stays.endpoint, dies.endpoint, **ENDLESS)
        wait_for(lambda: generating(dies))
        dies.kill()
        result = run.result(HANG_S)
    assert failure(result) == ("worker_lost", dies.endpoint)
    assert result["text"]
    assert {device["endpoint"] for device in result["devices"]} >= {stays.endpoint, dies.endpoint}
    assert result["log_tail"]
    assert infer(stays.endpoint)["failure"] is None


@VERIFY
def test_a_worker_of_another_protocol_is_named_and_harmed_by_no_run(infer: Infer, start: Start, verify: bool) -> None:
    ours = start()
    with many_workers(1, major=5) as (theirs,):
        result = infer(ours.endpoint, theirs, verify=verify)
    assert failure(result) == ("protocol_mismatch", theirs)
    assert f"Worker {theirs} speaks RPC protocol 5.0.0 and this master 8.0.0; install the same" in result["msg"]
    assert infer(ours.endpoint)["failure"] is None


@VERIFY
def test_what_is_no_worker(infer: Infer, start: Start, verify: bool) -> None:
    with http_server() as endpoint:
        # Without verification, llama.cpp and that server wait for each other.
        result = infer(start().endpoint, endpoint, verify=verify, timeout=2)
    assert failure(result) == ("worker_unreachable" if verify else "timed_out", endpoint)
    assert "does not behave like a llama.cpp RPC server" in result["msg"]


def test_a_worker_that_cannot_allocate_is_named(infer: Infer, start: Start) -> None:
    # A cache of 131072 tokens takes 1 GiB.
    small = start(prefix=("prlimit", "--as=400000000"))
    result = infer(small.endpoint, ctx_size=131072)
    assert failure(result) == ("out_of_memory", small.endpoint)
    assert "lower ctx_size" in result["msg"]


def test_a_worker_that_got_no_layer_is_a_failure_although_the_program_is_content(infer: Infer, start: Start) -> None:
    busy, idle = start(), start()
    result = infer(busy.endpoint, idle.endpoint, tensor_split=[1, 0.0001])
    assert failure(result) == ("worker_dropped", idle.endpoint)
    assert len(result["text"].split()) == 16
    assert "tensor_split" in result["msg"]


def test_a_worker_under_two_names_is_refused(infer: Infer, start: Start) -> None:
    worker = start()
    result = infer(worker.endpoint, f"localhost:{worker.port}")
    assert failure(result) == ("option_rejected", f"localhost:{worker.port}")
    assert "are one worker" in result["msg"]


def test_a_worker_that_stands_still_is_named_before_time_is_out(infer: Infer, start: Start) -> None:
    goes, stands = start(), start()
    with ThreadPoolExecutor() as pool:
        run = pool.submit(infer, goes.endpoint, stands.endpoint, stall_timeout=2, **ENDLESS)
        wait_for(lambda: generating(stands))
        stands.process.send_signal(signal.SIGSTOP)
        result = run.result(HANG_S)
    assert failure(result) == ("timed_out", stands.endpoint)
    assert "The run stood still for 2 s and was ended." in result["msg"]
    assert not masters(goes.endpoint)


# The master's side


@pytest.mark.parametrize("size", [5_000_000, 1000], ids=["in-the-tensors", "in-the-header"])
def test_a_truncated_model_is_invalid(infer: Infer, model: Path, start: Start, tmp_path: Path, size: int) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(model.read_bytes()[:size])
    result = infer(start().endpoint, model=bad)
    assert failure(result) == ("model_invalid", None)
    # The message quotes upstream's own message, unless upstream lost it.
    assert str(bad) in result["msg"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"extra_args": ["--no-such-flag"]}, "no option --no-such-flag"),
        ({"extra_args": ["--top-k", "many"]}, "does not take this value of --top-k"),
        ({"extra_args": ["-p", "other"]}, "extra_args must not contain -p; use the option prompt"),
        ({"ctx_size": 64, "prompt": "garden " * 100}, "tokens and there is room for"),
    ],
    ids=["unknown", "bad-value", "owned-by-the-module", "prompt-too-long"],
)
def test_an_option_that_is_rejected(infer: Infer, start: Start, args: dict[str, Any], message: str) -> None:
    result = infer(start().endpoint, **args)
    assert failure(result) == ("option_rejected", None)
    assert message in result["msg"]


def test_a_run_that_takes_too_long_is_ended_and_leaves_nothing_behind(infer: Infer, start: Start) -> None:
    worker = start()
    result = infer(worker.endpoint, timeout=5, **ENDLESS)
    assert failure(result) == ("timed_out", None)
    assert "within 5 s" in result["msg"]
    assert result["text"]
    assert 5000 <= result["wall_time_ms"] < 11000
    assert not masters(worker.endpoint)


def test_a_master_killed_by_the_system_is_short_of_memory(infer: Infer, start: Start) -> None:
    worker = start()
    with ThreadPoolExecutor() as pool:
        run = pool.submit(infer, worker.endpoint, **ENDLESS)
        wait_for(lambda: generating(worker))
        (pid,) = masters(worker.endpoint)
        os.kill(pid, signal.SIGKILL)
        result = run.result(HANG_S)
    assert failure(result) == ("out_of_memory", None)
    assert "killed by the system" in result["msg"]


def test_nothing_is_left_when_the_module_itself_is_killed(infer: Infer, start: Start) -> None:
    worker = start()
    with ThreadPoolExecutor() as pool:
        run = pool.submit(infer, worker.endpoint, timeout=8, **ENDLESS)
        wait_for(lambda: generating(worker))
        (pid,) = masters(worker.endpoint)
        # The parent of the program is its time limit, and the parent of that is the module.
        os.kill(parent(parent(pid)), signal.SIGKILL)
        assert run.exception(HANG_S) is not None or "failed" in run.result()
    wait_for(lambda: not masters(worker.endpoint), limit=15)
    assert not worker.alive or wait_for(lambda: not worker.held())


def test_a_host_without_the_means_to_limit_a_run_is_told_what_to_install(infer: Infer, tmp_path: Path) -> None:
    result = infer("127.0.0.1", environment={"PATH": str(tmp_path)})
    assert failure(result) == ("binary_missing", None)
    assert "no program timeout on this host; install GNU coreutils" in result["msg"]


def test_the_share_of_each_worker_is_as_asked(infer: Infer, start: Start) -> None:
    endpoints = [start().endpoint for _number in range(2)]
    for split in ([1, 3], [3, 1]):
        result = infer(*endpoints, tensor_split=split)
        assert result["failure"] is None
        sizes = {device["endpoint"]: device["model_buffer_mib"] for device in result["devices"]}
        first, second = (sizes[endpoint] for endpoint in endpoints)
        assert (second > 1.5 * first) if split == [1, 3] else (first > 1.5 * second)


def test_the_environment_does_not_change_the_run(infer: Infer, start: Start) -> None:
    worker = start()
    names = {"LLAMA_ARG_RPC": f"127.0.0.1:{free_port()}", "LLAMA_ARG_LOG_VERBOSITY": "0", "LLAMA_ARG_TOP_K": "x"}
    assert infer(worker.endpoint, environment=names)["failure"] is None


def test_a_worker_that_goes_between_verification_and_run_is_missed(
    infer: Infer, release: Release, start: Start, tmp_path: Path
) -> None:
    stays, goes = start(), start()
    programs = wrapped(release, tmp_path, f"kill -9 {goes.process.pid}; while kill -0 {goes.process.pid}; do :; done")
    with ThreadPoolExecutor() as pool:
        run = pool.submit(infer, stays.endpoint, goes.endpoint, bin_folder=programs)
        goes.process.wait(HANG_S)
        result = run.result(HANG_S)
    assert failure(result) == ("worker_unreachable", goes.endpoint)
    assert result["wall_time_ms"] is not None
    assert not result["text"]
