# SPDX-License-Identifier: GPL-3.0-or-later
"""A client of an API at any address: one key, and the requests that tests make most often."""

from __future__ import annotations

import http.client
import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from support.harness import HANG_S

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMPT = "the river"


@dataclass(frozen=True)
class Client:
    """A client of the API at this address, with this key or none."""

    address: str
    port: int
    key: str | None

    @property
    def url(self) -> str:
        """The API's base URL, by which other clients know it."""
        return f"http://{self.address}:{self.port}/v1"

    def _ask(self, connection: http.client.HTTPConnection, path: str, body: dict[str, Any] | None) -> None:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key is not None else {}
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)

    def request(self, path: str, body: dict[str, Any] | None = None, *, limit_s: float = HANG_S) -> tuple[int, Any]:
        """Return the status of an answer, and its JSON or its text."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=limit_s)
        try:
            self._ask(connection, path, body)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text.decode()

    @contextmanager
    def stream(self, tokens: int, prompt: str = PROMPT) -> Iterator[http.client.HTTPResponse]:
        """Yield a stream of so many tokens, after its first one has come."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=HANG_S)
        wanted = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0}
        self._ask(connection, "/v1/completions", wanted)
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.readline().startswith(b"data:")
        try:
            yield answer
        finally:
            connection.close()

    def text(self, tokens: int = 8) -> str:
        """Return the API's continuation of a prompt."""
        status, body = self.request("/v1/completions", {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0})
        assert status == 200, body
        return str(body["choices"][0]["text"])

    def answers(self) -> bool:
        """Return whether the API generates a token."""
        try:
            return bool(self.text(1))
        except (OSError, http.client.HTTPException, AssertionError):
            return False
