# SPDX-License-Identifier: GPL-3.0-or-later
"""The API of the lab's master as its clients see it, from this machine's address on the bridge of the hosts."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from support.api_client import Client
from support.lab.hosts import ADDRESS, ROOT, eventually, over, ssh

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

SERVING = ROOT / "inventories/lab/serving.yml"
API_PORT = 8080
API_UNIT = f"llama-server@{API_PORT}.service"
KEYS = f"/etc/llama_server/{API_PORT}.keys"
ALIAS = "noise"


playbook = over(SERVING)


def key() -> str:
    return ssh("master", "head", "-n1", KEYS).stdout.strip()


def client(bearer: str | None) -> Client:
    """Return a client on this machine that has that key."""
    return Client(ADDRESS["master"], API_PORT, bearer)


def request(path: str, body: dict[str, Any] | None = None, *, bearer: str | None) -> tuple[int, Any]:
    """Return status and JSON of an answer."""
    return client(bearer).request(path, body, limit_s=60)


def text_of(bearer: str, tokens: int = 8) -> str:
    """Return how the API continues a prompt."""
    return client(bearer).text(tokens)


def answers(bearer: str) -> bool:
    """Return whether a token comes."""
    return client(bearer).answers()


def stream(bearer: str, tokens: int = 800) -> AbstractContextManager[http.client.HTTPResponse]:
    """Return a stream whose first token has come."""
    return client(bearer).stream(tokens)


def property_of(name: str) -> str:
    return ssh("master", "systemctl", "show", f"--property={name}", "--value", API_UNIT).stdout.strip()


def journal() -> str:
    """Return the last lines of the service's journal."""
    return ssh("master", "journalctl", "--no-pager", f"--unit={API_UNIT}", "--lines=100").stdout


def serves(bearer: str, limit_s: float) -> float:
    """Wait until a token comes; return how many seconds that took."""
    began = time.monotonic()
    eventually(lambda: answers(bearer), limit_s, "the API answers")
    return time.monotonic() - began


def serves_over_all(bearer: str, limit_s: float) -> None:
    """Wait until a token comes from the API over all workers: an earlier test may have left it without one."""
    serves(bearer, limit_s)
    if ", without " in property_of("StatusText"):
        ssh("master", "systemctl", "restart", API_UNIT)
        serves(bearer, limit_s)


def outcome(bearer: str) -> str:
    """Ask over a new connection; return the status, or else how the request ended."""
    connection = http.client.HTTPConnection(ADDRESS["master"], API_PORT, timeout=60)
    try:
        connection.connect()
    except OSError as error:
        # Nothing was sent, so it is safe to ask again.
        return f"not connected: {type(error).__name__}"
    asked = {"prompt": "a lake", "max_tokens": 4, "temperature": 0}
    try:
        connection.request("POST", "/v1/completions", json.dumps(asked), {"Authorization": f"Bearer {bearer}"})
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException) as error:
        # The time leads to the line of the journal.
        return f"cut off: {type(error).__name__} at {time.strftime('%H:%M:%S')}"
    finally:
        connection.close()
    return str(answer.status)


@contextmanager
def client_that_keeps_asking(bearer: str) -> Iterator[Counter[str]]:
    """Let a client ask again and again; yield the number of its requests by their outcome."""
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
