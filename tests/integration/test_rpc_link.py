# SPDX-License-Identifier: GPL-3.0-or-later
"""Two workers that add up partial results by themselves, over a link that each makes with the other one alone."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Any

import pytest

from support.harness import HANG_S, free_port, run_module, running_worker
from support.hostile_requests import link
from support.rpc_session import Session
from support.runs import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.harness import Release, Worker

pytestmark = pytest.mark.llama

ADDRESSES = ("127.0.0.1", "127.0.0.2")
ABOVE_WORKER = 1000
JOINED = "joined pairwise comm as rank"


def ports() -> list[int]:
    """Return two ports whose links have ports, too."""
    found: list[int] = []
    while len(found) < 2:
        port = free_port()
        if port + ABOVE_WORKER < 65536:
            found.append(port)
    return found


@pytest.fixture
def linked(release: Release, tmp_path: Path) -> Iterator[list[Worker]]:
    """Start two workers, each of which knows both ends of their link."""
    chosen = ports()
    ends = [f"{address}:{port + ABOVE_WORKER}" for address, port in zip(ADDRESSES, chosen)]
    with ExitStack() as stack:
        workers = []
        for number, (own, other) in enumerate((ends, reversed(ends))):
            prefix = ("env", f"GGML_RPC_LINK={own},{other}", "GGML_NO_BACKTRACE=1")
            log, address, port = tmp_path / f"log{number}", ADDRESSES[number], chosen[number]
            workers.append(stack.enter_context(running_worker(release, log, prefix=prefix, address=address, port=port)))
        yield workers


def run(release: Release, model: Path, workers: list[Worker], **changed: Any) -> dict[str, Any]:
    asked = {
        "bin_folder": str(release.bin), "model": str(model), "prompt": "the quiet river", "n_predict": 12,
        "workers": [worker.endpoint for worker in workers], "extra_args": ["-sm", "tensor"], "worker_link": True,
    }  # fmt: skip
    return run_module("distributed_inference", {**asked, **changed})


def test_two_workers_add_up_what_the_master_would(release: Release, model: Path, linked: list[Worker]) -> None:
    summed = run(release, model, linked, worker_link=False)
    assert [JOINED in worker.log.read_text() for worker in linked] == [False, False]
    result = run(release, model, linked)
    assert [worker.log.read_text().count(JOINED) for worker in linked] == [1, 1]
    assert (result["failure"], result["text"]) == (None, summed["text"])


def test_three_workers_or_one_without_a_link_are_summed_by_the_master(
    release: Release, model: Path, linked: list[Worker], tmp_path: Path
) -> None:
    with running_worker(release, tmp_path / "third") as third:
        summed = run(release, model, [linked[0], third], worker_link=False)
        result = run(release, model, [linked[0], third])
        assert (result["failure"], result["text"]) == (None, summed["text"])
        assert run(release, model, [*linked, third])["failure"] is None
        assert "[rpc_check] refused: a link to another worker" in third.log.read_text()
    assert [JOINED in worker.log.read_text() for worker in linked] == [False, False]


def test_nobody_else_gets_a_link(linked: list[Worker]) -> None:
    """Not with another port, not from another address, and not on another address; and the wait has a limit."""
    first, second = linked
    port = first.port + ABOVE_WORKER
    with closing(Session(first.port, ADDRESSES[0])) as session:
        assert not link(session, 0, port + 1)
        answers: list[bool] = []
        begin = time.monotonic()
        asking = threading.Thread(target=lambda: answers.append(link(session, 0, port)))
        asking.start()
        for stranger in ("127.0.0.9", second.port + ABOVE_WORKER), (ADDRESSES[1], 0):
            with closing(connected(stranger, (ADDRESSES[0], port))) as refused, suppress(ConnectionResetError):
                assert refused.recv(1) == b"", "it is closed"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.3", port), timeout=HANG_S)
        # This one is the right one, but it says nothing.
        with closing(connected((ADDRESSES[1], second.port + ABOVE_WORKER), (ADDRESSES[0], port))):
            asking.join(HANG_S)
        assert answers == [False]
        assert 9 < time.monotonic() - begin < 60
    with closing(Session(second.port, ADDRESSES[1])) as session:
        assert not link(session, 1, port + 1)
        assert not link(session, 1, port), "nobody listens there"
    for worker in linked:
        assert worker.alive
        Session(worker.port, worker.address).close()  # it takes the next client


def connected(own: tuple[str, int], to: tuple[str, int]) -> socket.socket:
    """Connect from this address and port, as soon as somebody listens."""
    deadline = time.monotonic() + 5
    while True:
        try:
            return socket.create_connection(to, timeout=HANG_S, source_address=own)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def test_a_worker_that_loses_the_other_one_ends_the_run(release: Release, model: Path, linked: list[Worker]) -> None:

    def kill() -> None:
        wait_for(lambda: JOINED in linked[1].log.read_text(), HANG_S)
        time.sleep(0.5)
        os.kill(linked[1].process.pid, signal.SIGKILL)

    killed = threading.Thread(target=kill)
    killed.start()
    result = run(release, model, linked, n_predict=4000, ctx_size=4096)
    killed.join()
    assert result["failure"]["kind"] == "worker_lost"
    assert linked[0].alive
