# SPDX-License-Identifier: GPL-3.0-or-later
"""The figures from the streams of a server, with a stand-in; test_llama_server_bench.py asks a real one."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._serve.load import (
    Load,
    LoadError,
    Server,
    Stream,
    figures,
    run,
    synthetic_prompt,
    warm_up,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "key-of-the-stand-in"
TIMINGS = {"cache_n": 1, "prompt_n": 4, "predicted_n": 3, "draft_n": 8, "draft_n_accepted": 2}
TOKENS = [{"content": text, "tokens": [7], "stop": False} for text in ("a", "b", "c")]
COMPLETION = [*TOKENS, {"content": "", "stop": True, "timings": TIMINGS}]
CHAT: list[dict[str, Any]] = [
    {"choices": [{"delta": {"role": "assistant", "content": None}}]},
    {"choices": [{"delta": {"reasoning_content": "hm"}}]},
    {"choices": [{"delta": {"content": "a"}}]},
    {"choices": [], "timings": TIMINGS},
]


@contextmanager
def server(
    events: list[dict[str, Any]], *, status: int = 200, pause_s: float = 0.0
) -> Iterator[tuple[Server, list[Any]]]:
    """Yield a server that streams these events, and the requests that it gets."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, self.headers.get("Authorization"), body))
            self.send_response(status)
            self.end_headers()
            for event in events:
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
                time.sleep(pause_s)
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_: object) -> None:
            pass

    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield Server("127.0.0.1", found.server_address[1], KEY), asked
    finally:
        found.shutdown()
        found.server_close()
        thread.join()


def test_each_client_asks_with_the_key_for_answers_of_a_fixed_length() -> None:
    with server(COMPLETION) as (found, asked):
        assert found.serves()
        streams = run(found, Load(clients=3, prompt_words=5, n_predict=3))
    assert [len(stream.arrivals_s) for stream in streams] == [3] * 3
    assert {(path, key) for path, key, _body in asked} == {("/completion", f"Bearer {KEY}")}
    assert len({body["prompt"] for _path, _key, body in asked}) == 3
    assert {len(body["prompt"].split()) for _path, _key, body in asked} == {5}
    settled = {"n_predict": 3, "ignore_eos": True, "stream": True, "temperature": 0, "cache_prompt": False}
    assert all(body.items() >= settled.items() for _path, _key, body in asked)
    assert sum(stream.tokens for stream in streams) == 9


def test_prompts_that_are_given_are_chats_that_end_when_they_do() -> None:
    with server(CHAT) as (found, asked):
        streams = run(found, Load(clients=3, n_predict=9, prompts=("What?", "Why?")))
    # Reasoning arrives in the stream like tokens.
    assert [len(stream.arrivals_s) for stream in streams] == [2] * 3
    bodies = [body for path, _key, body in asked if path == "/v1/chat/completions"]
    assert sorted(body["messages"][0]["content"] for body in bodies) == ["What?", "What?", "Why?"]
    assert all(body["max_tokens"] == 9 and "ignore_eos" not in body for body in bodies)


def test_figures_are_of_all_clients_together() -> None:
    streams = [
        Stream(asked_s=10.0, arrivals_s=[11.0, 11.5, 12.0], tokens=3),
        Stream(asked_s=10.5, arrivals_s=[12.5, 14.0], tokens=2),
    ]
    told = figures(streams)
    assert told["tokens_per_second"] == 1.25
    assert told["first_token_ms"] == {"median": 1500.0, "p95": 1950.0}
    assert told["between_tokens_ms"] == {"median": 500.0, "p95": 1400.0}
    assert figures([Stream(asked_s=0.0, arrivals_s=[1.0], tokens=1)])["between_tokens_ms"]["median"] is None


@pytest.mark.parametrize(
    ("events", "status", "sentence"),
    [
        (TOKENS, 200, "2 of 2 requests failed, the first one: it broke off before its end"),
        ([{"error": {"message": "too long"}}], 200, "2 of 2 requests failed, the first one: too long"),
        ([], 401, "2 of 2 requests failed, the first one: status 401"),
        ([["no"]], 200, "2 of 2 requests failed, the first one: the stream holds something that is not an object"),
    ],
)
def test_what_goes_wrong_is_said(events: list[Any], status: int, sentence: str) -> None:
    with server(events, status=status) as (found, _asked), pytest.raises(LoadError) as raised:
        run(found, Load(clients=2))
    assert str(raised.value).startswith(sentence)


def test_a_load_ends_in_time() -> None:
    began = time.monotonic()
    with server(TOKENS * 20, pause_s=0.1) as (found, _asked), pytest.raises(
        LoadError, match="the time limit of the load was"
    ):
        run(found, Load(clients=1, limit_s=0.5))
    assert time.monotonic() - began < 6


def test_a_server_that_is_gone_is_no_traceback() -> None:
    gone = Server("127.0.0.1", 1)
    assert not gone.serves()
    with pytest.raises(LoadError, match="1 of 1 requests failed, the first one: it broke off"):
        warm_up(gone, 1)


def test_no_two_prompts_begin_alike() -> None:
    prompts = [synthetic_prompt(3, number) for number in range(16)]
    assert len({prompt.split()[0] for prompt in prompts}) == 16
    assert prompts == [synthetic_prompt(3, number) for number in range(16)]
