# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of the running cluster as its users and a stranger see it. They run again after restarts and reloads."""

from __future__ import annotations

import ipaddress
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.lab.hosts import ADDRESS, PORT, UNIT, WORKERS, ask, connect, eventually, module, play, ssh

if TYPE_CHECKING:
    from collections.abc import Iterator

# Limit for a worker to serve again by itself.
BACK_LIMIT_S = 30
ENDPOINTS = [f"{ADDRESS[worker]}:{PORT}" for worker in WORKERS]
MODEL = "/srv/models/random-weights.gguf"

# Prints the number of cores that init may use. CPUs that share a core count once.
CORES = """
import os, pathlib
cpus = os.sched_getaffinity(1)
names = [pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus]
print(len({name.read_text() if name.exists() else name for name in names}))
"""
# Prints the most threads that a process has within 50 s, and ends early if they are as many as expected.
THREADS = """
import pathlib, sys, time
process, expected = pathlib.Path("/proc", sys.argv[1], "task"), int(sys.argv[2])
most, end = 0, time.monotonic() + 50
while most < expected and time.monotonic() < end:
    most = max(most, sum(1 for thread in process.iterdir()))
    time.sleep(0.002)
print(most)
"""


def states() -> dict[str, str]:
    """Return the state of each worker as the master sees it."""
    return ask("master", *ENDPOINTS)


def main_pid(worker: str) -> int:
    return int(ssh(worker, "systemctl", "show", "--property=MainPID", "--value", UNIT).stdout)


def infer(**arguments: Any) -> dict[str, Any]:
    """Run a short greedy inference on the master, and return the module's result."""
    given = {
        "model": MODEL,
        "prompt": "Once upon a time",
        "workers": ENDPOINTS,
        "n_predict": 8,
        "ctx_size": 256,
        "bin_folder": "/opt/llama_cpp/current/bin",
        **arguments,
    }
    return module("master", "distributed_inference", **given)


@pytest.fixture(scope="module", autouse=True)
def ready() -> None:
    """Wait until all workers serve: after a restart they do so by themselves, and no test starts before that."""
    eventually(lambda: set(states().values()) == {"ready"}, BACK_LIMIT_S, "all workers are ready")


@pytest.mark.parametrize("worker", WORKERS)
def test_a_worker_runs_as_its_account(worker: str) -> None:
    status = ssh(worker, "cat", f"/proc/{main_pid(worker)}/status").stdout
    uid = re.search(r"^Uid:\t(\d+)\t(\d+)\t(\d+)\t(\d+)$", status, re.MULTILINE)
    assert uid
    account = ssh(worker, "getent", "passwd", "llama-rpc").stdout.strip().split(":")
    assert set(uid.groups()) == {account[2]} != {"0"}
    assert account[6].endswith("/nologin")
    assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)


@pytest.mark.parametrize("worker", WORKERS)
def test_a_worker_has_a_thread_for_each_core(worker: str) -> None:
    cores = int(ssh(worker, "python3", "-", text_in=CORES).stdout)
    argv = ssh(worker, "cat", f"/proc/{main_pid(worker)}/cmdline").stdout.split("\0")
    option = next(name for name in ("-t", "--threads") if name in argv)
    assert int(argv[argv.index(option) + 1]) == cores


def test_workers_compute_with_these_threads() -> None:
    cores = {worker: int(ssh(worker, "python3", "-", text_in=CORES).stdout) for worker in WORKERS}

    def most(worker: str) -> int:
        arguments = ("python3", "-", str(main_pid(worker)), str(cores[worker]))
        return int(ssh(worker, *arguments, text_in=THREADS, timeout=120).stdout)

    with ThreadPoolExecutor() as threads:
        looks = {worker: threads.submit(most, worker) for worker in WORKERS}
        # Infer until both looks have ended.
        while not all(look.done() for look in looks.values()):
            infer()
    seen = {worker: look.result() for worker, look in looks.items()}
    assert {worker: seen[worker] >= cores[worker] for worker in WORKERS} == dict.fromkeys(WORKERS, True)


@pytest.mark.parametrize("worker", WORKERS)
def test_a_worker_listens_on_its_private_address_alone(worker: str) -> None:
    listening = [line.split()[3] for line in ssh(worker, "ss", "-tlnH", f"sport = :{PORT}").stdout.splitlines()]
    assert listening == [f"{ADDRESS[worker]}:{PORT}"]


