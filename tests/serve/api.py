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


def outcome(bearer: str) -> str:
    """Ask by a connection of its own; return the status, or what became of the request in its place."""
    connection = http.client.HTTPConnection(ADDRESS["master"], API_PORT, timeout=60)
    try:
        connection.connect()
    except OSError as error:
        # Nothing was sent, so that to ask again is safe.
        return f"not connected: {type(error).__name__}"
    asked = {"prompt": "a lake", "max_tokens": 4, "temperature": 0}
    try:
        connection.request("POST", "/v1/completions", json.dumps(asked), {"Authorization": f"Bearer {bearer}"})
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException) as error:
        return f"cut off: {type(error).__name__}"
    finally:
        connection.close()
    return str(answer.status)


@contextmanager
def client_that_keeps_asking(bearer: str) -> Iterator[Counter[str]]:
    """What became of the requests of a client that asks again and again, each counted."""
    seen: Counter[str] = Counter()
    over = threading.Event()

    def talk() -> None:
        while not over.is_set():
            seen[outcome(bearer)] += 1
            over.wait(0.2)

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
