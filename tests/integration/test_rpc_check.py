# SPDX-License-Identifier: GPL-3.0-or-later
"""What the patch rpc-check changes on a worker: what only a hostile client sends is refused, and nothing else is.

`make test-performance` shows what the same requests do to upstream's worker, and has sanitizers look.
"""

from __future__ import annotations

import signal
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from support.harness import HANG_S
from support.hostile_requests import ATTACKS, DEADLY, Attack, served_well
from support.rpc_session import Session, WorkerClosedError
from support.watched_worker import Watched, watched

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.harness import Release

pytestmark = pytest.mark.llama


@pytest.fixture(scope="module")
def worker(release_7: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched(release_7, tmp_path_factory.mktemp("worker"), threads=2) as started:
        yield started


def test_what_clients_send_is_computed(worker: Watched) -> None:
    served_well(worker.port)


@pytest.mark.parametrize("name", ATTACKS)
def test_what_only_a_hostile_client_sends_ends_its_connection_and_no_worker(worker: Watched, name: str) -> None:
    with closing(Session(worker.port)) as session, pytest.raises(WorkerClosedError):
        ATTACKS[name](session)
    served_well(worker.port)
    # It is the same process.
    assert worker.worker.alive


@pytest.mark.parametrize("attack", DEADLY, ids=lambda attack: attack.__name__)
def test_a_wrong_number_in_a_buffer_ends_a_worker_before_it_is_used(
    release_7: Release, tmp_path: Path, attack: Attack
) -> None:
    """This remains: docs/security.md."""
    with watched(release_7, tmp_path, "GGML_NO_BACKTRACE=1", threads=2) as worker:
        with closing(Session(worker.port)) as session, pytest.raises(WorkerClosedError):
            attack(session)
        assert worker.worker.process.wait(HANG_S) == -signal.SIGABRT
        assert "GGML_ASSERT" in worker.log
