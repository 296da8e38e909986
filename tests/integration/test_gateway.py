# SPDX-License-Identifier: GPL-3.0-or-later
"""A real HAProxy with the role's configuration, in front of stand-ins for groups and of real groups."""

from __future__ import annotations

import http.client
import json
import re
import select
import shutil
import signal
import socket
import ssl
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.api_client import Client
from support.api_service import KEY, NO_PAGE, Service, running_service
from support.gateway import CLIENT_KEY, GROUP_KEY, PLAY, Gateway, make_certificate, running_gateway, write_configuration
from support.harness import HANG_S, Release, Worker, free_port, play_over
from support.runs import wait_for
from support.stand_in_groups import StandIn, StandIns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


CHAT = "/v1/chat/completions"
SECOND_KEY = "key-of-the-second-client"
EXPIRED_KEY = "key-of-an-earlier-client"
KEYS = [
    {"name": "first", "key": CLIENT_KEY},
    {"name": "second", "key": SECOND_KEY, "requests": 2},
    # This name is also a flag of HAProxy.
    {"name": "-i", "key": EXPIRED_KEY, "expires": "2026-01-31"},
]


@pytest.fixture
def folder() -> Iterator[Path]:
    # pytest's own folders are too deep for a socket's path.
    with tempfile.TemporaryDirectory(prefix="gateway-") as path:
        yield Path(path)


def described(group: StandIn) -> dict[str, Any]:
    """Return a group as the role's variables describe it."""
    place = {"address": "127.0.0.1", "port": group.port, "ready_port": group.port}
    return {"name": group.name, "model": group.model, "slots": group.slots, **place}


@contextmanager
def door(folder: Path, *groups: StandIn, **variables: Any) -> Iterator[tuple[StandIns, Gateway]]:
    """Run a gateway in front of stand-ins; yield both."""
    with StandIns(list(groups)) as stand_ins:
        told = [described(group) for group in groups]
        options = {"llama_gateway_api_keys": KEYS, **variables}
        with running_gateway(folder, told, **options) as gateway:
            yield stand_ins, gateway


@pytest.fixture(scope="module")
def shared() -> Iterator[Door]:
    """Yield one gateway for the tests that need no options of their own. Each test has models of its own."""
    names = ["noise", "code", "queue", "order", "one-key", "lost", "fatal", "ready", "home"]
    counts = {"noise": 1, "code": 1, "order": 1, "fatal": 3, "one-key": 1, "home": 4}
    groups = {name: [StandIn(f"{name}{n}", model=name) for n in range(counts.get(name, 2))] for name in names}
    groups["queue"][1].slots = 1
    groups["order"][0].slots = 1
    groups["one-key"][0].slots = 4
    everything = [group for of_model in groups.values() for group in of_model]
    with tempfile.TemporaryDirectory(prefix="gateway-") as path:
        options = {"llama_gateway_queue_length": 6, "llama_gateway_request_kib": 64}
        with door(Path(path), *everything, **options) as (stand_ins, gateway):
            yield Door(stand_ins, gateway, groups)


@dataclass
class Door:
    """A gateway, and the stand-ins for groups behind it by their model."""

    stand_ins: StandIns
    gateway: Gateway
    groups: dict[str, list[StandIn]]

    @property
    def client(self) -> Client:
        return self.gateway.client


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "noise", "messages": [{"role": "user", "content": text}], "max_tokens": 2, **more}


def who_answers(client: Client, body: dict[str, Any]) -> str:
    status, answer = client.request(CHAT, body)
    assert status == 200, answer
    return str(answer["choices"][0]["message"]["content"])


def at_once(client: Client, bodies: list[dict[str, Any]]) -> list[tuple[int, Any]]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: client.request(CHAT, body), bodies))


