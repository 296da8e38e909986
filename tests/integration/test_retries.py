# SPDX-License-Identifier: GPL-3.0-or-later
"""The actions of role inference after a failure, if it is to run again, over real workers, one of which is killed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from support.harness import HANG_S, Release, Worker, running_worker
from support.repeated_runs import Play, kills, reaped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.llama


@pytest.fixture
def play(release: Release, model: Path, tmp_path: Path, start: Callable[..., Worker]) -> Play:
    return Play(release, model, tmp_path, [start() for _number in range(3)])


@pytest.mark.long
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
    # The role never leaves a worker out silently.
    assert f"Attempt 1 of 3 failed: The master could not connect to worker {lost.endpoint}." in done.stdout
    assert f"The next one is without {lost.endpoint}: the others hold the model." in done.stdout
    assert f"Attempts: 2, at last without {lost.endpoint}" in done.stdout


@pytest.mark.long
def test_no_worker_is_left_out_unless_that_is_asked(play: Play) -> None:
    lost = play.workers[1]
    reaped(lost)
    done, report = play(kills(lost), inference_retries=1, rpc_server_ready_timeout=1)
    assert done.returncode == 2
    assert [failed["failure"]["endpoint"] for failed in report["tries"]] == [lost.endpoint]
    assert report["left_out"] == []
    assert report["inference"]["failure"]["kind"] == "worker_unreachable"
    assert "The next one is over the same workers." in done.stdout
    assert f"{lost.endpoint} refuses connections: start the RPC server" in done.stdout


# The run would continue long after its first words. The program ends only when the worker is there again.
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
        (play.folder / "prefix/current/bin/back").touch()

    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        begun = pool.submit(again)
        yield
        begun.result(HANG_S)


@pytest.mark.long
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
    # Nobody can tell which worker it was, so none is left out.
    assert (failed["failure"]["kind"], failed["failure"]["endpoint"]) == ("worker_lost", None)
    assert report["left_out"] == []
    assert [worker["endpoint"] for worker in report["workers"]] == endpoints
    assert len(report["inference"]["text"].split()) == 8
    assert "Attempt 1 of 2 failed: A worker broke the connection during the run and all answer again" in done.stdout
    assert "The next one is over the same workers." in done.stdout
