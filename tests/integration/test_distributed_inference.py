# SPDX-License-Identifier: GPL-3.0-or-later
"""The module as users run it, on real workers: its results and its failures."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
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

    StartWorker = Callable[..., Worker]

pytestmark = pytest.mark.llama

PROMPT = "Here's a knock knock joke for children:"
# Longer than any test waits: 16 thousand tokens.
ENDLESS = {"ctx_size": 16384, "n_predict": 16000, "extra_args": ["--ignore-eos"]}

VERIFY = pytest.mark.parametrize("verify", [True, False], ids=["verified", "unverified"])


def infer(
    release: Release | Path,
    model: Path,
    *workers: str,
    check: bool = False,
    environment: dict[str, str] | None = None,
    **args: Any,
) -> dict[str, Any]:
    """Run the module on this machine and return its result."""
    bin_folder = release.bin if isinstance(release, Release) else release
    given = {"bin_folder": str(bin_folder), "model": str(model), "prompt": PROMPT, "workers": workers, "n_predict": 16}
    return run_module("distributed_inference", {**given, **args}, check=check, environment=environment)


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
def test_split_mode_tensor_is_refused_for_models_whose_states_it_cannot_divide(
    release_7: Release, start_worker: StartWorker, tmp_path: Path, kind: str
) -> None:
    """The pinned llama.cpp itself is asked first: if it can divide such a model, the refusal is needless."""
    path = write_synthetic(tmp_path / "m.gguf", kind, layers=4)
    workers = [start_worker(release_7) for _number in range(2)]
    endpoints = [worker.endpoint for worker in workers]
    command = [release_7.bin / "llama-completion", "-m", path, "--rpc", ",".join(endpoints), "-ngl", "99", "-c", "512"]
    done = subprocess.run(
        [*command, "-sm", "tensor", "-fit", "off", "-n", "4", "-p", "the", "-no-cnv"],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=HANG_S, check=False,
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
    )  # fmt: skip
    refused = [worker for worker in workers if "[rpc_check] refused: operation VIEW" in worker.log.read_text()]
    result = infer(release_7, path, *endpoints, extra_args=["--split-mode", "tensor"])
    assert all(worker.alive for worker in workers)
    if kind == "dense":
        assert (done.returncode, refused, result["failure"]) == (0, [], None)
    else:
        assert (done.returncode != 0, len(refused) > 0) == (True, True)
        assert failure(result) == ("option_rejected", None)
        assert result["msg"].startswith("llama.cpp cannot divide a model of architecture qwen35 among 2 workers in ")


# Success


def test_the_text_is_the_same_over_one_two_and_three_workers(
    release_7: Release, model: Path, start_worker: StartWorker
) -> None:
    workers = [start_worker(release_7) for _number in range(3)]
    texts = set()
    for count in (1, 2, 3):
        endpoints = [worker.endpoint for worker in workers[:count]]
        result = infer(release_7, model, *endpoints)
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


def test_the_share_of_each_worker_is_as_asked(release_7: Release, model: Path, start_worker: StartWorker) -> None:
    endpoints = [start_worker(release_7).endpoint for _number in range(2)]
    for split in ([1, 3], [3, 1]):
        result = infer(release_7, model, *endpoints, tensor_split=split)
        assert result["failure"] is None
        sizes = {device["endpoint"]: device["model_buffer_mib"] for device in result["devices"]}
        first, second = (sizes[endpoint] for endpoint in endpoints)
        assert (second > 1.5 * first) if split == [1, 3] else (first > 1.5 * second)


def test_split_mode_tensor_uses_all_workers(release_7: Release, model: Path, start_worker: StartWorker) -> None:
    endpoints = [start_worker(release_7).endpoint for _number in range(2)]
    for verify in (True, False):
        result = infer(release_7, model, *endpoints, verify=verify, extra_args=["-sm", "tensor"])
        assert result["failure"] is None, result["msg"]
        assert len(result["text"].split()) == 16


def test_a_prompt_is_taken_as_it_is(release_7: Release, model: Path, start_worker: StartWorker) -> None:
    worker = start_worker(release_7)
    tokens = {}
    special = "'q' \"d\" $HOME `x` ü "
    for prompt in ("--help", special + "a\nb\nc", special + r"a\nb\nc", ""):
        result = infer(release_7, model, worker.endpoint, prompt=prompt, n_predict=4)
        assert result["failure"] is None, (prompt, result["msg"])
        assert len(result["text"].split()) == 4
        tokens[prompt] = result["perf"]["prompt_eval"]["tokens"]
    # A backslash and an n are two characters, not a line feed.
    assert tokens[special + r"a\nb\nc"] > tokens[special + "a\nb\nc"]


def test_a_prompt_longer_than_a_command_line_is_read_whole(
    release_7: Release, model: Path, start_worker: StartWorker
) -> None:
    words = 25_000
    result = infer(release_7, model, start_worker(release_7).endpoint, prompt="garden " * words)
    assert failure(result) == ("option_rejected", None)
    counted = int(result["msg"].split(" tokens")[0].rsplit(" ", 1)[1])
    assert words <= counted <= words + 10
    assert "-bf" in result["command"]


def test_the_environment_does_not_change_the_run(release_7: Release, model: Path, start_worker: StartWorker) -> None:
    worker = start_worker(release_7)
    names = {"LLAMA_ARG_RPC": f"127.0.0.1:{free_port()}", "LLAMA_ARG_LOG_VERBOSITY": "0", "LLAMA_ARG_TOP_K": "x"}
    assert infer(release_7, model, worker.endpoint, environment=names)["failure"] is None


def test_the_program_gets_no_input_no_debugger_and_a_limit_from_the_model_s_size(
    release_7: Release, model: Path, start_worker: StartWorker, tmp_path: Path
) -> None:
    programs = wrapped(
        release_7, tmp_path, r"{ readlink /proc/$$/fd/0; tr '\0' ' ' </proc/$PPID/cmdline; echo; env; } >$here/seen"
    )
    result = infer(programs, model, start_worker(release_7).endpoint, environment={"LLAMA_ARG_TOP_K": "x"})
    assert result["failure"] is None, result["msg"]
    stdin, limited, *environment = (tmp_path / "seen").read_text().splitlines()
    assert stdin == "/dev/null"
    seconds = 120 + model.stat().st_size / 10_000_000 + len(PROMPT) / 40 + 16 * 2
    assert f"timeout -s TERM -k 5 {math.ceil(seconds)} {programs}/" in limited
    assert "GGML_NO_BACKTRACE=1" in environment
    assert not [line for line in environment if line.startswith("LLAMA_ARG_")]


def test_names_and_paths_may_be_of_any_spelling(
    release_7: Release, model: Path, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker(release_7)
    odd = tmp_path / "m\u00f6d\u00e9l $ ; 'x' %s \u0022 \u6a21"
    odd.symlink_to(model)
    result = infer(release_7, odd, f"LocalHost:{worker.port}")
    assert result["failure"] is None, result["msg"]
    assert [d["endpoint"] for d in result["devices"] if d["endpoint"]] == [f"LocalHost:{worker.port}"]
    assert str(odd) in result["command"]


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
    release_7: Release, model: Path, start_worker: StartWorker, tmp_path: Path, lines: str, size: int
) -> None:
    worker = start_worker(release_7)
    whole = infer(release_7, model, worker.endpoint)
    result = infer(wrapped(release_7, tmp_path, cut(1, lines, size)), model, worker.endpoint)
    assert result["failure"] is None, result["msg"]
    assert result["text"] == whole["text"]
    assert result["perf"]["eval"]["runs"] == 15
    assert "log_tail" not in result
    assert result["attempts"] == int((tmp_path / "runs").read_text()) >= 2
    assert "warnings" not in result


def test_a_text_that_may_be_cut_off_is_no_result(
    release_7: Release, model: Path, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker(release_7)
    programs = wrapped(release_7, tmp_path, cut(99, "/_perf_print/!p", 20))
    result = infer(programs, model, worker.endpoint)
    assert failure(result) == ("unknown", None)
    assert "the text may be cut off; run again" in result["msg"]
    assert (result["attempts"], (tmp_path / "runs").read_text()) == (6, "6\n")
    # The time limit leaves no time for another attempt.
    result = infer(wrapped(release_7, tmp_path, "sleep 5" + cut(99, "", 20)), model, worker.endpoint, timeout=10)
    assert failure(result) == ("unknown", None)
    assert (result["attempts"], (tmp_path / "runs").read_text()) == (1, "7\n")


def test_a_whole_text_counts_although_its_last_figures_are_lost_and_a_repetition_fails(
    release_7: Release, model: Path, start_worker: StartWorker, tmp_path: Path
) -> None:
    programs = wrapped(release_7, tmp_path, cut(1, "/ total time/q;p", 9999) + cut(99, "", 20))
    result = infer(programs, model, start_worker(release_7).endpoint)
    assert result["failure"] is None, result["msg"]
    assert len(result["text"].split()) == 16
    assert result["perf"]["eval"]["runs"] == 15
    assert result["perf"]["total"] == {"time_ms": None, "tokens": None}
    assert result["attempts"] == 2
    assert "log_tail" not in result


def test_check_mode_verifies_the_workers_and_runs_nothing(
    release_7: Release, model: Path, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker(release_7)
    result = infer(wrapped(release_7, tmp_path, "touch $here/run"), model, worker.endpoint, check=True)
    assert not (tmp_path / "run").exists()
    assert result["failure"] is None
    assert (result["text"], result["perf"], result["wall_time_ms"], result["attempts"]) == (None, None, None, 0)
    assert "--rpc" in result["command"]
    missing = f"127.0.0.1:{free_port()}"
    assert failure(infer(release_7, model, worker.endpoint, missing, check=True)) == ("worker_unreachable", missing)


# Workers that are not as they should be


@VERIFY
def test_a_refused_worker(release_7: Release, model: Path, start_worker: StartWorker, verify: bool) -> None:
    missing = f"127.0.0.1:{free_port()}"
    result = infer(release_7, model, start_worker(release_7).endpoint, missing, verify=verify)
    assert failure(result) == ("worker_unreachable", missing)
    assert "start the RPC server" in result["msg"]
    assert (result["wall_time_ms"] is None) == verify


def test_a_worker_that_goes_between_verification_and_run_is_missed(
    release_7: Release, model: Path, start_worker: StartWorker, tmp_path: Path
) -> None:
    stays, goes = start_worker(release_7), start_worker(release_7)
    programs = wrapped(release_7, tmp_path, f"kill -9 {goes.process.pid}; while kill -0 {goes.process.pid}; do :; done")
    with ThreadPoolExecutor() as pool:
        run = pool.submit(infer, programs, model, stays.endpoint, goes.endpoint)
        goes.process.wait(HANG_S)
        result = run.result(HANG_S)
    assert failure(result) == ("worker_unreachable", goes.endpoint)
    assert result["wall_time_ms"] is not None
    assert not result["text"]


def test_a_held_worker_is_busy(release_7: Release, model: Path, start_worker: StartWorker) -> None:
    free, held = start_worker(release_7), start_worker(release_7)
    with held_by_another_client(held):
        result = infer(release_7, model, free.endpoint, held.endpoint)
        assert failure(result) == ("worker_busy", held.endpoint)
        assert held.alive
    assert infer(release_7, model, free.endpoint, held.endpoint)["failure"] is None


def test_a_held_worker_that_nobody_asked_first_is_named_when_time_is_out(
    release_7: Release, model: Path, start_worker: StartWorker
) -> None:
    free, held = start_worker(release_7), start_worker(release_7)
    with held_by_another_client(held):
        result = infer(release_7, model, free.endpoint, held.endpoint, verify=False, timeout=2)
        assert failure(result) == ("timed_out", held.endpoint)
        assert "another client most likely holds it" in result["msg"]
        assert not masters(free.endpoint)
        assert free.alive
        assert held.alive


def test_a_worker_killed_during_generation_is_named(release_7: Release, model: Path, start_worker: StartWorker) -> None:
    stays, dies = start_worker(release_7), start_worker(release_7)
    with ThreadPoolExecutor() as pool:
        run = pool.submit(infer, release_7, model, stays.endpoint, dies.endpoint, **ENDLESS)
        wait_for(lambda: generating(dies))
        dies.kill()
        result = run.result(HANG_S)
    assert failure(result) == ("worker_lost", dies.endpoint)
    assert result["text"]
    assert {device["endpoint"] for device in result["devices"]} >= {stays.endpoint, dies.endpoint}
    assert result["log_tail"]
    assert infer(release_7, model, stays.endpoint)["failure"] is None


@VERIFY
def test_a_worker_of_another_protocol_is_named_and_harmed_by_no_run(
    release_7: Release, model: Path, start_worker: StartWorker, verify: bool
) -> None:
    ours = start_worker(release_7)
    with many_workers(1, major=5) as (theirs,):
        result = infer(release_7, model, ours.endpoint, theirs, verify=verify)
    assert failure(result) == ("protocol_mismatch", theirs)
    assert f"Worker {theirs} speaks RPC protocol 5.0.0 and this master 7.0.0; install the same" in result["msg"]
    assert infer(release_7, model, ours.endpoint)["failure"] is None


@VERIFY
def test_what_is_no_worker(release_7: Release, model: Path, start_worker: StartWorker, verify: bool) -> None:
    with http_server() as endpoint:
        # Without verification, llama.cpp and that server wait for each other.
        result = infer(release_7, model, start_worker(release_7).endpoint, endpoint, verify=verify, timeout=2)
    assert failure(result) == ("worker_unreachable" if verify else "timed_out", endpoint)
    assert "does not behave like a llama.cpp RPC server" in result["msg"]


def test_a_worker_that_cannot_allocate_is_named(release_7: Release, model: Path, start_worker: StartWorker) -> None:
    # A cache of 131072 tokens takes 1 GiB.
    small = start_worker(release_7, prefix=("prlimit", "--as=400000000"))
    result = infer(release_7, model, small.endpoint, ctx_size=131072)
    assert failure(result) == ("out_of_memory", small.endpoint)
    assert "lower ctx_size" in result["msg"]


def test_a_worker_that_got_no_layer_is_a_failure_although_the_program_is_content(
    release_7: Release, model: Path, start_worker: StartWorker
) -> None:
    busy, idle = start_worker(release_7), start_worker(release_7)
    result = infer(release_7, model, busy.endpoint, idle.endpoint, tensor_split=[1, 0.0001])
    assert failure(result) == ("worker_dropped", idle.endpoint)
    assert len(result["text"].split()) == 16
    assert "tensor_split" in result["msg"]


def test_a_worker_under_two_names_is_refused(release_7: Release, model: Path, start_worker: StartWorker) -> None:
    worker = start_worker(release_7)
    result = infer(release_7, model, worker.endpoint, f"localhost:{worker.port}")
    assert failure(result) == ("option_rejected", f"localhost:{worker.port}")
    assert "are one worker" in result["msg"]


def test_a_worker_that_stands_still_is_named_before_time_is_out(
    release_7: Release, model: Path, start_worker: StartWorker
) -> None:
    goes, stands = start_worker(release_7), start_worker(release_7)
    with ThreadPoolExecutor() as pool:
        run = pool.submit(infer, release_7, model, goes.endpoint, stands.endpoint, stall_timeout=2, **ENDLESS)
        wait_for(lambda: generating(stands))
        stands.process.send_signal(signal.SIGSTOP)
        result = run.result(HANG_S)
    assert failure(result) == ("timed_out", stands.endpoint)
    assert "The run stood still for 2 s and was ended." in result["msg"]
    assert not masters(goes.endpoint)


# The master's side


@pytest.mark.parametrize("size", [5_000_000, 1000], ids=["in-the-tensors", "in-the-header"])
def test_a_truncated_model_is_invalid(
    release_7: Release, model: Path, start_worker: StartWorker, tmp_path: Path, size: int
) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(model.read_bytes()[:size])
    result = infer(release_7, bad, start_worker(release_7).endpoint)
    assert failure(result) == ("model_invalid", None)
    # The message quotes upstream's own message, unless upstream lost it.
    assert str(bad) in result["msg"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "There is no model"), (b"", "is empty"), (b"not a model", "is not a GGUF file")],
    ids=["missing", "empty", "not-gguf"],
)
def test_what_is_no_model_is_refused_before_anything_starts(
    release_7: Release, tmp_path: Path, content: bytes | None, message: str
) -> None:
    bad = tmp_path / "bad.gguf"
    if content is not None:
        bad.write_bytes(content)
    result = infer(release_7, bad, "127.0.0.1")
    assert failure(result) == ("model_invalid", None)
    assert message in result["msg"]
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
def test_an_option_that_is_rejected(
    release_7: Release, model: Path, start_worker: StartWorker, args: dict[str, Any], message: str
) -> None:
    result = infer(release_7, model, start_worker(release_7).endpoint, **args)
    assert failure(result) == ("option_rejected", None)
    assert message in result["msg"]


def test_a_run_that_takes_too_long_is_ended_and_leaves_nothing_behind(
    release_7: Release, model: Path, start_worker: StartWorker
) -> None:
    worker = start_worker(release_7)
    result = infer(release_7, model, worker.endpoint, timeout=5, **ENDLESS)
    assert failure(result) == ("timed_out", None)
    assert "within 5 s" in result["msg"]
    assert result["text"]
    assert 5000 <= result["wall_time_ms"] < 11000
    assert not masters(worker.endpoint)


def test_a_master_killed_by_the_system_is_short_of_memory(
    release_7: Release, model: Path, start_worker: StartWorker
) -> None:
    worker = start_worker(release_7)
    with ThreadPoolExecutor() as pool:
        run = pool.submit(infer, release_7, model, worker.endpoint, **ENDLESS)
        wait_for(lambda: generating(worker))
        (pid,) = masters(worker.endpoint)
        os.kill(pid, signal.SIGKILL)
        result = run.result(HANG_S)
    assert failure(result) == ("out_of_memory", None)
    assert "killed by the system" in result["msg"]


def test_nothing_is_left_when_the_module_itself_is_killed(
    release_7: Release, model: Path, start_worker: StartWorker
) -> None:
    worker = start_worker(release_7)
    with ThreadPoolExecutor() as pool:
        run = pool.submit(infer, release_7, model, worker.endpoint, timeout=8, **ENDLESS)
        wait_for(lambda: generating(worker))
        (pid,) = masters(worker.endpoint)
        # The parent of the program is its time limit, and the parent of that is the module.
        os.kill(parent(parent(pid)), signal.SIGKILL)
        assert run.exception(HANG_S) is not None or "failed" in run.result()
    wait_for(lambda: not masters(worker.endpoint), limit=15)
    assert not worker.alive or wait_for(lambda: not worker.held())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "There is no llama-completion in"),
        (b"no program\n", "is not a program"),
        (b"\x7fELF\x02\x01".ljust(18, b"\0") + (0xF7).to_bytes(2, sys.byteorder), "another kind of machine"),
        (b"#!/bin/sh\necho hello\n", "does not answer --version as llama.cpp does"),
        (b"#!/nonexistent/interpreter\n", "does not answer --version as llama.cpp does"),
    ],
    ids=["empty-folder", "text-file", "other-architecture", "not-llama-cpp", "cannot-start"],
)
def test_there_is_no_program_that_can_run(tmp_path: Path, model: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "llama-completion").write_bytes(content)
        (tmp_path / "llama-completion").chmod(0o755)
    result = infer(tmp_path, model, "127.0.0.1")
    assert failure(result) == ("binary_missing", None)
    assert message in result["msg"]


def test_a_host_without_the_means_to_limit_a_run_is_told_what_to_install(
    release_7: Release, model: Path, tmp_path: Path
) -> None:
    result = infer(release_7, model, "127.0.0.1", environment={"PATH": str(tmp_path)})
    assert failure(result) == ("binary_missing", None)
    assert "no program timeout on this host; install GNU coreutils" in result["msg"]