def test_a_request_goes_to_a_group_that_serves_its_model(shared: Door) -> None:
    client = shared.client
    assert who_answers(client, chat("x")) == "noise0"
    assert who_answers(client, chat("x", model="code")) == "code0"
    assert [entry["id"] for entry in client.request("/v1/models")[1]["data"]] == list(shared.groups)
    status, answer = client.request(CHAT, chat("x", model="none"))
    assert (status, answer["error"]["code"]) == (404, 404)
    assert "These are: noise, code, " in answer["error"]["message"]
    status, answer = client.request(CHAT, {"messages": []})
    assert status == 400
    assert "names no model" in answer["error"]["message"]
    for path in ("/slots", "/props", "/v1/nothing"):
        assert client.request(path)[0] == 404
    assert not {"/slots", "/props"} & set(shared.groups["noise"][0].paths)
    assert replace(client, key=None).request("/health") == (200, {"status": "ok"})
    assert 'haproxy_backend_current_queue{proxy="model1"} 0' in client.request("/metrics")[1]


def test_only_a_known_key_that_has_not_expired_is_served(shared: Door) -> None:
    group = shared.groups["code"][0]
    body = chat("x", model="code")
    served = group.paths[CHAT]
    for key in (None, "x", GROUP_KEY, EXPIRED_KEY):
        for path in ("/v1/models", "/metrics", CHAT):
            status, answer = replace(shared.client, key=key).request(path, body if path == CHAT else None)
            assert status == 401, (key, path)
    assert answer["error"]["message"] == "This API key has expired."
    assert group.paths[CHAT] == served
    connection = http.client.HTTPConnection("127.0.0.1", shared.gateway.port, timeout=HANG_S)
    # Anthropic's clients send the key in this header. Only the gateway may set the other two, so it must ignore them
    # here.
    hostile = {"X-Api-Key": CLIENT_KEY, "X-Llama-Backend": "keys", "X-Llama-Deadline": "0"}
    connection.request("POST", CHAT, json.dumps(body), hostile)
    assert connection.getresponse().status == 200
    connection.close()
    assert group.seen[-1]["authorization"] == f"Bearer {GROUP_KEY}"
    assert "x-api-key" not in group.seen[-1]
    wait_for(lambda: " first code code0 POST /v1/chat/completions 200 " in shared.gateway.log(), 10)
    log = shared.gateway.log()
    files = [shared.gateway.folder / name for name in ("haproxy.cfg", "keys.map")]
    assert CLIENT_KEY not in "".join([log, *(path.read_text() for path in files)])


def test_a_line_of_the_log_has_the_status_whatever_a_client_asks_for(shared: Door) -> None:
    assert shared.client.request(CHAT, chat("x", model="m" * 3000))[0] == 404
    assert shared.client.request(f"/{'p' * 3000}")[0] == 404
    # The log has six characters for each of these.
    assert shared.client.request(CHAT, chat("x", model="\x7f" * 250))[0] == 404
    with connect(shared.gateway, "127.0.0.1") as sock:
        sock.sendall(b"M" * 3000 + b" / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert everything(sock).startswith(b"HTTP/1.1 401")
    long = "longer-than-256-characters"
    wait_for(lambda: shared.gateway.log().count(long) == 4, 10)
    said = [line.partition(" ")[2] for line in shared.gateway.log().splitlines() if long in line]
    assert [re.split(" 40[14] ", line)[0] for line in said] == [
        f"first {long} - POST {CHAT}",
        f"first - - GET {long}",
        f"first {long} - POST {CHAT}",
        f"- - - {long} /",
    ]


def test_no_group_gets_more_than_its_slots_and_the_rest_wait_in_turn(shared: Door) -> None:
    groups = shared.groups["queue"]
    for group in groups:
        group.prompt_s = 0.5
    answers = at_once(shared.client, [chat(f"prompt {number}", model="queue") for number in range(12)])
    statuses = [status for status, _answer in answers]
    assert statuses.count(200) == 9, answers
    assert statuses.count(429) == 3
    assert [group.most_busy for group in groups] == [2, 1]
    refused = next(answer for status, answer in answers if status == 429)
    assert "queue for this model is full" in refused["error"]["message"]


def test_who_came_first_is_served_first(shared: Door) -> None:
    shared.groups["order"][0].prompt_s = 0.5
    served: list[int] = []

    def ask(number: int) -> None:
        assert shared.client.request(CHAT, chat(f"prompt {number}", model="order"))[0] == 200
        served.append(number)

    with ThreadPoolExecutor(5) as pool:
        asked = []
        for number in range(5):
            asked.append(pool.submit(ask, number))
            time.sleep(0.1)
    assert all(one.exception() is None for one in asked)
    assert served == [0, 1, 2, 3, 4]


def test_who_waits_too_long_is_told_when_to_ask_again(folder: Path) -> None:
    group = StandIn("a", slots=1, prompt_s=6)
    slow = door(folder, group, llama_gateway_queue_timeout=2)
    with slow as (_stand_ins, gateway), ThreadPoolExecutor(1) as pool:
        first = pool.submit(gateway.client.request, CHAT, chat("long"))
        time.sleep(0.5)
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=HANG_S)
        begun = time.monotonic()
        connection.request("POST", CHAT, json.dumps(chat("late")), {"Authorization": f"Bearer {CLIENT_KEY}"})
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("Retry-After")) == (429, "10")
        error = json.loads(answer.read())["error"]
        assert (error["code"], error["message"][:38]) == (429, "The request has waited for a slot for ")
        assert 1.5 < time.monotonic() - begun < 5
        connection.close()
        assert first.result()[0] == 200
        group.readiness = 503
        wait_for(lambda: "Server model1/a is DOWN" in gateway.log(), 10)
        status, refused = gateway.client.request(CHAT, chat("nobody serves"))
        assert (status, refused["error"]["code"]) == (504, 504)


