# SPDX-License-Identifier: GPL-3.0-or-later
"""A group of pods on test hosts: confined as the manifests say, and made anew when a pod is lost."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from support.api_client import Client
from support.kubernetes import rendered
from support.lab.hosts import connect, eventually, ssh
from support.lab.pods import (
    ADDRESS,
    API_PORT,
    FIGURES,
    HOST,
    KEY,
    LEADER,
    READY_PORT,
    RPC_PORT,
    UID,
    VARIABLES,
    WORKERS,
    Controller,
    apply_policies,
    back_after,
    pods_of,
    prepare_nodes,
    serves,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20
# The error of a connection that a policy drops.
DROPPED = "TimeoutError"
CACHE = "/var/cache/llama_rpc"
PODS = (LEADER, *WORKERS)


@pytest.fixture(scope="module")
def client() -> Client:
    return Client(ADDRESS[LEADER], API_PORT, KEY)


@pytest.fixture(scope="module")
def group(unpacked: Path, tmp_path_factory: pytest.TempPathFactory, client: Client) -> Iterator[Controller]:
    """Run a group under the stand-in for a controller, wait for its first token, and yield the controller."""
    assert unpacked.exists()
    manifests: list[dict[str, Any]] = rendered(tmp_path_factory.mktemp("rendered"), VARIABLES)
    prepare_nodes(manifests)
    apply_policies(manifests)
    controller, began = Controller(pods_of(manifests)), time.monotonic()
    with controller.running():
        took = back_after(controller.pods, client.answers, began, 300)
        FIGURES.append(f"a group on nodes that have the image, nothing cached: a token after {took:.1f} s")
        yield controller
        for pod in controller.pods.values():
            assert "Traceback" not in pod.said()


def test_all_pods_are_ready_and_the_api_answers(group: Controller, client: Client) -> None:
    eventually(lambda: serves(group.pods), 60, "all pods are ready")
    for pod in group.pods.values():
        assert pod.passes("livenessProbe")
        assert pod.passes("startupProbe")
    assert client.text()
    assert client.request("/v1/models")[1]["data"][0]["id"] == "random"
    said = group.pods[LEADER].said()
    assert "It fits" in said
    assert "Serving random over 2 workers" in said


@pytest.mark.parametrize("name", PODS)
def test_a_pod_may_nothing(group: Controller, name: str) -> None:
    pod = group.pods[name]
    _status, text = pod.inside("cat", "/proc/1/status")
    found = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert {found[it] for it in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")
    assert set(found["Uid"].split()) == {str(UID)}
    for place in ("", "/usr/local/lib", "/etc/llama_server", "/models", "/tmp"):
        status, said = pod.inside("touch", f"{place}/x")
        assert status != 0
        assert "Read-only file system" in said, f"{place}: {said}"


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_has_a_thread_for_each_core_of_its_own(group: Controller, name: str) -> None:
    _status, text = group.pods[name].inside("cat", "/proc/1/cmdline")
    command = text.split("\0")
    assert command[command.index("-t") + 1] == "1"
    assert command[command.index("-H") + 1] == ADDRESS[name]
    assert "Starting an RPC server with 1 threads at" in group.pods[name].said()


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_has_repacked_its_weights(group: Controller, client: Client, name: str) -> None:
    assert client.text()
    said = re.findall(r"Repacked (\d+) of (\d+) weights \((\S+) of \S+ MiB\)", group.pods[name].said())
    assert said, group.pods[name].said()
    repacked, of_weights, mebibytes = said[-1]
    assert 0 < int(repacked) <= int(of_weights)
    FIGURES.append(f"{name} has repacked {repacked} of {of_weights} weights, {mebibytes} MiB")


def test_a_leader_has_no_more_threads_than_cores(group: Controller) -> None:
    _status, children = group.pods[LEADER].inside("cat", "/proc/1/task/1/children")
    _status, text = group.pods[LEADER].inside("cat", f"/proc/{children.split()[0]}/cmdline")
    command = text.split("\0")
    assert command[0].endswith("/llama-server")
    assert command[command.index("--threads") + 1] == "1"


def test_no_probe_takes_a_busy_worker_s_connection(group: Controller, client: Client) -> None:
    def accepted() -> dict[str, int]:
        return {name: group.pods[name].said().count("Accepted client connection") for name in WORKERS}

    before = accepted()
    assert min(before.values()) > 0
    with client.stream(200) as answer:
        for name in PODS:
            assert all(group.pods[name].passes(probe) for probe in ("readinessProbe", "livenessProbe"))
        assert accepted() == before
        assert answer.read().decode().rstrip().endswith("data: [DONE]")


def test_a_worker_is_reached_by_its_leader_alone(group: Controller) -> None:
    leader, worker = group.pods[LEADER], group.pods[WORKERS[0]]
    for name in WORKERS:
        assert connect("outsider", ADDRESS[name], RPC_PORT).startswith(DROPPED)
        # The worker accepts a second client, which waits: the test needs only the connection.
        assert leader.reaches(ADDRESS[name], RPC_PORT) == "connected"
    assert worker.reaches(ADDRESS[WORKERS[1]], RPC_PORT).startswith(DROPPED)
    assert worker.reaches(ADDRESS[LEADER], API_PORT).startswith(DROPPED)
    # Only the pods' own policies are in the way to the outsider.
    assert connect(HOST[LEADER], ADDRESS["outsider"], 22) == "connected"
    assert worker.reaches(ADDRESS["outsider"], 22).startswith(DROPPED)
    assert leader.reaches(ADDRESS["outsider"], 22).startswith(DROPPED)


def test_the_leader_is_reached_by_the_door_alone(group: Controller, client: Client) -> None:
    assert group.pods[LEADER].active
    assert client.answers()
    assert connect("outsider", ADDRESS[LEADER], API_PORT).startswith(DROPPED)
    assert connect("outsider", ADDRESS[LEADER], READY_PORT).startswith(DROPPED)


def anew(group: Controller, client: Client, what: str) -> None:
    """Wait for the group to be made anew after a loss, and note how long that took."""
    made, began = group.made, time.monotonic()
    eventually(lambda: group.made > made, 60, "the stand-in for the controller makes the group anew")
    FIGURES.append(f"{what}: a token again after {back_after(group.pods, client.answers, began):.1f} s")
    assert "Traceback" not in group.pods[LEADER].said()


def test_a_killed_worker_takes_its_group_with_it_and_the_api_comes_back(group: Controller, client: Client) -> None:
    before = {name: pod.pid for name, pod in group.pods.items()}
    with client.stream(400):
        group.pods[WORKERS[0]].kill()
        anew(group, client, "a worker is killed while it computes")
    assert all(pod.pid != before[name] for name, pod in group.pods.items()), "every pod is a new one"


def test_a_killed_worker_of_an_idle_group_too(group: Controller, client: Client) -> None:
    group.pods[WORKERS[1]].kill()
    anew(group, client, "a worker is killed while nobody asks")


def test_a_group_that_is_put_out_lets_its_request_end(group: Controller, client: Client) -> None:
    made = group.made
    with client.stream(30) as answer:
        group.pods[LEADER].delete()
        text = answer.read().decode()
    assert text.rstrip().endswith("data: [DONE]")
    eventually(lambda: group.made > made, 60, "the group is made anew")
    back_after(group.pods, client.answers, time.monotonic())


def received() -> int:
    """Return the bytes that the workers' nodes have received."""
    counters = "/sys/class/net/host0/statistics/rx_bytes"
    return sum(int(ssh(HOST[name], "cat", counters).stdout) for name in WORKERS)


