# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults on hosts with systemd, over a network: a cluster."""

from __future__ import annotations

import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from support.lab import hosts as lab

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = "hosts with systemd"
ENDPOINTS = [f"{lab.ADDRESS[worker]}:{lab.PORT}" for worker in lab.WORKERS]
STRUCK = ENDPOINTS[1]
# A killed worker starts again after 3 s at most (RestartSec=). A worker whose client went without a word gives it up
# after 80 s.
BACK_S, LEFT_S = 30, 120
# A timer of the host resumes a worker that a signal has stopped, to the second. Then the timer's service has to start,
# and the worker has to answer.
RESUME = "llama-rpc-resume.service"
RESUMED_EVERY_S, RESUMED_S = 30, 40


@pytest.fixture(scope="module", autouse=True)
def cluster() -> None:
    lab.require_lab()
    lab.play("site", timeout=3600)


def infer(**arguments: Any) -> dict[str, Any]:
    """Run the module on the master."""
    given = {
        "model": "/srv/models/random-weights.gguf",
        "prompt": "Once upon a time",
        "workers": ENDPOINTS,
        "n_predict": 8,
        "ctx_size": 16384,
        **arguments,
    }
    return dict(lab.module("master", "distributed_inference", **given))


def clients(worker: str) -> str:
    return str(lab.ssh(worker, "ss", "-tnH", "state", "established", f"( sport = :{lab.PORT} )").stdout.strip())


def struck(strike: Callable[[], object], **arguments: Any) -> tuple[dict[str, Any], float]:
    """Strike while a long run generates; return its result, and the seconds until it came."""
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(infer, **{"n_predict": 16000, "extra_args": ["--ignore-eos"], **arguments})
        lab.eventually(lambda: all(clients(worker) for worker in lab.WORKERS), 120, "the run has begun")
        lab.eventually(lambda: busy_s("worker2") > 3, 120, "the worker computes")
        strike()
        began = time.monotonic()
        result = run.result(300)
    return result, time.monotonic() - began


def busy_s(worker: str) -> float:
    """Return the seconds that the worker's process has computed since it was started for this test."""
    pid = lab.ssh(worker, "systemctl", "show", "--property=MainPID", "--value", lab.UNIT).stdout.strip()
    fields = lab.ssh(worker, "cat", f"/proc/{pid}/stat").stdout.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.fixture
def undisturbed() -> dict[str, Any]:
    """Return the result of a run over both workers, which then have new processes, so that their computation shows."""
    for worker in lab.WORKERS:
        lab.ssh(worker, "systemctl", "restart", lab.UNIT)
    ready_after(BACK_S)
    result = infer()
    assert result["failure"] is None, result
    for worker in lab.WORKERS:
        lab.ssh(worker, "systemctl", "restart", lab.UNIT)
    ready_after(BACK_S)
    return result


@pytest.fixture
def expected(undisturbed: dict[str, Any]) -> str:
    return str(undisturbed["text"])


def ready_after(limit_s: float) -> float:
    began = time.monotonic()
    found = lab.module("master", "rpc_worker_info", endpoints=ENDPOINTS, wait=limit_s)
    assert found["all_ready"], [worker["message"] for worker in found["workers"]]
    return time.monotonic() - began


def recovers(expected: str, limit_s: float) -> float:
    seconds = ready_after(limit_s)
    assert infer()["text"] == expected
    done = lab.play("verify", check=False)
    assert done.returncode == 0, done.stdout
    return seconds


def lost(result: dict[str, Any]) -> str:
    failure = result["failure"]
    assert failure, result["text"]
    assert failure["kind"] == "worker_lost", failure
    assert failure["endpoint"] in (STRUCK, None), failure
    return str(failure["message"])


def pids(worker: str) -> str:
    return str(lab.ssh(worker, "systemctl", "show", "--property=MainPID", "--value", lab.UNIT).stdout)


def test_the_worker_is_killed(expected: str, saw: Callable[..., None]) -> None:
    other = pids("worker1")
    result, detected = struck(lambda: lab.ssh("worker2", "systemctl", "kill", "--signal=SIGKILL", lab.UNIT))
    saw("worker killed while generating", HERE, lost(result), detected, recovers(expected, BACK_S))
    assert pids("worker1") == other


def test_the_worker_s_host_is_gone(expected: str, saw: Callable[..., None]) -> None:
    cable, other, pid = lab.cable("worker2"), pids("worker1"), pids("worker2")
    try:
        result, detected = struck(lambda: subprocess.run(["ip", "link", "set", cable, "down"], check=True))
    finally:
        subprocess.run(["ip", "link", "set", cable, "up"], check=True)
    sentence = lost(result)
    assert detected < 60
    saw("worker's host gone while generating", HERE, sentence, detected, recovers(expected, LEFT_S))
    assert (pids("worker1"), pids("worker2")) == (other, pid), "the same process has let the master go"


def test_the_firewall_is_closed(expected: str, saw: Callable[..., None]) -> None:
    """Close the whole firewall, for SSH too: a trusted source that is removed keeps its connections."""
    closed = ["systemd-run", "--quiet", "--collect", "--on-active=1", "firewall-cmd", "--panic-on"]
    opened = ["systemd-run", "--quiet", "--collect", "--on-active=60", "firewall-cmd", "--panic-off"]

    def strike() -> None:
        lab.ssh("worker2", *opened)
        lab.ssh("worker2", *closed)

    result, detected = struck(strike)
    sentence = lost(result)
    lab.eventually(lambda: lab.ssh("worker2", "true", check=False, anew=True).returncode == 0, 120, "it is open again")
    saw("firewall closed while generating", HERE, sentence, detected, recovers(expected, LEFT_S))


