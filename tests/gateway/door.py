# SPDX-License-Identifier: GPL-3.0-or-later
"""The gateway of the lab as its clients see it, from this machine's address on the bridge of the hosts."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from support.api_client import Client
from support.lab.hosts import NUMBER, ROOT, over, ssh

if TYPE_CHECKING:
    from collections.abc import Iterator

GATEWAY = ROOT / "inventories/lab/gateway.yml"
ADDRESS, PORT, API_PORT = f"10.87.{NUMBER}.14", 8000, 8080
UNIT, API_UNIT = "llama-gateway.service", f"llama-server@{API_PORT}.service"
KEY = "key-of-the-first-client"
BROKE_OFF = "broke off"


playbook = over(GATEWAY)


def client(key: str | None = KEY) -> Client:
    return Client(ADDRESS, PORT, key)


def states() -> dict[str, str]:
    """Return HAProxy's state of each group."""
    ask = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/llama-gateway/admin.sock'); "
    ask += "s.sendall(b'show stat\\n'); print(b''.join(iter(lambda: s.recv(65536), b'')).decode())"
    done = ssh("worker4", "python3", "-c", ask, check=False)
    rows = [line.split(",") for line in done.stdout.splitlines() if line.startswith("model1,")]
    return {row[1]: row[17] for row in rows if row[1] in ("a", "b")}


def all_in() -> bool:
    return states() == {"a": "UP", "b": "UP"}


@dataclass
class Seen:
    """The outcomes of requests. A request whose answer has not begun must not be lost."""

    outcomes: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0

    @property
    def lost(self) -> Counter[str]:
        """The outcomes other than a whole answer, or one that broke off."""
        return Counter({name: count for name, count in self.outcomes.items() if name not in ("200", BROKE_OFF)})

    def __str__(self) -> str:
        broke_off = self.outcomes[BROKE_OFF]
        return (
            f"{self.outcomes.total()} requests: {self.lost.total()} lost before they began, {broke_off} broke off, "
            f"the longest took {self.longest_s:.1f} s"
        )


def outcome(key: str, tokens: int, *, stream: bool) -> str:
    """Ask over a new connection; return the status, or else how the request ended."""
    connection = http.client.HTTPConnection(ADDRESS, PORT, timeout=120)
    asked = {"model": "noise", "prompt": "a lake", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    begun = False
    try:
        connection.request(
            "POST", "/v1/completions", json.dumps({**asked, "stream": stream}), {"Authorization": f"Bearer {key}"}
        )
        answer = connection.getresponse()
        begun = answer.status == 200
        whole = answer.read().rstrip().endswith(b"data: [DONE]" if stream and begun else b"}")
    except (OSError, http.client.HTTPException) as error:
        return BROKE_OFF if begun else f"{type(error).__name__} at {time.strftime('%H:%M:%S')}"
    finally:
        connection.close()
    return str(answer.status) if whole else BROKE_OFF


@contextmanager
def clients_that_keep_asking(number: int = 4, key: str = KEY, tokens: int = 8, streams: int = 0) -> Iterator[Seen]:
    """Let clients ask again and again; yield the outcomes of their requests.

    `streams` of the clients want streams, which are four times as long.
    """
    seen, over, lock = Seen(), threading.Event(), threading.Lock()

    def talk(stream: bool) -> None:
        while not over.is_set():
            began = time.monotonic()
            ended = outcome(key, 4 * tokens if stream else tokens, stream=stream)
            with lock:
                seen.outcomes[ended] += 1
                seen.longest_s = max(seen.longest_s, time.monotonic() - began)

    threads = [threading.Thread(target=talk, args=(index < streams,)) for index in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        over.set()
        for thread in threads:
            thread.join()
