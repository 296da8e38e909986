# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of two groups behind the gateway: what clients notice if a group is lost or put out, or if the gateway is.

Stand-ins replace the kubelet and LeaderWorkerSet's controller, one for each group. HAProxy is Debian's. An entry in a
hosts file replaces the Service of a pod.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from support.api_client import Client
from support.kubernetes import IMAGE, rendered
from support.lab.hosts import eventually
from support.lab.pods import (
    ADDRESS,
    API_PORT,
    DOOR_PORT,
    FIGURES,
    GATEWAY,
    KEY,
    RPC_PORT,
    VARIABLES,
    Controller,
    Pod,
    apply_policies,
    groups_of,
    pods_of,
    prepare_nodes,
    serves,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLIENT_KEY = "key-of-the-first-client"
TWO_GROUPS = {
    **VARIABLES,
    "kubernetes_replicas": 2,
    "kubernetes_size": 2,
    "kubernetes_gateway_image": IMAGE.replace("llama", "haproxy"),
    # As long as a stream may take on a busy machine.
    "llama_server_drain_timeout": 100,
    "llama_gateway_group_key": KEY,
    "llama_gateway_api_keys": [{"name": "first", "key": CLIENT_KEY}],
}


@dataclass
class Groups:
    """The groups, each with a controller, and the gateway."""

    controllers: list[Controller]
    gateway: Pod


@dataclass
class Asking:
    """The outcomes of requests that a client has sent one after another."""

    answers: list[float] = field(default_factory=list)
    """How many seconds each took that was answered."""
    failures: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def client() -> Client:
    return Client(ADDRESS[GATEWAY], DOOR_PORT, CLIENT_KEY)


@pytest.fixture(scope="module")
def groups(unpacked: Path, tmp_path_factory: pytest.TempPathFactory, client: Client) -> Iterator[Groups]:
    assert unpacked.exists()
    manifests = rendered(tmp_path_factory.mktemp("rendered"), TWO_GROUPS)
    prepare_nodes(manifests)
    apply_policies(manifests)
    pods = pods_of(manifests)
    controllers = [Controller({name: pods[name] for name in names}) for names in groups_of(manifests)]
    gateway = pods[GATEWAY]
    with ExitStack() as stack:
        for controller in controllers:
            stack.enter_context(controller.running())
        gateway.delete()
        gateway.start()
        stack.callback(gateway.delete)
        for controller in controllers:
            eventually(lambda pods=controller.pods: serves(pods), 300, "a group is ready")
        eventually(lambda: gateway.passes("readinessProbe"), 60, "the gateway is ready")
        eventually(client.answers, 60, "the gateway answers")
        yield Groups(controllers, gateway)


@contextmanager
def asking(client: Client) -> Iterator[Asking]:
    """Send requests one after another until the block ends; yield their outcomes."""
    found, over = Asking(), threading.Event()

    def ask() -> None:
        while not over.is_set():
            began = time.monotonic()
            try:
                client.text(4)
                found.answers.append(time.monotonic() - began)
            except Exception as error:  # noqa: BLE001 - whatever it is, a client has noticed it
                found.failures.append(repr(error))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def put_out(controller: Controller) -> None:
    """Put a group out as the eviction of its leader does, and wait until it serves again."""
    made = controller.made
    next(iter(controller.pods.values())).delete()
    eventually(lambda: controller.made > made, 120, "the group is made anew")
    eventually(lambda: serves(controller.pods), 180, "the group is ready")


def test_requests_go_to_the_free_slots_of_both_groups(groups: Groups, client: Client) -> None:
    before = groups.gateway.said()
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(lambda _number: client.text(48), range(4)))
    eventually(lambda: groups.gateway.said().count(" POST /v1/completions 200 ") >= 4, 10, "the gateway has logged it")
    said = groups.gateway.said().removeprefix(before)
    # Each group has two slots.
    assert [said.count(f" llama-{group} POST /v1/completions 200 ") for group in (0, 1)] == [2, 2]


def test_each_group_has_its_own_workers_and_one_door(groups: Groups, client: Client) -> None:
    leaders = [groups.controllers[group].pods[f"llama-{group}"] for group in (0, 1)]
    for group in (0, 1):
        assert leaders[group].reaches(ADDRESS[f"llama-{group}-1"], RPC_PORT) == "connected"
        assert leaders[group].reaches(ADDRESS[f"llama-{1 - group}-1"], RPC_PORT).startswith("TimeoutError")
        assert groups.gateway.reaches(ADDRESS[f"llama-{group}"], API_PORT) == "connected"
        assert groups.gateway.reaches(ADDRESS[f"llama-{group}-1"], RPC_PORT).startswith("TimeoutError")
        # The test itself has the labels of a client, which may reach the gateway only.
        with pytest.raises(TimeoutError):
            Client(ADDRESS[f"llama-{group}"], API_PORT, KEY).request("/health", limit_s=3)
    assert client.answers()


def test_a_lost_worker_costs_the_clients_of_the_other_group_nothing(groups: Groups, client: Client) -> None:
    controller = groups.controllers[0]
    made = controller.made
    with asking(client) as found:
        eventually(lambda: len(found.answers) > 2, 60, "requests are answered")
        controller.pods["llama-0-1"].kill()
        eventually(lambda: controller.made > made, 60, "the group is made anew")
        eventually(lambda: serves(controller.pods), 180, "the group is ready")
    assert found.failures == []
    FIGURES.append(
        f"one of two groups loses a worker: {len(found.answers)} requests one after another are answered, "
        f"the slowest after {max(found.answers):.1f} s"
    )


def test_groups_are_put_out_one_after_the_other_and_no_client_notices(groups: Groups, client: Client) -> None:
    before = {name: pod.pid for controller in groups.controllers for name, pod in controller.pods.items()}
    with asking(client) as found:
        for controller in reversed(groups.controllers):
            put_out(controller)
    after = {name: pod.pid for controller in groups.controllers for name, pod in controller.pods.items()}
    assert all(after[name] != before[name] for name in before)
    assert found.failures == []
    FIGURES.append(
        f"both groups are put out one after the other: {len(found.answers)} requests are answered, "
        f"the slowest after {max(found.answers):.1f} s"
    )


def test_a_gateway_that_is_put_out_lets_its_streams_end(groups: Groups, client: Client) -> None:
    with client.stream(450) as answer:
        began = time.monotonic()
        groups.gateway.delete()
        took = time.monotonic() - began
        text = answer.read().decode()
    assert text.rstrip().endswith("data: [DONE]")
    # Within 5 s the gateway might have ended before HAProxy was told.
    assert took > 6
    assert not groups.gateway.active
    groups.gateway.start()
    eventually(lambda: groups.gateway.passes("readinessProbe"), 60, "the gateway is ready")
    assert client.answers()