def test_a_group_made_anew_loads_from_the_workers_caches(group: Controller, client: Client) -> None:
    took = {}
    for caches in ("empty", "full"):
        if caches == "empty":
            for name in WORKERS:
                ssh(HOST[name], "find", CACHE, "-type", "f", "-delete")
        before = received()
        group.pods[LEADER].kill()
        anew(group, client, f"the leader is killed, caches {caches}")
        took[caches] = received() - before
    kept = sum(
        int(size)
        for name in WORKERS
        for size in ssh(HOST[name], "find", CACHE, "-type", "f", "-printf", "%s\\n").stdout.split()
    )
    FIGURES.append(f"workers receive {took['empty'] / MIB:.0f} MiB, and {took['full'] / MIB:.0f} MiB with full caches")
    assert kept > 100 * MIB
    assert took["empty"] - took["full"] > 0.9 * kept


def test_a_leader_waits_for_a_worker_that_comes_late(group: Controller, client: Client) -> None:
    name = WORKERS[1]
    group.late = {name}
    made, leader = group.made, group.pods[LEADER]
    leader.kill()
    eventually(lambda: group.made > made, 60, "the group is made anew, but for one pod")
    sentence = f"Waiting for 1 of 2 workers, {name}.llama.default:{RPC_PORT}. "
    eventually(lambda: sentence in leader.said(), 60, "the leader says for whom it waits")
    pid, until = leader.pid, time.monotonic() + 40
    # Wait for longer than upstream's example, which makes ten attempts, 3 s apart.
    while time.monotonic() < until:
        assert leader.passes("livenessProbe")
        assert not leader.passes("readinessProbe")
        time.sleep(3)
    group.pods[name].start()
    group.late = set()
    back_after(group.pods, client.answers, time.monotonic())
    assert leader.pid == pid


def test_what_a_model_is_missing_is_said_and_it_goes_on_by_itself(group: Controller, client: Client) -> None:
    model, away = "/mnt/shared/models/random-q4_0.gguf", "/mnt/shared/models/elsewhere"
    ssh(HOST[LEADER], "mv", model, away)
    try:
        group.pods[LEADER].kill()
        sentence = "/models/random-q4_0.gguf is not a complete GGUF model: there is no such file."
        eventually(lambda: sentence in group.pods[LEADER].said(), 120, "the leader says what is missing")
        assert group.pods[LEADER].passes("livenessProbe")
        assert not group.pods[LEADER].passes("readinessProbe")
    finally:
        ssh(HOST[LEADER], "mv", away, model)
    back_after(group.pods, client.answers, time.monotonic())


@pytest.mark.parametrize("name", PODS)
def test_the_limits_are_those_of_the_manifests(group: Controller, name: str) -> None:
    pod, limit = group.pods[name], (2 if name == LEADER else 1) << 30
    said = pod.run("systemctl", "show", "--property=MemoryMax,CPUQuotaPerSecUSec", pod.unit)
    assert f"MemoryMax={limit}" in said
    assert "CPUQuotaPerSecUSec=1s" in said
    # Files that a pod has read count until another program needs the memory.
    assert 0 < pod.peak <= limit
    FIGURES.append(f"{name} has had {pod.peak / MIB:.0f} MiB of {limit / MIB:.0f} MiB")