def test_one_key_cannot_take_the_slots_of_the_others(shared: Door) -> None:
    shared.groups["one-key"][0].prompt_s = 1
    second = replace(shared.client, key=SECOND_KEY)
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(at_once, second, [chat(f"x {number}", model="one-key") for number in range(4)])
        time.sleep(0.3)
        assert who_answers(shared.client, chat("mine", model="one-key")) == "one-key0"
        answers = others.result()
    assert sorted(status for status, _answer in answers) == [200, 200, 429, 429]
    assert "as many requests under way" in next(a for s, a in answers if s == 429)["error"]["message"]
    assert second.request(CHAT, chat("later", model="one-key"))[0] == 200, "what has ended no longer counts"


def busy_with_four(shared: Door, model: str, pool: ThreadPoolExecutor) -> list[Future[tuple[int, Any]]]:
    """Give each of the two groups of a model two requests whose prompts take a second; return their futures."""
    for group in shared.groups[model]:
        group.prompt_s = 1
    bodies = [chat(f"prompt {number}", model=model) for number in range(4)]
    asked = [pool.submit(shared.client.request, CHAT, body) for body in bodies]
    wait_for(lambda: all(group.busy == 2 for group in shared.groups[model]), 10)
    return asked


def test_a_request_that_has_not_begun_is_not_lost_with_its_group(shared: Door) -> None:
    first, second = shared.groups["lost"]
    with ThreadPoolExecutor(8) as pool:
        asked = busy_with_four(shared, "lost", pool)
        shared.stand_ins.run(first.kill())
        assert [future.result()[0] for future in asked] == [200] * 4
        # Now no group is left, and requests wait until one is back.
        shared.stand_ins.run(second.kill())
        bodies = [chat(f"later {number}", model="lost") for number in range(2)]
        asked = [pool.submit(shared.client.request, CHAT, body) for body in bodies]
        time.sleep(4)
        assert not any(future.done() for future in asked)
        shared.stand_ins.run(second.start())
        assert [future.result()[0] for future in asked] == [200] * 2


def test_a_request_that_ends_its_group_ends_two_at_most(shared: Door) -> None:
    status, answer = shared.client.request(CHAT, chat("kill", model="fatal"))
    assert status == 502
    assert "so was the one that was asked next" in answer["error"]["message"]
    alive = [group for group in shared.groups["fatal"] if group.server is not None and group.server.is_serving()]
    assert len(alive) == 1
    assert who_answers(shared.client, chat("x", model="fatal")) == alive[0].name


@contextmanager
def stream(gateway: Gateway, model: str, tokens: int) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=HANG_S)
    body = json.dumps(chat("long", model=model, stream=True, max_tokens=tokens))
    connection.request("POST", CHAT, body, {"Authorization": f"Bearer {CLIENT_KEY}"})
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data:")
    yield answer
    connection.close()


