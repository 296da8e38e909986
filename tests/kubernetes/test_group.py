# SPDX-License-Identifier: GPL-3.0-or-later
"""The image, and a group of its pods on test hosts: confined as the manifests say, and made anew when a pod is lost."""

from __future__ import annotations

import json
import subprocess
import tarfile
import time
from typing import TYPE_CHECKING

import pytest

from support.lab.hosts import connect, eventually, ssh
from support.lab.pod_image import MIRROR, Image, make_image
from support.lab.pods import (
    ADDRESS,
    API_PORT,
    FIGURES,
    HOST,
    LEADER,
    READY_PORT,
    RPC_PORT,
    UID,
    WORKERS,
    Controller,
    back_after,
    serves,
)

if TYPE_CHECKING:
    from pathlib import Path

    from support.api_client import Client

MIB = 1 << 20
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3)"


def test_the_image_is_small_and_the_same_when_it_is_made_again(
    image: Image, artifacts: list[Path], tmp_path: Path
) -> None:
    again = make_image(artifacts, tmp_path / "again.tar")
    assert again.digest == image.digest
    assert again.path.read_bytes() == image.path.read_bytes()
    size = image.path.stat().st_size
    FIGURES.append(f"image {image.digest}, made twice, from {MIRROR}: {size / MIB:.0f} MiB")
    assert size <= 150 * MIB
    # As a registry knows it.
    said = subprocess.run(
        ["skopeo", "inspect", "--raw", f"oci-archive:{image.path}"], capture_output=True, check=True, text=True
    )
    assert json.loads(said.stdout)["mediaType"].startswith("application/vnd.oci.image.")
    with tarfile.open(image.path) as archive:
        assert "oci-layout" in archive.getnames()


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


@pytest.mark.parametrize("name", HOST)
def test_a_pod_may_nothing(group: Controller, name: str) -> None:
    pod = group.pods[name]
    _status, text = pod.inside("cat", "/proc/1/status")
    found = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert {found[it] for it in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")
    assert set(found["Uid"].split()) == {str(UID)}
    for place in ("", "/usr/local/lib", "/etc/llama_server", "/tmp", "/run"):
        status, said = pod.inside("touch", f"{place}/x")
        assert status != 0, f"{place} was written to: {said}"
    assert pod.inside("test", "-e", "/var/run/secrets/kubernetes.io")[0] != 0


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_has_a_thread_for_each_core_of_its_own(group: Controller, name: str) -> None:
    _status, text = group.pods[name].inside("cat", "/proc/1/cmdline")
    command = text.split("\0")
    assert command[command.index("-t") + 1] == "1"
    assert command[command.index("-H") + 1] == ADDRESS[name]


def test_a_worker_is_reached_by_its_leader_alone(group: Controller) -> None:
    leader, worker = group.pods[LEADER], group.pods[WORKERS[0]]
    for name in WORKERS:
        assert connect("outsider", ADDRESS[name], RPC_PORT) != "connected"
        # A second client is taken, and waits: what matters is that it comes so far.
        assert leader.inside("python3", "-c", CONNECT, ADDRESS[name], str(RPC_PORT))[0] == 0
    assert worker.inside("python3", "-c", CONNECT, ADDRESS[WORKERS[1]], str(RPC_PORT))[0] != 0
    assert worker.inside("python3", "-c", CONNECT, ADDRESS[LEADER], str(API_PORT))[0] != 0
    assert worker.inside("python3", "-c", CONNECT, ADDRESS["outsider"], "22")[0] != 0
    assert leader.inside("python3", "-c", CONNECT, ADDRESS["outsider"], "22")[0] != 0


def test_the_leader_is_reached_by_the_door_alone(group: Controller, client: Client) -> None:
    assert group.pods[LEADER].active
    assert client.answers()
    assert connect("outsider", ADDRESS[LEADER], API_PORT) != "connected"
    assert connect("outsider", ADDRESS[LEADER], READY_PORT) != "connected"


def anew(group: Controller, client: Client, what: str) -> None:
    """Wait for the group to be made anew after a loss, and note how long that took."""
    made, began = group.made, time.monotonic()
    eventually(lambda: group.made > made, 60, "the stand-in for the controller makes the group anew")
    back_after(group.pods, client.answers)
    FIGURES.append(f"{what}: a token again after {time.monotonic() - began:.1f} s")
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


def test_a_killed_leader_too(group: Controller, client: Client) -> None:
    group.pods[LEADER].kill()
    anew(group, client, "the leader is killed")


def test_a_group_that_is_put_out_lets_its_request_end(group: Controller, client: Client) -> None:
    with client.stream(30) as answer:
        made: int = group.made
        group.pods[LEADER].delete()
        text = answer.read().decode()
    assert text.rstrip().endswith("data: [DONE]")
    eventually(lambda: group.made > made, 60, "the group is made anew")
    back_after(group.pods, client.answers)


def test_what_a_model_is_missing_is_said_and_it_goes_on_by_itself(group: Controller, client: Client) -> None:
    model, away = "/mnt/shared/models/random-weights.gguf", "/mnt/shared/models/elsewhere"
    ssh("master", "mv", model, away)
    try:
        group.pods[LEADER].kill()
        sentence = "/models/random-weights.gguf is not a complete GGUF model: there is no such file."
        eventually(lambda: sentence in group.pods[LEADER].said(), 120, "the leader says what is missing")
        assert group.pods[LEADER].passes("livenessProbe")
        assert not group.pods[LEADER].passes("readinessProbe")
    finally:
        ssh("master", "mv", away, model)
    back_after(group.pods, client.answers)


@pytest.mark.parametrize("name", HOST)
def test_the_limits_are_those_of_the_manifests(group: Controller, name: str) -> None:
    pod = group.pods[name]
    said = pod.run("systemctl", "show", "--property=MemoryMax,CPUQuotaPerSecUSec", pod.unit)
    assert f"MemoryMax={(2 if name == LEADER else 1) << 30}" in said
    assert "CPUQuotaPerSecUSec=1s" in said
