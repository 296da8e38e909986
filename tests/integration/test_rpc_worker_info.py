# SPDX-License-Identifier: GPL-3.0-or-later
"""The results of rpc_worker_info for real workers, and that it does no harm."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.endpoint import parse_endpoint
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.prober import probe

from support.harness import HANG_S, free_port, run_module
from support.stand_in_workers import many_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.worker_status import WorkerStatus

    from support.harness import Release, Worker

pytestmark = pytest.mark.llama

ROOT = Path(__file__).resolve().parents[2]
HELLO = b"\x0e\x18" + bytes(7) + bytes(24)


def look(worker: Worker, timeout: float = 20) -> WorkerStatus:
    return probe([parse_endpoint(worker.endpoint)], timeout)[0]


@contextmanager
def client_of(worker: Worker) -> Iterator[socket.socket]:
    """Hold a worker, as a llama.cpp client does between two requests."""
    with socket.create_connection(("127.0.0.1", worker.port), 5) as client:
        client.sendall(HELLO)
        assert receive(client)[:3] == bytes([8, 0, 0])
        yield client


def receive(client: socket.socket) -> bytes:
    (size,) = struct.unpack("<Q", client.recv(8, socket.MSG_WAITALL))
    return client.recv(size, socket.MSG_WAITALL)


def ask_for_memory(client: socket.socket) -> int:
    client.sendall(struct.pack("<BQI", 11, 4, 0))
    _free, total = struct.unpack("<QQ", receive(client))
    return total


def test_a_free_worker_is_ready_and_says_what_it_is(release: Release, start: Callable[..., Worker]) -> None:
    status = look(start())
    assert status.state == "ready", status.message
    assert status.protocol is not None
    assert status.protocol["version"] == release.protocol
    (device,) = status.devices
    assert device["index"] == 0
    assert 2**28 < device["memory_total_bytes"] <= 2**50


def test_many_looks_in_a_row_leave_a_worker_ready(start: Callable[..., Worker]) -> None:
    worker = start()
    endpoint = parse_endpoint(worker.endpoint)
    for _attempt in range(20):
        # Two looks run at a time: all but one have to wait in the worker's queue.
        states = [status.state for status in probe([endpoint] * 2, 20)]
        assert states == ["ready", "ready"]
    assert worker.alive
    with client_of(worker) as client:
        assert ask_for_memory(client) > 0


def test_a_held_worker_is_busy_and_serves_on(start: Callable[..., Worker]) -> None:
    worker = start()
    with client_of(worker) as client:
        # Two looks fit into the worker's queue. The others find it full.
        for _attempt in range(4):
            start = time.monotonic()
            status = look(worker, timeout=0.5)
            assert time.monotonic() - start < HANG_S / 10
            assert (status.state, status.devices) == ("busy", []), status.message
            assert "another client most likely holds it" in status.message
            assert worker.alive
            assert ask_for_memory(client) > 0, "its client is served as before"
    # Now the worker handles the queue of looks that gave up. A careless look would kill it here.
    status = look(worker)
    assert status.state == "ready", status.message
    with client_of(worker) as client:
        assert ask_for_memory(client) > 0
    assert worker.alive


@pytest.mark.parametrize(
    ("held_s", "timeout_s", "states"),
    [(0.2, 20.0, {"ready"}), *((held_s, 2.0, {"ready", "busy"}) for held_s in (1.4, 1.98))],
    ids=lambda value: f"{value}s" if isinstance(value, float) else "",
)
def test_a_worker_that_gets_free_while_it_is_looked_at_is_unharmed(
    start: Callable[..., Worker], held_s: float, timeout_s: float, states: set[str]
) -> None:
    worker = start()
    with client_of(worker):
        looking = begun(worker, timeout_s)
        time.sleep(held_s)
    state, message = looking.communicate(timeout=HANG_S)[0].split(" ", 1)
    assert state in states, message
    assert looking.returncode == 0
    assert look(worker).state == "ready"
    assert worker.alive


LOOK = """
import sys
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.endpoint import parse_endpoint
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.prober import probe
print("looking", flush=True)
status = probe([parse_endpoint(sys.argv[1])], float(sys.argv[2]))[0]
print(status.state, status.message)
"""


def begun(worker: Worker, timeout_s: float) -> subprocess.Popen[str]:
    """Start a process that looks at a worker; return it once it does."""
    looking = subprocess.Popen(
        [sys.executable, "-c", LOOK, worker.endpoint, str(timeout_s)],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".venv/collections")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert looking.stdout is not None
    assert looking.stdout.readline() == "looking\n"
    return looking


def test_a_probe_that_is_killed_leaves_the_worker_alive(start: Callable[..., Worker]) -> None:
    worker = start()
    with client_of(worker):
        looking = begun(worker, HANG_S)
        time.sleep(0.3)
        looking.kill()
        looking.communicate(timeout=HANG_S)
    assert look(worker).state == "ready"
    assert worker.alive


def test_a_worker_without_cpu_time_is_busy(start: Callable[..., Worker]) -> None:
    worker = start()
    worker.process.send_signal(signal.SIGSTOP)
    assert look(worker, timeout=0.5).state == "busy"
    worker.process.send_signal(signal.SIGCONT)
    assert look(worker).state == "ready"


def module(*, check: bool = False, **parameters: object) -> dict[str, Any]:
    return run_module("rpc_worker_info", parameters, check=check)


@pytest.mark.parametrize("check", [False, True], ids=["run", "check-mode"])
def test_the_module_reports_good_and_bad_workers_together(start: Callable[..., Worker], check: bool) -> None:
    new, held, closed = start(), start(), f"127.0.0.1:{free_port()}"
    with many_workers(1, major=5) as (old,):
        endpoints = [old, new.endpoint, closed, held.endpoint, "no_such_name.invalid"]
        with client_of(held):
            result = module(endpoints=endpoints, timeout=3, expected_protocol="8", check=check)
        assert module(endpoints=[new.endpoint, old, held.endpoint])["all_ready"] is True
    assert not result["changed"]
    assert not result.get("failed")
    assert [worker["endpoint"] for worker in result["workers"]] == [*endpoints[:4], "no_such_name.invalid:50052"]
    assert [w["state"] for w in result["workers"]] == ["incompatible", "ready", "refused", "busy", "unresolved"]
    assert result["workers"][0]["protocol"]["version"] == "5.0.0"
    assert "speaks RPC protocol 5.0.0 where 8 is expected" in result["workers"][0]["message"]
    assert result["all_ready"] is False
    assert result["counts"] == {
        "ready": 1, "busy": 1, "refused": 1, "unreachable": 0, "unresolved": 1, "not_rpc": 0, "incompatible": 1
    }  # fmt: skip
    assert all(worker.alive for worker in (new, held))


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"endpoints": ["host:70000"]}, "'host:70000' has an invalid port: give a number from 1 to 65535"),
        ({"endpoints": ["a", "a:50052"]}, "endpoint a:50052 is given twice"),
        ({"endpoints": []}, "endpoints is empty"),
        ({"endpoints": ["a"], "timeout": 0}, "timeout is 0: give the seconds"),
        ({"endpoints": ["a"], "timeout": "nan"}, "timeout is nan: give the seconds"),
        ({"endpoints": ["a"], "expected_protocol": "v7"}, "expected_protocol: 'v7' is not a protocol version"),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)
def test_bad_input_is_named_with_the_remedy(parameters: dict[str, object], said: str) -> None:
    result = module(**parameters)
    assert result["failed"]
    assert said in result["msg"]