def test_a_group_that_is_not_ready_gets_nothing_new(shared: Door) -> None:
    groups = shared.groups["ready"]
    for group in groups:
        group.token_s = 0.1
    with stream(shared.gateway, "ready", 80) as answer:
        streaming = next(group for group in groups if group.busy)
        other = next(group for group in groups if group is not streaming)
        for readiness in (404, 503):
            streaming.readiness = readiness
            time.sleep(3)
            asked = [chat(f"{readiness} {number}", model="ready", max_tokens=1) for number in range(4)]
            assert {who_answers(shared.client, body) for body in asked} == {other.name}
        assert answer.read().decode().rstrip().endswith("data: [DONE]"), "what had begun has ended well"
    streaming.readiness = 200
    time.sleep(2)
    answers = at_once(shared.client, [chat(f"again {number}", model="ready") for number in range(4)])
    assert streaming.name in {answer["choices"][0]["message"]["content"] for _status, answer in answers}


def test_a_conversation_stays_where_its_prompt_is_cached(shared: Door) -> None:
    groups = shared.groups["home"]
    for number in range(6):
        # All chats have the same system prompt, as from one application.
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Chat {number}"}]
        for turn in range(10):
            body = {"model": "home", "messages": messages, "max_tokens": 1}
            messages.append({"role": "assistant", "content": who_answers(shared.client, body)})
            messages.append({"role": "user", "content": f"turn {turn}"})
        assert len({message["content"] for message in messages if message["role"] == "assistant"}) == 1
    assert sum(group.paths[CHAT] for group in groups) == 60
    # A client can name a conversation itself, whatever its messages are.
    book = {"model": "home", "prompt_cache_key": "book"}
    named = {who_answers(shared.client, chat(f"part {number}", **book)) for number in range(6)}
    assert len(named) == 1
    # A conversation goes elsewhere while its group has no free slot.
    home = next(group for group in groups if group.name in named)
    home.prompt_s = 2
    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(shared.client.request, CHAT, chat(f"{number}", **book)) for number in range(2)]
        wait_for(lambda: home.busy == 2, 10)
        assert who_answers(shared.client, chat("third", **book)) != home.name
        assert all(future.result()[0] == 200 for future in busy)


def test_a_reload_ends_no_request_and_changes_keys_and_the_order_of_models(folder: Path) -> None:
    with door(folder, StandIn("a", token_s=0.1), StandIn("b", model="code")) as (_stand_ins, gateway):
        stop = threading.Event()
        failures: list[object] = []

        def keep_asking() -> None:
            # After the reload this key is no key. Then an address may open 200 connections in 10 s.
            while not stop.wait(0.1):
                # Each request opens its own connection, so that a refused connection is noticed.
                try:
                    status, _answer = gateway.client.request("/health")
                except OSError as error:
                    failures.append(error)
                else:
                    failures.extend([status] if status != 200 else [])

        # This takes longer than the stream, and changes nothing until the reload.
        gateway.write(
            llama_gateway_api_keys=[{"name": "next", "key": SECOND_KEY}],
            llama_gateway_groups=gateway.variables["llama_gateway_groups"][::-1],
        )
        with stream(gateway, "noise", 80) as answer:
            asking = threading.Thread(target=keep_asking)
            asking.start()
            try:
                # The number of this request's model changes before the whole request has arrived.
                body = json.dumps(chat("x", model="code")).encode()
                late = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=HANG_S)
                late.putrequest("POST", CHAT)
                late.putheader("Authorization", f"Bearer {CLIENT_KEY}")
                late.putheader("Content-Length", str(len(body)))
                late.endheaders(body[:10])
                time.sleep(0.5)
                gateway.reload()
                late.send(body[10:])
                assert late.getresponse().getheader("X-Llama-Group") == "b"
                late.close()
            finally:
                stop.set()
                asking.join()
            assert not failures
            assert gateway.client.request(CHAT, chat("x"))[0] == 401
            assert replace(gateway.client, key=SECOND_KEY).request(CHAT, chat("x"))[0] == 200
            assert answer.read().decode().rstrip().endswith("data: [DONE]")


