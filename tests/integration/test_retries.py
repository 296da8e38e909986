# SPDX-License-Identifier: GPL-3.0-or-later
"""What role inference does after a failure, if it is to run again: over real workers, one of which is killed."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from harness import HANG_S, Release, Worker, play_here, running_worker
from test_distributed_inference import wrapped

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.llama

GIB = 1 << 30
# In the first run alone.
ONCE = 'if mkdir "$here/first" 2>/dev/null; then {}; fi'


class Play:
    """The role over three workers on loopback, through playbooks/infer.yml."""

    def __init__(self, release: Release, model: Path, folder: Path, workers: list[Worker]) -> None:
        self.release, self.model, self.folder, self.workers = release, model, folder, workers

    def __call__(self, script: str, **variables: Any) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
        programs = self.folder / "bin"
        programs.mkdir()
        report = self.folder / "report.json"
        host = {
            "rpc_server_address": "127.0.0.1",
            "rpc_server_bind_address": "127.0.0.1",
            "rpc_server_instances": [{"port": worker.port} for worker in self.workers],
            "gguf_model_path": str(self.model),
            "inference_bin_dir": str(wrapped(self.release, programs, script)),
            "inference_worker_memory_bytes": {worker.endpoint: GIB for worker in self.workers},
            "inference_reserve_bytes": 0,
            "inference_report_path": str(report),
            "inference_n_predict": 8,
            "inference_ctx_size": 512,
            **variables,
        }
        done = play_here("infer.yml", self.folder, host)
        return done, json.loads(report.read_text()) if report.exists() else {}


@pytest.fixture
def play(release_7: Release, model: Path, tmp_path: Path, start_worker: Callable[..., Worker]) -> Play:
    return Play(release_7, model, tmp_path, [start_worker(release_7) for _number in range(3)])


def kills(worker: Worker) -> str:
    return ONCE.format(f"kill -9 {worker.process.pid}; while kill -0 {worker.process.pid}; do :; done")


def reaped(worker: Worker) -> None:
    """Let the process go as soon as it has ended."""
    import threading

    threading.Thread(target=worker.process.wait, daemon=True).start()


def test_a_run_is_repeated_without_the_worker_that_was_lost(play: Play) -> None:
    one, lost, other = play.workers
    reaped(lost)
    done, report = play(kills(lost), inference_retries=2, inference_retry_without_failed=True)
    assert done.returncode == 0, done.stdout
    assert report["left_out"] == [lost.endpoint]
    (failed,) = report["tries"]
    assert failed["workers"] == [worker.endpoint for worker in play.workers]
    assert (failed["failure"]["kind"], failed["failure"]["endpoint"]) == ("worker_unreachable", lost.endpoint)
    assert [worker["endpoint"] for worker in report["workers"]] == [one.endpoint, other.endpoint]
    assert len(report["inference"]["text"].split()) == 8
    # Never silently.
    assert f"Attempt 1 of 3 failed: The master could not connect to worker {lost.endpoint}." in done.stdout
    assert f"The next one is without {lost.endpoint}: the others hold the model." in done.stdout
    assert f"Attempts: 2, at last without {lost.endpoint}" in done.stdout


def test_no_worker_is_left_out_unless_that_is_asked(play: Play) -> None:
    lost = play.workers[1]
    reaped(lost)
    done, report = play(kills(lost), inference_retries=1, inference_retry_wait=1)
    assert done.returncode == 2
    assert [failed["failure"]["endpoint"] for failed in report["tries"]] == [lost.endpoint]
    assert report["left_out"] == []
    assert report["inference"]["failure"]["kind"] == "worker_unreachable"
    assert "The next one is over the same workers." in done.stdout
    assert f"{lost.endpoint} refuses connections: start the RPC server" in done.stdout


# The run would go on for long after its first words; it has ended when the worker is there again.
LOST = r"""
if mkdir "$here/first" 2>/dev/null; then
  "$real" "$@" -c 4096 -n 4000 --ignore-eos >"$here/out" 2>"$here/log" &
  while [ ! -s "$here/out" ] && kill -0 $!; do sleep 0.1; done
  kill -9 PID
  status=0; wait $! || status=$?
  cat "$here/log" >&2; cat "$here/out"
  until [ -e "$here/back" ]; do sleep 0.1; done
  exit $status
fi"""


@contextmanager
def started_again(play: Play, worker: Worker) -> Iterator[None]:
    """Start a worker again when it has ended, as its service does."""

    def again() -> None:
        worker.process.wait(HANG_S)
        stack.enter_context(running_worker(play.release, play.folder / "again.log", port=worker.port))
        (play.folder / "bin" / "back").touch()

    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        begun = pool.submit(again)
        yield
        begun.result(HANG_S)


def test_a_run_that_lost_a_worker_is_repeated_over_all_when_it_is_back(play: Play) -> None:
    lost = play.workers[1]
    endpoints = [worker.endpoint for worker in play.workers]
    with started_again(play, lost):
        done, report = play(
            LOST.replace("PID", str(lost.process.pid)), inference_retries=1, inference_retry_without_failed=True
        )
    assert done.returncode == 0, done.stdout
    (failed,) = report["tries"]
    assert failed["workers"] == endpoints
    # Nobody can tell who it was, so nobody is left out.
    assert (failed["failure"]["kind"], failed["failure"]["endpoint"]) == ("worker_lost", None)
    assert report["left_out"] == []
    assert [worker["endpoint"] for worker in report["workers"]] == endpoints
    assert len(report["inference"]["text"].split()) == 8
    assert "Attempt 1 of 2 failed: A worker broke the connection during the run and all answer again" in done.stdout
    assert "The next one is over the same workers." in done.stdout
