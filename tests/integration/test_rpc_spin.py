# SPDX-License-Identifier: GPL-3.0-or-later
"""With the patch rpc-transport a worker stays awake between a client's requests, and takes little from other processes.

The tests count its processor time, not elapsed time: on a busy machine a worker sleeps sooner, and that is right.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from support.rpc_session import Arena, Session, Type
from support.watched_worker import Watched, settings, watched

if TYPE_CHECKING:
    from pathlib import Path

    from support.harness import Release

pytestmark = pytest.mark.llama

REQUESTS, ROUNDS = 40, 10
# A worker stays awake for 20 ms. A request itself takes less than a tenth of that.
AWAKE_S, BRIEF_S = 0.020, 0.002


def processor_time(worker: Watched) -> float:
    """Return the seconds of processor time that the worker's threads have used so far (clock_getcpuclockid(3))."""
    return time.clock_gettime(~worker.worker.process.pid << 3 | 2)


def awake(worker: Watched) -> list[float]:
    """Return the seconds of processor time that the worker uses after each of some requests of a waiting client."""
    with closing(Session(worker.port)) as session:
        tensor = Arena(session, 1 << 10).place(Type.F32, 16)
        found = []
        for _request in range(REQUESTS):
            before = processor_time(worker)
            session.get(tensor)
            time.sleep(5 * AWAKE_S)
            found.append(processor_time(worker) - before)
    return found


# Both are in one session, because the kernel may first divide a core among sessions (sched(7), autogroup). In a session
# of its own, a worker could keep the core until it has had the session's share.
BESIDE_WHO_COMPUTES = (
    *("taskset", "-c", str(min(os.sched_getaffinity(0)))),
    *("sh", "-c", 'setpriv --pdeathsig KILL sh -c "while :; do :; done" & exec "$@"', "sh"),
)


def test_a_worker_is_awake_after_a_request_and_sleeps_then(release_7: Release, tmp_path: Path) -> None:
    with watched(release_7, tmp_path) as worker:
        found = awake(worker)
        # If other tests compute, the worker gets no more than a time slice, and none while both cores are taken.
        for _round in range(ROUNDS):
            if max(found) > BRIEF_S:
                break
            found += awake(worker)
    assert max(found) > BRIEF_S, found
    assert statistics.median(found) < 2 * AWAKE_S, found


@pytest.mark.skipif(not shutil.which("taskset"), reason="needs taskset, to say where a worker computes")
def test_it_leaves_its_core_to_who_computes_there(release_7: Release, tmp_path: Path) -> None:
    with watched(release_7, tmp_path, under=BESIDE_WHO_COMPUTES) as worker:
        found = awake(worker)
    # The kernel first gives a process that has slept a time slice of some milliseconds.
    assert statistics.median(found) < AWAKE_S / 2, found


def test_it_sleeps_at_once_if_the_unit_says_so(release_7: Release, tmp_path: Path) -> None:
    assert set(settings(rpc_server_environment={"GGML_RPC_SPIN": 0})) - set(settings()) == {"GGML_RPC_SPIN=0"}
    with watched(release_7, tmp_path, *settings(rpc_server_environment={"GGML_RPC_SPIN": 0})) as worker:
        found = awake(worker)
    assert statistics.median(found) < BRIEF_S, found