def test_the_door_speaks_tls_and_a_pair_that_does_not_match_changes_nothing(folder: Path, tmp_path: Path) -> None:
    assert shutil.which("openssl")
    certificate, key = make_certificate(tmp_path, "first")
    _other, wrong = make_certificate(tmp_path, "second")
    options = {"llama_gateway_tls_certificate": certificate, "llama_gateway_tls_key": key}
    with door(folder, StandIn("a"), **options) as (_stand_ins, gateway):
        trusting = ssl.create_default_context(cafile=str(tmp_path / "first.crt"))
        connection = http.client.HTTPSConnection("127.0.0.1", gateway.port, timeout=HANG_S, context=trusting)
        connection.request("POST", CHAT, json.dumps(chat("x")), {"Authorization": f"Bearer {CLIENT_KEY}"})
        assert connection.getresponse().status == 200
        connection.close()
        names = ("haproxy.cfg", "keys.map", "models.map", "door.pem")
        before = [(folder / name).read_bytes() for name in names]
        result = write_configuration(folder, {**gateway.variables, "llama_gateway_tls_key": wrong})
        assert result.returncode
        assert "llama_gateway_tls_certificate and llama_gateway_tls_key cannot be used together" in result.stdout
        assert [(folder / name).read_bytes() for name in names] == before


def test_clients_that_misbehave_get_an_answer_and_harm_nobody(shared: Door) -> None:
    place = ("127.0.0.1", shared.gateway.port)
    assert shared.client.request("/v1/models")[0] == 200, "now this address may have many connections"
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {CLIENT_KEY}\r\n"
    idle = [socket.create_connection(place, 10) for _number in range(200)]
    half = socket.create_connection(place, 30)
    half.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
    begun = time.monotonic()
    with socket.create_connection(place, 5) as stranger:
        stranger.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
        assert stranger.recv(100).startswith(b"HTTP/1.1 408"), "little is kept for who has no key"
    assert time.monotonic() - begun < 5
    assert replace(shared.client, key="x").request(CHAT, chat("x" * 60_000))[0] == 401
    status, answer = shared.client.request(CHAT, chat("x" * 70_000))
    assert status == 413
    assert answer["error"]["message"] == "The request is larger than 64 KiB, which is the limit here."
    assert shared.client.request(CHAT, chat("x" * 60_000))[0] == 200
    for text in (b"no json", b" [1, 2]", b'{"model": 3'):
        with socket.create_connection(place, 10) as sock:
            sock.sendall(f"{head}Connection: close\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
            assert sock.recv(100).startswith((b"HTTP/1.1 400", b"HTTP/1.1 404")), text
    with socket.create_connection(place, 10) as sock:
        sock.sendall((head + "".join(f"X-{number}: y\r\n" for number in range(500)) + "\r\n").encode())
        assert sock.recv(100).startswith(b"HTTP/1.1 400")
    assert who_answers(shared.client, chat("healthy")) == "noise0"
    assert half.recv(100).startswith(b"HTTP/1.1 408")
    assert time.monotonic() - begun < 20
    for sock in [*idle, half]:
        sock.close()


STRANGER = "127.0.0.2"
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def connect(gateway: Gateway, address: str = STRANGER) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.port), 30, source_address=(address, 0))


def everything(sock: socket.socket) -> bytes:
    """Return what comes until the other side ends the connection."""
    parts = []
    with suppress(ConnectionResetError):
        while part := sock.recv(65536):
            parts.append(part)
    return b"".join(parts)


def still_open(socks: list[socket.socket]) -> int:
    closed = select.select(socks, [], [], 0)[0]
    return len(socks) - len(closed)


def many(gateway: Gateway, stack: ExitStack, number: int) -> list[socket.socket]:
    """Connect so often; the gateway may refuse some at once."""
    found = []
    for _one in range(number):
        with suppress(ConnectionResetError):
            found.append(stack.enter_context(connect(gateway)))
    return found


