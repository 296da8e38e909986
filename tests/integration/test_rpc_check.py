# SPDX-License-Identifier: GPL-3.0-or-later
"""The patch rpc-safety makes a worker refuse requests that only a hostile client sends, and nothing else.

`make test-performance` shows what the same requests do to upstream's worker, and checks them with sanitizers.
"""

from __future__ import annotations

import signal
import socket
import struct
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from support.harness import HANG_S
from support.hostile_requests import ATTACKS, DEADLY, Attack, computed, link, node, served_well, tensor
from support.rpc_session import Command, Op, Session, Type, WorkerClosedError
from support.watched_worker import Watched, watched

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.harness import Release

pytestmark = pytest.mark.llama


@pytest.fixture(scope="module")
def worker(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched(release, tmp_path_factory.mktemp("worker"), threads=2) as started:
        yield started


def test_what_clients_send_is_computed(worker: Watched) -> None:
    served_well(worker.port)


NAMED = {
    "stored beyond its end": "SET",
    "more rows than the result has": "GET_ROWS",
    "rows into shorter ones": "SET_ROWS",
    "more snapshots than the result has": "GATED_DELTA_NET",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_only_a_hostile_client_sends_ends_its_connection_and_no_worker(worker: Watched, name: str) -> None:
    with closing(Session(worker.port)) as session, pytest.raises(WorkerClosedError):
        ATTACKS[name](session)
    served_well(worker.port)
    # The worker is still the same process.
    assert worker.worker.alive
    if name in NAMED:
        said = [line for line in worker.log.splitlines() if f"[rpc_check] refused: operation {NAMED[name]}: " in line]
        assert said, "the log names what was refused"
        assert f"GGML_RPC_CHECK_SKIP={NAMED[name]} in the worker's environment lets it through" in said[-1]


def test_an_operation_that_is_to_be_let_through_is_computed(release: Release, tmp_path: Path) -> None:
    """The check refuses a result whose shape does not fit its sources, although this kernel reads no foreign memory."""

    def shorter(session: Session) -> None:
        rows, which = tensor(session, Type.F32, 16, 4, numbers=range(64)), tensor(session, Type.I32, 1, numbers=[2])
        target = node(session, Op.GET_ROWS, (rows, which), 16, 2)
        computed(session, target)
        assert list(session.values(target).flat[:16]) == list(range(32, 48))

    first = watched(release, tmp_path / "1")
    with first as worker, closing(Session(worker.port)) as session, pytest.raises(WorkerClosedError):
        shorter(session)
    refused = ("a function of CUSTOM", "stored beyond its end", "a shape that there cannot be")
    # The tensor of the last one has the operation NONE. The log says that the variable lets it through, which is wrong.
    refused = (*refused, "a tensor outside of its buffer")
    with watched(release, tmp_path / "2", "GGML_RPC_CHECK_SKIP=SSM_SCAN,GET_ROWS,NONE") as worker:
        with closing(Session(worker.port)) as session:
            shorter(session)
        for name in refused:
            with closing(Session(worker.port)) as session, pytest.raises(WorkerClosedError):
                ATTACKS[name](session)
        assert worker.worker.alive
        assert worker.log.count("[rpc_check] refused: ") == len(refused)


def test_no_worker_listens_or_connects_for_a_client(worker: Watched) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        listener.settimeout(0)
        with closing(Session(worker.port)) as session:
            assert not link(session, 1, port)
            with pytest.raises(BlockingIOError):
                listener.accept()
    with closing(Session(worker.port)) as session:
        assert not link(session, 0, port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        session.send(Command.COMM_FREE, struct.pack("<I", 0))
    served_well(worker.port)
    assert worker.log.count("[rpc_check] refused: a link to another worker") == 2


@pytest.mark.parametrize("attack", DEADLY, ids=lambda attack: attack.__name__)
def test_a_wrong_number_in_a_buffer_ends_a_worker_before_it_is_used(
    release: Release, tmp_path: Path, attack: Attack
) -> None:
    """This risk remains: docs/reference/rpc-server-holes.md."""
    with watched(release, tmp_path, "GGML_NO_BACKTRACE=1", threads=2) as worker:
        with closing(Session(worker.port)) as session, pytest.raises(WorkerClosedError):
            attack(session)
        assert worker.worker.process.wait(HANG_S) == -signal.SIGABRT
        assert "GGML_ASSERT" in worker.log
