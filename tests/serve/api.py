# SPDX-License-Identifier: GPL-3.0-or-later
"""The API of the lab's master as its clients see it, from this machine's address on the bridge of the hosts."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from support.api_client import Client
from support.lab.hosts import ADDRESS, ROOT, eventually, play, ssh

if TYPE_CHECKING:
    import http.client
    import subprocess
    from contextlib import AbstractContextManager

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


def client(bearer: str | None) -> Client:
    """Return who has that key, on this machine."""
    return Client(ADDRESS["master"], API_PORT, bearer)


def request(path: str, body: dict[str, Any] | None = None, *, bearer: str | None) -> tuple[int, Any]:
    """Return status and JSON of an answer."""
    return client(bearer).request(path, body, limit_s=60)


def text_of(bearer: str, tokens: int = 8) -> str:
    """Return how the API continues a prompt."""
    return client(bearer).text(tokens)


def answers(bearer: str) -> bool:
    """Whether a token comes."""
    return client(bearer).answers()


def stream(bearer: str, tokens: int = 800) -> AbstractContextManager[http.client.HTTPResponse]:
    """Return a stream whose first token has come."""
    return client(bearer).stream(tokens)


def property_of(name: str) -> str:
    return ssh("master", "systemctl", "show", f"--property={name}", "--value", API_UNIT).stdout.strip()


def serves(bearer: str, limit_s: float) -> float:
    """Wait until a token comes; return how many seconds that took."""
    began = time.monotonic()
    eventually(lambda: answers(bearer), limit_s, "the API answers")
    return time.monotonic() - began