def test_a_stranger_cannot_take_what_others_need(folder: Path) -> None:
    alive = free_port()
    with door(folder, StandIn("a"), llama_gateway_alive=f"127.0.0.1:{alive}") as (_stand_ins, gateway):
        # The connection ends after a request without a valid key.
        expired = HEALTH.replace(b"\r\n\r\n", f"\r\nX-Api-Key: {EXPIRED_KEY}\r\n\r\n".encode())
        for request in (HEALTH, HEALTH.replace(b"/health", b"/v1/models"), expired):
            with connect(gateway) as sock:
                sock.sendall(request * 2)
                assert everything(sock).count(b"HTTP/1.1 ") == 1

        # 100 headers that never end: 64 may wait.
        with ExitStack() as stack:
            waiting = many(gateway, stack, 100)
            wait_for(lambda: still_open(waiting) == 64, 5)
            for sock in waiting:
                with suppress(OSError):
                    sock.sendall(b"GET / HTTP/1.1\r\nX-Long: " + b"y" * 10_000)
            assert who_answers(gateway.client, chat("meanwhile")) == "a"
        # A valid key makes room for more, to the limit of one address.
        wait_for(lambda: "conn_cur=0\n" in gateway.tell(f"show table addresses key {STRANGER}"), 10)
        with connect(gateway) as sock, ExitStack() as stack:
            sock.sendall(f"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Api-Key: {CLIENT_KEY}\r\n\r\n".encode())
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
            more = many(gateway, stack, 300)
            wait_for(lambda: still_open(more) == 255, 5)

            # However many there are, the virtual address and the kubelet get their answer.
            gateway.tell("set maxconn frontend door 200")
            last = stack.enter_context(connect(gateway, "127.0.0.1"))
            last.sendall(HEALTH)
            assert Client("127.0.0.1", alive, None).request("/health")[0] == 200
            assert not select.select([last], [], [], 1)[0], "door has no connection left for this one"


def test_who_loads_the_chat_page_takes_no_place_of_a_request(folder: Path) -> None:
    group = StandIn("a", slots=1, token_s=2)
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        options = {"llama_gateway_ui": True, "llama_gateway_queue_length": 1}
        _stand_ins, gateway = stack.enter_context(door(folder, group, **options))
        first = pool.submit(who_answers, gateway.client, chat("first", max_tokens=3))
        wait_for(lambda: group.busy == 1, 10)
        strangers = [stack.enter_context(connect(gateway)) for _number in range(20)]
        for sock in strangers:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        second = pool.submit(who_answers, gateway.client, chat("second"))
        assert all(everything(sock).startswith(b"HTTP/1.1 200") for sock in strangers)
        assert not first.done(), "the page came while the only slot was taken"
        assert (first.result(20), second.result(20)) == ("a", "a")


def test_a_flood_of_requests_without_a_key_gets_no_answer(folder: Path) -> None:
    with door(folder, StandIn("a")) as (_stand_ins, gateway):
        answers = []
        for _number in range(210):
            with suppress(BrokenPipeError, ConnectionResetError), connect(gateway) as sock:
                sock.sendall(HEALTH)
                answers.append(everything(sock))
        assert 190 < sum(answer.startswith(b"HTTP/1.1 200") for answer in answers) <= 200
        assert who_answers(gateway.client, chat("meanwhile")) == "a"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no-key": ({"llama_gateway_api_keys": []}, "llama_gateway_api_keys is empty, so nobody could use the gateway"),
    "name": (
        {"llama_gateway_api_keys": [{"name": "a b", "key": CLIENT_KEY}]},
        "an entry without a name, or with one of",
    ),
    "same-key": ({"llama_gateway_api_keys": [{"name": "a", "key": GROUP_KEY}]}, "is also the key of a client"),
    "day": (
        {"llama_gateway_api_keys": [{"name": "a", "key": CLIENT_KEY, "expires": "2027-02-29"}]},
        "llama_gateway_api_keys has expires: 2027-02-29. Give a day, such as 2027-01-31.",
    ),
    "line": ({"llama_gateway_group_key": f"{GROUP_KEY}\n"}, "or has other characters, such as a line break at its end"),
    "address": ({"llama_gateway_bind_address": "10.0.0.1"}, "say in llama_gateway_trusted_sources which addresses"),
    "connections": (
        {"llama_gateway_connections_per_address": 63},
        "connections_per_address is 63: give a number from 64 to 3000.",
    ),
    "no-group": ({"llama_gateway_groups": []}, "There is no master in llama_masters"),
    "group": ({"llama_gateway_groups": [{"name": "wait", "model": "noise"}]}, "other than wait and BACKEND"),
}


