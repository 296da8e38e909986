# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of an API by its answers, with a stand-in for llama-server; test_llama_server.py asks a real one."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._serve.api import Answer, Api

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "key-of-the-stand-in"
WELL: dict[str, tuple[int, Any]] = {
    "GET /health": (200, {"status": "ok"}),
    "GET /v1/models": (200, {"data": [{"id": "m"}]}),
    "GET /props": (200, {}),
    "GET /slots": (200, []),
    "GET /metrics": (200, None),
    "GET /slots?fail_on_no_slot=1": (200, []),
    "POST /v1/completions": (200, {"choices": [{"text": "b"}]}),
}


@contextmanager
def api(answers: dict[str, tuple[int, Any]], *, closed: bool = True) -> Iterator[Api]:
    """Yield an API that gives these answers; it asks for the key unless it is open."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = answers[f"{self.command} {self.path}"]
            if closed and self.path != "/health" and self.headers.get("Authorization") != f"Bearer {KEY}":
                status, body = 401, {"error": {"message": "Invalid API Key"}}
            text = b"" if body is None else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield Api("127.0.0.1", server.server_address[1], KEY, 5)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_well_one_generates_with_the_key_and_refuses_strangers() -> None:
    with api(WELL) as asked:
        assert asked.look() == Answer("serving", ["m"], answered=True, text="b")
        assert asked.look(ask=False) == Answer("serving")


def test_one_without_keys_is_open() -> None:
    with api(WELL, closed=False) as asked:
        assert asked.look().open_paths == ["/props", "/slots", "/metrics"]


def test_no_token_is_asked_for_while_all_slots_are_taken() -> None:
    with api({**WELL, "GET /slots?fail_on_no_slot=1": (503, {}), "POST /v1/completions": (500, {})}) as asked:
        assert asked.look() == Answer("serving", ["m"], answered=None)


def test_one_for_embeddings_is_asked_for_one() -> None:
    answers = {**WELL, "POST /v1/completions": (501, {}), "POST /v1/embeddings": (200, {"data": []})}
    with api(answers) as asked:
        assert asked.look().answered


# The answers, the state, and the problem.
PROBLEMS = {
    "loads": ({"GET /health": (503, {"error": {}})}, "loading", ""),
    "wrong-key": ({"GET /v1/models": (401, {})}, "serving", "it refuses the key with status 401"),
    "no-token": (
        {"POST /v1/completions": (500, {"error": {"message": "Compute error."}})},
        "serving",
        "it generates nothing (status 500: Compute error.)",
    ),
    "no-reason": ({"POST /v1/completions": (500, None)}, "serving", "it generates nothing (status 500: no reason)"),
}


@pytest.mark.parametrize(("answers", "state", "problem"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_what_is_wrong_is_said(answers: dict[str, tuple[int, Any]], state: str, problem: str) -> None:
    with api({**WELL, **answers}) as asked:
        found = asked.look()
    assert (found.state, found.problem) == (state, problem)


def test_one_that_does_not_listen_is_silent() -> None:
    with api(WELL) as asked:
        pass
    found = asked.look()
    assert found.state == "silent"
    assert "refused" in found.problem