def test_the_master_reaches_every_worker() -> None:
    found = module("master", "rpc_worker_info", endpoints=ENDPOINTS, timeout=3)
    assert {worker["endpoint"]: worker["state"] for worker in found["workers"]} == dict.fromkeys(ENDPOINTS, "ready")


@pytest.mark.parametrize("worker", WORKERS)
def test_a_stranger_does_not(worker: str) -> None:
    assert connect("outsider", ADDRESS[worker], 22) == "connected", "the way there is open"
    assert connect("outsider", ADDRESS[worker]) != "connected"


@pytest.mark.parametrize("worker", WORKERS)
def test_the_strangers_address_is_in_no_zone(worker: str) -> None:
    stranger = ipaddress.ip_address(ADDRESS["outsider"])
    for permanent in ([], ["--permanent"]):
        listed = ssh(worker, "firewall-cmd", *permanent, "--list-all-zones").stdout
        sources = [word for line in re.findall(r"^  sources: (.*)$", listed, re.MULTILINE) for word in line.split()]
        assert ADDRESS["master"] in "".join(sources)
        addresses = [source for source in sources if re.match(r"[\da-f]+[.:]", source)]
        networks = [ipaddress.ip_network(address, strict=False) for address in addresses]
        assert not [network for network in networks if stranger in network]


@pytest.fixture
def without_firewall() -> Iterator[str]:
    ssh("worker1", "systemctl", "stop", "firewalld")
    try:
        yield "worker1"
    finally:
        ssh("worker1", "systemctl", "start", "firewalld")


def test_without_its_firewall_a_worker_is_still_closed_to_strangers(without_firewall: str) -> None:
    worker = without_firewall
    other = PORT + 900
    # Everything on the host can be reached now, except the worker: systemd drops what strangers send to its unit.
    listener = ["systemd-run", "--quiet", "--collect", "--unit=listener", "python3", "-m", "http.server", str(other)]
    ssh(worker, *listener)
    try:
        eventually(lambda: connect("outsider", ADDRESS[worker], other) == "connected", 60, "the host is open")
        assert connect("outsider", ADDRESS[worker]) != "connected"
        assert states()[f"{ADDRESS[worker]}:{PORT}"] == "ready"
    finally:
        ssh(worker, "systemctl", "stop", "listener")


def test_both_workers_compute_and_the_text_is_that_of_one() -> None:
    both = infer()
    assert both["failure"] is None
    held = {device["endpoint"]: device["model_buffer_mib"] for device in both["devices"] if device["endpoint"]}
    assert sorted(held) == sorted(ENDPOINTS)
    assert min(held.values()) > 1
    assert both["text"].strip()
    for endpoint in ENDPOINTS:
        assert infer(workers=[endpoint])["text"] == both["text"]


def test_infer_prints_the_tables_and_writes_the_report(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    given = {"inference_prompt": "Once upon", "inference_report_path": str(report), "inference_n_predict": 4}
    said = play("infer", "-e", json.dumps(given)).stdout
    for endpoint in ENDPOINTS:
        assert endpoint in said
    assert "tokens/s" in said
    written = json.loads(report.read_text())
    assert written["prompt"] == "Once upon"
    assert written["inference"]["perf"]["eval"]["tokens_per_second"] > 0


def test_a_stopped_worker_is_named_before_the_model_is_loaded() -> None:
    ssh("worker2", "systemctl", "stop", UNIT)
    try:
        done = play("infer", check=False)
        assert done.returncode != 0
        assert f"{ADDRESS['worker2']}:{PORT}" in done.stdout + done.stderr
        assert "tokens/s" not in done.stdout
    finally:
        ssh("worker2", "systemctl", "start", UNIT)


@pytest.mark.parametrize("worker", WORKERS)
def test_a_killed_worker_is_back_by_itself(worker: str) -> None:
    killed = main_pid(worker)
    ssh(worker, "kill", "-KILL", str(killed))
    eventually(lambda: main_pid(worker) not in (0, killed), BACK_LIMIT_S, "it runs again")
    eventually(lambda: set(states().values()) == {"ready"}, BACK_LIMIT_S, "the master can use it")