def test_wrong_variables_are_said(folder: Path) -> None:
    group = {"name": "a", "model": "noise", "address": "127.0.0.1", "port": 1, "ready_port": 2, "slots": 1}
    good = {
        "llama_gateway_groups": [group],
        "llama_gateway_group_key": GROUP_KEY,
        "llama_gateway_api_keys": [{"name": "first", "key": CLIENT_KEY}],
        "gateway_folder": str(folder),
        "gateway_program": str(folder / "haproxy"),
    }
    hosts = {name: {**good, **variables} for name, (variables, _sentence) in WRONG.items()}
    result = play_over(str(PLAY), folder, {"llama_gateways": {"hosts": hosts}})
    assert result.stdout.count("failed=1 ") == len(WRONG)
    assert [sentence for _variables, sentence in WRONG.values() if sentence not in result.stdout] == []
    assert not (folder / "haproxy.cfg").exists()


@dataclass
class RealGroup:
    """A service over one worker, and its description for a gateway."""

    service: Service
    worker: Worker
    described: dict[str, Any]


@pytest.fixture
def real_groups(
    release: Release, model: Path, tmp_path: Path, start: Callable[..., Worker]
) -> Iterator[list[RealGroup]]:
    """Yield two groups of one model."""
    with ExitStack() as stack:
        groups = []
        for name in ("one", "two"):
            worker, ready = start(), free_port()
            (tmp_path / name).mkdir()
            service = stack.enter_context(
                running_service(
                    release, model, [worker.endpoint], tmp_path / name,
                    options=(*NO_PAGE, "--alias", "noise"), ready_port=ready,
                )
            )  # fmt: skip
            place = {"address": "127.0.0.1", "port": service.port, "ready_port": ready}
            groups.append(RealGroup(service, worker, {"name": name, "model": "noise", "slots": 2, **place}))
        for group in groups:
            group.service.wait_for("Serving")
        yield groups


@contextmanager
def real_door(folder: Path, groups: list[RealGroup], **variables: Any) -> Iterator[Gateway]:
    told = [group.described for group in groups]
    chosen = {"llama_gateway_group_key": KEY, "llama_gateway_queue_timeout": 60, **variables}
    with running_gateway(folder, told, **chosen) as gateway:
        yield gateway


def ask_for_a_stream(port: int, key: str, limit_s: float, **headers: str) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=limit_s)
    body = {"prompt": "the river", "max_tokens": 4, "stream": True, "model": "noise"}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Authorization": f"Bearer {key}", **headers})
    return connection


@pytest.mark.llama
def test_a_stream_whose_group_is_lost_during_the_prompt_goes_to_another_one(
    folder: Path, real_groups: list[RealGroup]
) -> None:
    for group in real_groups:
        group.worker.process.send_signal(signal.SIGSTOP)
    # By default, llama-server sends the headers before it has computed anything. With X-Late-Headers it waits.
    for headers, come in (({}, True), ({"X-Late-Headers": "1"}, False)):
        connection = ask_for_a_stream(real_groups[0].service.port, KEY, 3, **headers)
        try:
            came = connection.getresponse().status == 200
        except TimeoutError:
            came = False
        connection.close()
        assert came == come
    with real_door(folder, real_groups) as gateway:
        connection = ask_for_a_stream(gateway.port, CLIENT_KEY, HANG_S)
        table = wait_for(lambda: busy_group(gateway), 20)
        first, second = sorted(real_groups, key=lambda group: group.described["name"] != table)
        second.worker.process.send_signal(signal.SIGCONT)
        first.worker.process.kill()
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("X-Llama-Group")) == (200, second.described["name"])
        assert answer.read().decode().rstrip().endswith("data: [DONE]")
        connection.close()


def busy_group(gateway: Gateway) -> str | None:
    """Return the name of the group that has a request."""
    rows = (line.split(",") for line in gateway.tell("show stat").splitlines() if line.startswith("model1,"))
    return next((row[1] for row in rows if row[1] in ("one", "two") and int(row[4])), None)