def test_the_master_s_host_is_gone(expected: str, saw: Callable[..., None]) -> None:
    """The module is lost with its host; the workers have to be free for the next client."""
    cable = lab.cable("master")
    arguments = {"model": "/srv/models/random-weights.gguf", "prompt": "x", "workers": ENDPOINTS, "n_predict": 16000,
                 "ctx_size": 16384, "extra_args": ["--ignore-eos"], "timeout": 60}  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(lab.module, "master", "distributed_inference", **arguments)
        lab.eventually(lambda: busy_s("worker2") > 3, 120, "the worker computes")
        before = [pids(worker) for worker in lab.WORKERS]
        try:
            subprocess.run(["ip", "link", "set", cable, "down"], check=True)
            began = time.monotonic()
            lab.eventually(lambda: not any(clients(worker) for worker in lab.WORKERS), LEFT_S, "they let it go")
            detected = time.monotonic() - began
        finally:
            subprocess.run(["ip", "link", "set", cable, "up"], check=True)
            run.exception(300)
    seconds = recovers(expected, BACK_S)
    assert [pids(worker) for worker in lab.WORKERS] == before
    sentence = "A worker gives up a client that is gone, and takes the next."
    saw("master's host gone while generating", HERE, sentence, detected, seconds)


def test_the_master_is_killed(expected: str, saw: Callable[..., None]) -> None:
    """Kill its program alone: the module remains to report it, as after the kernel has ended it for want of memory."""
    before = [pids(worker) for worker in lab.WORKERS]
    result, detected = struck(lambda: lab.ssh("master", "kill", "-KILL", master()))
    failure = result["failure"]
    assert (failure["kind"], failure["endpoint"]) == ("out_of_memory", None), failure
    assert "was killed" in failure["message"]
    saw("master killed while generating", HERE, failure["message"], detected, recovers(expected, BACK_S))
    assert [pids(worker) for worker in lab.WORKERS] == before


def master() -> str:
    """Return the process that holds the second worker."""
    there = ["dst", lab.ADDRESS["worker2"], "dport", "=", f":{lab.PORT}"]
    (pid,) = set(re.findall(r"pid=(\d+)", lab.ssh("master", "ss", "-tnpH", "state", "established", *there).stdout))
    return str(pid)


def holders() -> dict[str, list[str]]:
    """Return the other end of each worker's connections."""
    return {worker: [line.split()[-1] for line in clients(worker).splitlines()] for worker in lab.WORKERS}


def test_two_masters_at_once(undisturbed: dict[str, Any], expected: str, saw: Callable[..., None]) -> None:
    seen: dict[str, Any] = {}

    def strike() -> None:
        held = holders()
        began = time.monotonic()
        seen.update(second=infer(), seconds=time.monotonic() - began)
        assert holders() == held, "the first one goes on"

    # The words take a minute, so that the second master is refused while the first one generates.
    words = 60 * undisturbed["perf"]["eval"]["tokens_per_second"]
    first, _lasted = struck(strike, n_predict=8 + int(words))
    failure = seen["second"]["failure"]
    assert failure["kind"] == "worker_busy", failure
    assert failure["endpoint"] in ENDPOINTS
    assert "another client most likely holds it" in failure["message"]
    assert first["failure"] is None, first["msg"]
    assert first["text"].startswith(expected)
    saw("two masters at once", HERE, failure["message"], seen["seconds"], recovers(expected, BACK_S))


def freeze(worker: str) -> None:
    """Stop a worker at the moment from which its host takes longest to resume it."""
    lab.ssh(worker, "systemctl", "start", RESUME)
    lab.ssh(worker, "systemctl", "kill", "--signal=SIGSTOP", lab.UNIT)


def test_a_worker_is_frozen(expected: str, saw: Callable[..., None]) -> None:
    before = pids("worker2")
    result, detected = struck(lambda: freeze("worker2"), stall_timeout=10)
    failure = result["failure"]
    assert (failure["kind"], failure["endpoint"]) == ("timed_out", STRUCK), failure
    assert "stood still for 10 s" in failure["message"]
    seconds = recovers(expected, RESUMED_S - detected)
    saw("worker frozen while generating (stall_timeout: 10)", HERE, failure["message"], detected, seconds)
    assert pids("worker2") == before, "the same process goes on"


def test_a_run_outlives_that_a_worker_is_frozen(
    undisturbed: dict[str, Any], expected: str, saw: Callable[..., None]
) -> None:
    # The words take half a minute, so that the worker is frozen while the run generates.
    words = 30 * undisturbed["perf"]["eval"]["tokens_per_second"]
    result, lasted = struck(lambda: freeze("worker2"), n_predict=8 + int(words))
    assert result["failure"] is None, result["msg"]
    assert result["text"].startswith(expected)
    assert lasted > RESUMED_EVERY_S, "it was frozen before the run had ended"
    sentence = "The run goes on with the worker, which a timer of its host lets go on."
    saw("worker frozen while generating", HERE, sentence, None, recovers(expected, BACK_S))


def test_a_worker_that_is_frozen_on_purpose_stays_so(expected: str, saw: Callable[..., None]) -> None:
    lab.ssh("worker2", "systemctl", "freeze", lab.UNIT)
    try:
        lab.ssh("worker2", "systemctl", "start", RESUME)
        done = lab.play("verify", check=False)
    finally:
        lab.ssh("worker2", "systemctl", "thaw", lab.UNIT)
    sentence = f"{STRUCK} of worker2 answers nobody and has no client"
    assert sentence in " ".join(done.stdout.split())
    saw("worker frozen on purpose", HERE, sentence, None, recovers(expected, BACK_S))
