# SPDX-License-Identifier: GPL-3.0-or-later
"""The API of the lab's master as its clients see it, from this machine's address on the bridge of the hosts."""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from support.lab.hosts import ADDRESS, ROOT, eventually, play, ssh

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVING = ROOT / "inventories/lab/serving.yml"
API_PORT = 8080
API_UNIT = f"llama-server@{API_PORT}.service"
KEYS = f"/etc/llama_server/{API_PORT}.keys"
ALIAS = "noise"


def playbook(
    name: str, *options: str, check: bool = True, timeout: float = 900, **variables: Any
) -> subprocess.CompletedProcess[str]:
    """Run a playbook over the lab with its API."""
    given = ["-e", json.dumps(variables)] if variables else []
    return play(name, "-i", str(SERVING), *given, *options, check=check, timeout=timeout)


def words(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a play has printed, in one line."""
    return " ".join((done.stdout + done.stderr).split())


def key() -> str:
    return ssh("master", "head", "-n1", KEYS).stdout.strip()


def request(
    path: str, body: dict[str, Any] | None = None, *, bearer: str | None, limit_s: float = 60
) -> tuple[int, Any]:
    """Return status and JSON of an answer."""
    connection = http.client.HTTPConnection(ADDRESS["master"], API_PORT, timeout=limit_s)
    try:
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text.decode()


def text_of(bearer: str, tokens: int = 8) -> str:
    """Return how the API continues a prompt."""
    asked = {"prompt": "the river", "max_tokens": tokens, "temperature": 0}
    status, body = request("/v1/completions", asked, bearer=bearer)
    assert status == 200, body
    return str(body["choices"][0]["text"])


def answers(bearer: str) -> bool:
    """Whether a token comes."""
    try:
        return bool(text_of(bearer, 1))
    except (OSError, http.client.HTTPException, AssertionError):
        return False


@contextmanager
def stream(bearer: str, tokens: int = 800) -> Iterator[http.client.HTTPResponse]:
    """A stream whose first token has come."""
    connection = http.client.HTTPConnection(ADDRESS["master"], API_PORT, timeout=120)
    asked = {"prompt": "the river", "max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(asked), {"Authorization": f"Bearer {bearer}"})
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.readline().startswith(b"data:")
    try:
        yield answer
    finally:
        connection.close()


def property_of(name: str) -> str:
    return ssh("master", "systemctl", "show", f"--property={name}", "--value", API_UNIT).stdout.strip()


def serves(bearer: str, limit_s: float) -> float:
    """Wait until a token comes; return how many seconds that took."""
    began = time.monotonic()
    eventually(lambda: answers(bearer), limit_s, "the API answers")
    return time.monotonic() - began


class Talker:
    """A client that asks again and again, each time anew, and keeps what became of it."""

    def __init__(self, bearer: str) -> None:
        self.bearer = bearer
        self.seen: Counter[str] = Counter()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._talk)

    def __enter__(self) -> Talker:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _talk(self) -> None:
        while not self._over.is_set():
            self.seen[self._ask()] += 1
            self._over.wait(0.2)

    def _ask(self) -> str:
        connection = http.client.HTTPConnection(ADDRESS["master"], API_PORT, timeout=60)
        try:
            connection.connect()
        except OSError as error:
            # Before the request was sent: to ask again is safe.
            return f"not connected: {type(error).__name__}"
        try:
            asked = {"prompt": "a lake", "max_tokens": 4, "temperature": 0}
            connection.request("POST", "/v1/completions", json.dumps(asked), {"Authorization": f"Bearer {self.bearer}"})
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            return f"cut off: {type(error).__name__}"
        finally:
            connection.close()
        return str(answer.status)
