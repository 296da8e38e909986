# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: sends a llama-server the requests of several clients at a time, and measures how fast it answers them.

The client uses only the standard library, because a master has nothing else. (guidellm brings 97 packages, with PyTorch
and CUDA; k6 has no streams without a custom build; upstream's speed-bench fetches a data set and times no token.)
"""

from __future__ import annotations

import http.client
import json
import random
import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Iterator, Sequence

# Words that most vocabularies have as one token.
WORDS = (
    "the of and to in is you that it he was for on are as with his they at be this have from or one had by word but "
    "not what all were we when your can said there use an each which she do how their if will up other about out many"
).split()
# The seconds beyond the time limit of a load after which a client gives up a stuck connection.
GRACE_S = 5.0


class LoadError(Exception):
    """A load brought no figures; the message is one sentence."""


@dataclass(frozen=True)
class Load:
    """One request of each of `clients` at the same time; times in seconds.

    Without `prompts`, each prompt has `prompt_words` random words (see synthetic_prompt), and each answer has exactly
    `n_predict` tokens. With them, each request is a chat with the next prompt, and its answer may be shorter.
    """

    clients: int
    prompt_words: int = 1
    n_predict: int = 64
    prompts: tuple[str, ...] = ()
    limit_s: float = 600.0
    # The number of the first request. Other numbers give other prompts.
    first: int = 0


@dataclass
class Stream:
    """One request and its answer; times in seconds of one clock."""

    asked_s: float = 0.0
    # The arrival time of each piece of the answer: a token or, with speculation, the last of several tokens.
    arrivals_s: list[float] = field(default_factory=list)
    tokens: int = 0
    problem: str = ""


def synthetic_prompt(words: int, number: int) -> str:
    """Return random words; the first word changes with `number`, so that the server takes no prompt from a cache."""
    chosen = random.Random(number)  # noqa: S311 - nothing secret
    first = f"{WORDS[number % len(WORDS)]}"
    return " ".join([first, *(chosen.choice(WORDS) for _word in range(words - 1))])


def _events(answer: http.client.HTTPResponse, deadline: float) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream (text/event-stream); raises LoadError, OSError and HTTPException."""
    while True:
        line = answer.readline()
        if not line:
            return
        if time.monotonic() > deadline:
            raise LoadError("the time limit of the load was reached")
        if line.startswith(b"data:") and b"[DONE]" not in line:
            event = json.loads(line[5:])
            if not isinstance(event, dict):
                raise LoadError("the stream holds something that is not an object")
            if "error" in event:
                raise LoadError(str((event["error"] or {}).get("message")))
            yield event


def _has_text(event: dict[str, Any]) -> bool:
    if "choices" not in event:
        return bool(event.get("content"))
    deltas = [choice.get("delta") or {} for choice in event["choices"]]
    return any(delta.get("content") or delta.get("reasoning_content") for delta in deltas)


@dataclass(frozen=True)
class Server:
    """A llama-server and its key."""

    address: str
    port: int
    key: str = ""

    def serves(self) -> bool:
        """Return whether the model is loaded."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=GRACE_S)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def ask(self, load: Load, number: int, deadline: float) -> Stream:
        """Return the request with this number, with its answer or its problem."""
        if load.prompts:
            path = "/v1/chat/completions"
            prompt = load.prompts[number % len(load.prompts)]
            body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}], "max_tokens": load.n_predict}
        else:
            path = "/completion"
            prompt = synthetic_prompt(load.prompt_words, number)
            body = {"prompt": prompt, "n_predict": load.n_predict, "ignore_eos": True}
        body = {**body, "stream": True, "temperature": 0, "cache_prompt": False}
        stream = Stream(asked_s=time.monotonic())
        try:
            self._stream(path, body, stream, deadline)
        except LoadError as error:
            stream.problem = str(error)
        except (OSError, http.client.HTTPException, ValueError) as error:
            stream.problem = f"it broke off ({error or type(error).__name__})"
        return stream

    def _stream(self, path: str, body: dict[str, Any], stream: Stream, deadline: float) -> None:
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        limit_s = max(0.1, deadline - time.monotonic() + GRACE_S)
        connection = http.client.HTTPConnection(self.address, self.port, timeout=limit_s)
        last: dict[str, Any] = {}
        try:
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                said = answer.read(300).decode(errors="replace")
                raise LoadError(f"status {answer.status}: {said}")
            for event in _events(answer, deadline):
                if _has_text(event):
                    stream.arrivals_s.append(time.monotonic())
                last = event.get("timings") or last
        finally:
            connection.close()
        if not last or not stream.arrivals_s:
            raise LoadError("it broke off before its end")
        stream.tokens = int(last["predicted_n"])


def run(server: Server, load: Load) -> list[Stream]:
    """Return all requests of a load, whose clients all start at the same time; raises LoadError."""
    deadline = time.monotonic() + load.limit_s
    begin = threading.Barrier(load.clients)
    done: list[Stream] = []

    def client(number: int) -> None:
        begin.wait()
        done.append(server.ask(load, load.first + number, deadline))

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(load.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()) + 2 * GRACE_S)
    if any(thread.is_alive() for thread in threads):
        raise LoadError(f"A load of {load.clients} clients did not end within {load.limit_s:g} s.")
    problems = [stream.problem for stream in done if stream.problem]
    if problems:
        raise LoadError(f"{len(problems)} of {load.clients} requests failed, the first one: {problems[0]}")
    return done


def warm_up(server: Server, limit_s: float) -> None:
    """Send one request to a server that has just loaded its model; raises LoadError."""
    run(server, Load(1, n_predict=2, limit_s=limit_s))


def _spread_ms(seconds: Sequence[float]) -> dict[str, float | None]:
    if not seconds:
        return {"median": None, "p95": None}
    high = statistics.quantiles(seconds, n=20, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]
    return {"median": round(1000 * statistics.median(seconds), 2), "p95": round(1000 * high, 2)}


def figures(streams: Sequence[Stream]) -> dict[str, Any]:
    """Return the figures of these requests: times in milliseconds, and tokens of all clients per second."""
    wall_s = max(stream.arrivals_s[-1] for stream in streams) - min(stream.asked_s for stream in streams)
    return {
        "tokens_per_second": round(sum(stream.tokens for stream in streams) / wall_s, 3),
        "first_token_ms": _spread_ms([stream.arrivals_s[0] - stream.asked_s for stream in streams]),
        "between_tokens_ms": _spread_ms(
            [later - earlier for stream in streams for earlier, later in zip(stream.arrivals_s, stream.arrivals_s[1:])]
        ),
    }
