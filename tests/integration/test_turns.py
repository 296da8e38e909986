# SPDX-License-Identifier: GPL-3.0-or-later
"""The patch rpc-turns: slots of llama-server take turns over the workers, and prompts come in parts."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

import pytest

from support.harness import HANG_S
from support.relay import Relay, relaying
from support.server_buffers import serving
from support.watched_worker import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.harness import Release, Worker

    Start = Callable[..., Worker]

pytestmark = pytest.mark.llama

# Commands of the protocol (enum rpc_cmd in ggml-rpc.cpp) that make a worker compute.
GRAPH_COMPUTE, GRAPH_RECOMPUTE = 10, 16


class Gate(Relay):
    """A relay that counts the graphs, and can hold the next one back."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.graphs, self.open = 0, threading.Event()
        self.open.set()

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on whole requests: a byte for the command, eight for the size, and the body."""
        with client.makefile("rb") as asked:
            while command := asked.read(1):
                size = asked.read(8)
                body = asked.read(int.from_bytes(size, "little"))
                if command[0] in (GRAPH_COMPUTE, GRAPH_RECOMPUTE):
                    self.open.wait()
                    self.graphs += 1
                server.sendall(command + size + body)

    def let_go(self) -> None:
        self.open.set()


@dataclass
class Server:
    """A llama-server, and its log."""

    port: int
    log: Path

    def ask(self, prompt: str, tokens: int, said: list[str] | None = None) -> str:
        """Return a text of so many tokens; add its parts to `said` as they come."""
        said = [] if said is None else said
        wanted: dict[str, Any] = {"prompt": prompt, "n_predict": tokens, "ignore_eos": True, "temperature": 0}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)
        connection.request("POST", "/completion", json.dumps({**wanted, "stream": True, "cache_prompt": False}))
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        said.extend(json.loads(line[5:])["content"] for line in answer if line.startswith(b"data:"))
        connection.close()
        return "".join(said)


@contextmanager
def served(release: Release, model: Path, workers: list[str], log: Path, *options: str) -> Iterator[Server]:
    given = ["--rpc", ",".join(workers), "-ngl", "99", "-c", "2048", *options]
    with serving(release, model, log, *given) as (process, port):
        yield Server(port, log)
        assert process.poll() is None, log.read_text()[-2000:]


PROMPTS = ["the river", "a stone and its shadow", "who", "of all the birds that", "seven and one", "far", "it was"]


@pytest.mark.parametrize("many", [2, pytest.param(3, marks=pytest.mark.long)])
def test_what_is_said_in_turns_is_what_each_says_alone(
    release: Release, model: Path, start: Start, tmp_path: Path, many: int
) -> None:
    """Seven clients use five slots: some wait, prompts come while others generate, and groups change."""
    workers = [start().endpoint for _number in range(many)]
    with served(release, model, workers, tmp_path / "log", "-np", "5") as server:
        alone = [server.ask(prompt, 20 + 5 * number) for number, prompt in enumerate(PROMPTS)]
        assert f"groups of slots that take turns: at most {many}" in server.log.read_text()
        with ThreadPoolExecutor(len(PROMPTS)) as clients:
            tokens = [20 + 5 * number for number in range(len(PROMPTS))]
            assert list(clients.map(server.ask, PROMPTS, tokens)) == alone


def graphs_while_the_second_is_held(release: Release, model: Path, workers: list[Worker], log: Path, turns: int) -> int:
    """Return how many more graphs the first worker gets than the second one, whose next graph is held back."""
    with relaying(Gate(workers[0])) as first, relaying(Gate(workers[1])) as second, ExitStack() as stack:
        options = ["-np", "2", "--turns", str(turns)]
        server = stack.enter_context(served(release, model, [first.endpoint, second.endpoint], log, *options))
        said: list[list[str]] = [[], []]
        clients = [threading.Thread(target=server.ask, args=(PROMPTS[n], 400, said[n])) for n in range(2)]
        for client in clients:
            client.start()
            stack.callback(client.join)
        stack.callback(second.open.set)
        assert first.graphs >= second.graphs
        until(lambda: second.graphs > 60)
        second.open.clear()
        found = -1
        while found != first.graphs:  # until no more graphs come
            found = first.graphs
            time.sleep(0.5)
        return first.graphs - second.graphs


@pytest.mark.long
def test_the_first_worker_computes_for_others_while_the_second_has_a_group(
    release: Release, model: Path, start: Start, tmp_path: Path
) -> None:
    workers = [start() for _number in range(2)]
    assert graphs_while_the_second_is_held(release, model, workers, tmp_path / "one", 1) == 1
    assert graphs_while_the_second_is_held(release, model, workers, tmp_path / "two", 2) == 2


def test_who_goes_away_in_the_middle_of_a_turn_leaves_the_others_alone(
    release: Release, model: Path, start: Start, tmp_path: Path
) -> None:
    workers = [start().endpoint for _number in range(2)]
    with served(release, model, workers, tmp_path / "log", "-np", "3", "--turns", "2") as server:
        alone = server.ask(PROMPTS[0], 150)
        with ThreadPoolExecutor(1) as clients:
            stays = clients.submit(server.ask, PROMPTS[0], 150)
            for prompt in PROMPTS[1:]:
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANG_S)
                wanted = {"prompt": prompt, "n_predict": 1000, "ignore_eos": True, "stream": True}
                connection.request("POST", "/completion", json.dumps(wanted))
                assert connection.getresponse().readline().startswith(b"data:")
                connection.close()
            assert stays.result() == alone


def test_a_short_prompt_comes_in_parts(release: Release, model: Path, start: Start, tmp_path: Path) -> None:
    """Upstream's parts have 512 tokens: the second worker would wait until the first one has done all of it."""
    with relaying(Gate(start())) as first, relaying(Gate(start())) as second:
        workers = [first.endpoint, second.endpoint]
        with served(release, model, workers, tmp_path / "log", "-np", "1") as server:
            server.ask("once", 1)
            before = first.graphs
            server.ask("again " * 255, 1)
            assert first.graphs - before == 4
