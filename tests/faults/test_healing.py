# SPDX-License-Identifier: GPL-3.0-or-later
"""Workers that are lost for good under one group behind a gateway: when the others or a spare answer, and that no
request is lost whose answer has not begun.

HEALING_ROUNDS=5 takes the median of five losses of each kind, and HEALING_MODEL=FILE another model. HEALING_SEED and
HEALING_MINUTES are for the losses at random.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from gateway.door import GATEWAY, client, clients_that_keep_asking
from serve.api import API_PORT, API_UNIT, journal, property_of
from support.lab import hosts as lab
from support.lab.hosts import eventually, over, ssh, words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

HEALING = lab.ROOT / "inventories/lab/healing.yml"
HERE = "one group of three workers behind a gateway, hosts with systemd"
ALL = ["worker1", "worker2", "worker3"]
ENDPOINT = {name: f"10.87.{lab.NUMBER}.{10 + number}:{lab.PORT}" for number, name in enumerate(ALL, 1)}
STRUCK = ENDPOINT["worker2"]
ROUNDS = int(os.environ.get("HEALING_ROUNDS", "1"))
MODEL = os.environ.get("HEALING_MODEL", "")
GIVEN = {"gguf_model_source": MODEL, "gguf_model_path": f"/srv/models/{MODEL.rpartition('/')[2]}"} if MODEL else {}
SEED = int(os.environ.get("HEALING_SEED", str(time.time_ns() % 10000)))
MINUTES = float(os.environ.get("HEALING_MINUTES", "10"))
# The goals: with the same worker again, and with others, of which the service waits 20 s.
AGAIN_S, OTHERS_S = 10, 45
# The end of a wait for what has no goal
LIMIT_S = 240

playbook = over(HEALING)


def serve(*spares: str) -> None:
    playbook("serve", llama_server_spares=list(spares), **GIVEN)
    eventually(lambda: "without" not in property_of("StatusText") and client().answers(), LIMIT_S, "the API serves")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> None:
    lab.require_lab()
    # An earlier test may have made a master and a gateway of these.
    lab.play("reset", "-i", str(GATEWAY), "--limit", "worker3,worker4", check=False)
    playbook("site", timeout=3600, **GIVEN)


@pytest.fixture(autouse=True)
def whole() -> None:
    """Begin with all workers, and without a memory of losses."""
    for worker in ALL:
        ssh(worker, "systemctl", "start", lab.UNIT)
    ssh("master", "systemctl", "restart", API_UNIT)
    eventually(lambda: client().answers(), LIMIT_S, "the API answers")


def division() -> dict[str, list[str]]:
    """Return the names of the hosts that serve, are lost, and so on."""
    text = ssh("master", "cat", f"/run/llama_server_{API_PORT}/division.json", check=False).stdout or "{}"
    names = {endpoint: name for name, endpoint in ENDPOINT.items()}
    lists = {key: value for key, value in json.loads(text).items() if isinstance(value, list)}
    return {key: [names[it] for it in value] for key, value in lists.items() if key != "seeded"}


def serving(*hosts: str) -> bool:
    return division().get("serving") == list(hosts)


@contextmanager
def ended(worker: str) -> Iterator[None]:
    """End the process of a worker for good."""
    ssh(worker, "systemctl", "kill", "--signal=SIGKILL", lab.UNIT)
    ssh(worker, "systemctl", "stop", lab.UNIT)
    try:
        yield
    finally:
        ssh(worker, "systemctl", "start", lab.UNIT)


@contextmanager
def without_power(worker: str) -> Iterator[None]:
    """Take a host away as a loss of power does: nobody is told, and its programs are gone. Emulated with its cable."""
    ssh(worker, "systemd-run", "--on-active=1", "systemctl", "stop", lab.UNIT)
    with lab.unplugged(worker):
        yield
    ssh(worker, "systemctl", "start", lab.UNIT)


LOSSES: dict[str, Callable[[str], AbstractContextManager[object]]] = {
    "process ended": ended,
    "host without power (emulated)": without_power,
    "network cut off": lab.unplugged,
}


def answered_after(since: float, limit_s: float = LIMIT_S) -> float:
    """Return when the first token comes of a request that is made now, in seconds since then."""
    status, body = client().request(
        "/v1/completions", {"model": "noise", "prompt": "a", "max_tokens": 1}, limit_s=limit_s
    )
    assert status == 200, body
    return time.monotonic() - since


def text() -> str:
    return client().text()


def medians(rounds: list[float]) -> str:
    return f"{statistics.median(rounds):.1f} s ({min(rounds):.1f} to {max(rounds):.1f} s, {len(rounds)} times)"


@pytest.mark.parametrize("spare", [False, True], ids=["fewer-workers", "a-spare"])
def test_others_answer_in_place_of_a_lost_worker(spare: bool, saw: Callable[..., None]) -> None:
    serve(*(["worker3"] if spare else []))
    used = ALL[:2] if spare else ALL
    before = text()
    for loss, lost in LOSSES.items():
        seconds = []
        for number in range(ROUNDS):
            assert serving(*used)
            with lost("worker2"):
                seconds.append(answered_after(time.monotonic()))
                assert serving("worker1", "worker3")
                assert text() == before
            if number == 0:
                eventually(lambda: serving(*used) and client().answers(), LIMIT_S, "the worker is back")
            # Three losses within an hour would leave it out.
            eventually(lambda: lab.ask("master", STRUCK)[STRUCK] != "unreachable", LIMIT_S, "it can be reached")
            ssh("master", "systemctl", "restart", API_UNIT)
            eventually(lambda: serving(*used) and client().answers(), LIMIT_S, "the API answers")
        whom = "with a spare" if spare else "with fewer workers"
        saw(f"worker's {loss}, {whom}", HERE, medians(seconds), None, statistics.median(seconds))
        assert statistics.median(seconds) < OTHERS_S, seconds


def test_the_same_worker_answers_after_it_was_killed(saw: Callable[..., None]) -> None:
    serve()
    seconds = []
    for _round in range(ROUNDS):
        ssh("worker2", "systemctl", "kill", "--signal=SIGKILL", lab.UNIT)
        seconds.append(answered_after(time.monotonic()))
        assert serving(*ALL)
        ssh("master", "systemctl", "restart", API_UNIT)
        eventually(client().answers, LIMIT_S, "the API answers")
    saw("worker killed, back by itself", HERE, medians(seconds), None, statistics.median(seconds))
    assert statistics.median(seconds) < AGAIN_S, seconds


def test_no_request_that_has_not_begun_is_lost_while_the_only_group_divides_again(saw: Callable[..., None]) -> None:
    serve()
    with clients_that_keep_asking(8, tokens=2, streams=4) as seen:
        eventually(lambda: seen.outcomes.total() >= 8, 120, "each client has asked")
        with ended("worker2"):
            struck = time.monotonic()
            eventually(lambda: serving("worker1", "worker3"), LIMIT_S, "the others serve")
            back_s = time.monotonic() - struck
            eventually(lambda: seen.outcomes.total() >= 100, LIMIT_S, "100 requests have ended")
        eventually(lambda: seen.outcomes.total() >= 200, LIMIT_S, "200 requests have ended")
    eventually(lambda: serving(*ALL), LIMIT_S, "the worker is back at a quiet moment")
    saw("worker ended under clients", HERE, str(seen), None, back_s)
    assert not seen.lost, seen.outcomes


def test_two_losses_a_loss_during_the_return_and_a_restart_while_it_is_degraded() -> None:
    serve()
    before = text()
    with ended("worker2"):
        eventually(lambda: serving("worker1", "worker3") and client().answers(), LIMIT_S, "two serve")
        with ended("worker3"):
            eventually(lambda: serving("worker1") and client().answers(), LIMIT_S, "one serves")
            assert text() == before
            ssh("master", "systemctl", "restart", API_UNIT)
            eventually(lambda: serving("worker1") and client().answers(), LIMIT_S, "it serves after a restart")
    # Both return. One is lost again as soon as the model is loaded over them.
    eventually(lambda: serving(*ALL), LIMIT_S, "they return")
    with ended("worker2"):
        eventually(lambda: serving("worker1", "worker3") and client().answers(), LIMIT_S, "two serve")
        assert text() == before


def test_a_spare_whose_cache_has_no_room_serves() -> None:
    serve("worker3")
    before = text()
    folder = ssh("worker3", "sh", "-c", "ls -d /var/cache/llama*").stdout.split()[0]
    ssh("worker3", "mount", "-t", "tmpfs", "-o", "size=64k,mode=777", "tmpfs", folder)
    try:
        ssh("worker3", "systemctl", "restart", lab.UNIT)
        with ended("worker2"):
            eventually(lambda: serving("worker1", "worker3") and client().answers(), LIMIT_S, "the spare serves")
            assert text() == before
    finally:
        ssh("worker3", "systemctl", "stop", lab.UNIT)
        ssh("worker3", "umount", folder)
        ssh("worker3", "systemctl", "start", lab.UNIT)


def test_workers_that_the_model_does_not_need_get_its_parts_while_nobody_asks_and_take_over() -> None:
    playbook("serve", llama_server_spares="auto", **GIVEN)
    eventually(lambda: division().get("spare") == ["worker2", "worker3"], LIMIT_S, "two are spares")
    assert serving("worker1")
    before = text()
    for spare in ("worker2", "worker3"):
        has = f"the spare {ENDPOINT[spare]} has the part of {ENDPOINT['worker1']}."
        eventually(lambda has=has: has in journal(), LIMIT_S, f"{spare} is seeded")
    with ended("worker1"):
        eventually(lambda: serving("worker2") and client().answers(), LIMIT_S, "a spare serves")
        assert text() == before


def test_the_playbooks_know_that_it_serves_without_a_worker() -> None:
    serve()
    with ended("worker2"):
        eventually(lambda: serving("worker1", "worker3") and client().answers(), LIMIT_S, "two serve")
        done = playbook("verify", check=False)
        assert done.returncode != 0
        assert f"serves without {STRUCK} (2 of 3 workers): start it, or give its place to another host" in words(done)
        playbook("drain", "--limit", "worker3", "-e", "drain_last=true")
        assert property_of("ActiveState") == "inactive"
    # The playbook takes back all, and starts what is stopped.
    playbook("site", **GIVEN)
    eventually(lambda: serving(*ALL) and client().answers(), LIMIT_S, "all serve")


@pytest.mark.long
def test_hosts_are_lost_at_random_while_clients_talk(saw: Callable[..., None]) -> None:
    serve()
    dice, losses = random.Random(SEED), 0
    began, silent_since, longest = time.monotonic(), time.monotonic(), 0.0
    print(f"HEALING_SEED={SEED} HEALING_MINUTES={MINUTES:g}")
    with clients_that_keep_asking(4, tokens=2) as seen:
        while time.monotonic() - began < MINUTES * 60:
            answers = seen.outcomes["200"]
            with dice.choice(list(LOSSES.values()))(dice.choice(ALL)):
                losses += 1
                until = time.monotonic() + dice.uniform(1, 90)
                while time.monotonic() < until:
                    if seen.outcomes["200"] > answers:
                        answers, silent_since = seen.outcomes["200"], time.monotonic()
                    longest = max(longest, time.monotonic() - silent_since)
                    time.sleep(0.5)
        eventually(lambda: seen.outcomes["200"] > answers, LIMIT_S, "it answers at the end")
    saw(
        f"{losses} losses at random, seed {SEED}", HERE, f"{seen}; nobody was served for {longest:.0f} s", None, longest
    )
    assert not seen.lost, seen.outcomes
