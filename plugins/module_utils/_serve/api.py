# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: checks the state of a llama-server's OpenAI-compatible API, and which paths it shows without a key."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass, field
from typing import Any

# The paths that show prompts, settings or figures of others and so need a key (tools/server/server.cpp). The names of
# models do not count: releases before 0.3.36 show them to everybody.
CLOSED_PATHS = ("/props", "/slots", "/metrics")
# The time for a token over slow workers, behind other running requests.
TOKEN_LIMIT_S = 60.0


@dataclass
class Answer:
    """The state of an API and its answer.

    `state` is `serving`, `loading` or `silent`; `models` are the names that the API serves. `answered` says whether it
    generated a token with the key (None if no slot was free, or nothing asked for one), and `text` is the answer.
    `open_paths` should need a key but do not.
    """

    state: str
    models: list[str] = field(default_factory=list)
    answered: bool | None = None
    text: str | None = None
    open_paths: list[str] = field(default_factory=list)
    problem: str = ""


class Api:
    """An API at an address, with a key; a check lets it continue `prompt` by `n_predict` tokens."""

    def __init__(
        self, address: str, port: int, key: str, timeout_s: float, prompt: str = "a", n_predict: int = 1
    ) -> None:
        self.address, self.port, self.key, self.timeout_s = address, port, key, timeout_s
        self.prompt, self.n_predict = prompt, n_predict

    def request(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, key: str | None = None, limit_s: float = 0
    ) -> tuple[int, Any]:
        """Return the status and the JSON (or None) of an answer; raises OSError or HTTPException without an answer."""
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        connection = http.client.HTTPConnection(self.address, self.port, timeout=limit_s or self.timeout_s)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, None

    def look(self, *, ask: bool = True) -> Answer:
        """Return the state of the API; with `ask` also whether it generates a token, and which paths need no key."""
        try:
            status, _body = self.request("GET", "/health")
        except (OSError, http.client.HTTPException) as error:
            return Answer("silent", problem=str(error) or type(error).__name__)
        if status != http.client.OK:
            return Answer("loading")
        answer = Answer("serving")
        if ask:
            try:
                self._ask(answer)
            except (OSError, http.client.HTTPException) as error:
                answer.problem = f"it broke off an answer ({str(error) or type(error).__name__})"
        return answer

    def _ask(self, answer: Answer) -> None:
        for path in CLOSED_PATHS:
            if self.request("GET", path)[0] != http.client.UNAUTHORIZED:
                answer.open_paths.append(path)
        status, body = self.request("GET", "/v1/models", key=self.key)
        if status != http.client.OK:
            answer.problem = f"it refuses the key with status {status}"
            return
        answer.models = [str(model.get("id")) for model in (body or {}).get("data", [])]
        if self.request("GET", "/slots?fail_on_no_slot=1", key=self.key)[0] != http.client.OK:
            return
        status, body = self._token()
        answer.answered = status == http.client.OK
        if answer.answered:
            answer.text = next((str(choice.get("text")) for choice in (body or {}).get("choices", [])), None)
        else:
            said = ((body or {}).get("error") or {}).get("message") or "no reason"
            answer.problem = f"it generates nothing (status {status}: {said})"

    def _token(self) -> tuple[int, Any]:
        # Take nothing from a cache, so that the API computes the same prompt in the same way each time.
        wanted = {"prompt": self.prompt, "max_tokens": self.n_predict, "temperature": 0, "cache_prompt": False}
        limit_s = TOKEN_LIMIT_S + 2 * self.n_predict
        status, body = self.request("POST", "/v1/completions", wanted, key=self.key, limit_s=limit_s)
        if status == http.client.NOT_IMPLEMENTED:  # the server only serves embeddings
            wanted = {"input": self.prompt}
            status, body = self.request("POST", "/v1/embeddings", wanted, key=self.key, limit_s=limit_s)
        return status, body
