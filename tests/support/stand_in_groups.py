# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-ins for groups of a master and its workers: they speak as much of llama-server's API as a gateway needs.

They compute nothing. Each has slots and speeds that the test gives it, and remembers the conversations that it has
heard. It answers 503 while all of its slots are taken, so the test notices a gateway that sends too many requests.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

LIMIT_S = 10


@dataclass
class StandIn:
    """A stand-in for one group. Times are in seconds."""

    name: str
    model: str = "noise"
    slots: int = 2
    key: str = "key-of-the-group-alone"
    prompt_s: float = 0.0
    """The delay before the first token, unless the stand-in already had the conversation."""
    token_s: float = 0.0
    readiness: int = 200
    """The status that its service answers: 200, 404 (no new requests) or 503."""
    queues: bool = False
    """Whether requests beyond its slots wait, as in llama-server, or are refused."""
    port: int = 0
    busy: int = 0
    most_busy: int = 0
    prompts: int = 0
    """How many prompts it has processed from their beginning."""
    heard: set[str] = field(default_factory=set)
    paths: Counter[str] = field(default_factory=Counter)
    open: set[asyncio.StreamWriter] = field(default_factory=set)
    seen: list[dict[str, Any]] = field(default_factory=list)
    """The headers of each request."""
    server: asyncio.Server | None = None
    ended: asyncio.Condition = field(default_factory=asyncio.Condition)
    """Set when a request ends."""

    async def start(self) -> None:
        """Listen, at the earlier port if there was one."""
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 26)
        self.port = self.server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """End at once: stop listening, and reset all connections."""
        assert self.server is not None
        self.server.close()
        for writer in list(self.open):
            writer.transport.abort()
        self.busy = 0
        self.heard.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        path = first.split()[1]
        headers = {name.lower(): value.strip() for name, __, value in (line.partition(":") for line in lines) if name}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if path == "/ready":
            await self._json(writer, self.readiness, {})
            return False
        self.paths[path] += 1
        self.seen.append(headers)
        if headers.get("authorization") != f"Bearer {self.key}":
            await self._json(writer, 401, {"error": {"message": "Invalid API Key", "code": 401}})
            return True
        if path == "/":  # the chat page, which takes no slot
            await self._json(writer, 200, {})
            return True
        try:
            asked: dict[str, Any] = json.loads(body or b"{}")
        except ValueError:
            await self._json(writer, 400, {"error": {"message": "no JSON", "code": 400}})
            return True
        text = json.dumps(asked.get("messages") or asked.get("prompt"))
        if "kill" in text:
            await self.kill()
            return False
        while self.queues and self.busy >= self.slots:
            async with self.ended:
                await self.ended.wait()
        if self.busy >= self.slots:
            await self._json(writer, 503, {"error": {"message": "more requests than slots", "code": 503}})
            return True
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        try:
            await self._answer(writer, asked)
        finally:
            self.busy = max(0, self.busy - 1)
            async with self.ended:
                self.ended.notify()
        return True

    async def _answer(self, writer: asyncio.StreamWriter, asked: dict[str, Any]) -> None:
        began = time.monotonic()
        messages = asked.get("messages") or [{"content": asked.get("prompt", "")}]
        begun = {json.dumps(messages[:count]) for count in range(1, len(messages) + 1)}
        if not begun & self.heard:
            self.prompts += 1
            await asyncio.sleep(self.prompt_s)
        self.heard |= begun
        tokens = int(asked.get("max_tokens", 1))
        if not asked.get("stream"):
            await asyncio.sleep(tokens * self.token_s)
            answer = {"choices": [{"message": {"content": self.name}}], "model": self.model}
            await self._json(writer, 200, {**answer, "served_s": time.monotonic() - began})
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(tokens):
            await asyncio.sleep(self.token_s if number else 0)
            self._chunk(writer, json.dumps({"choices": [{"delta": {"content": f"{self.name} "}}]}))
            await writer.drain()
        self._chunk(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    def _chunk(self, writer: asyncio.StreamWriter, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def _json(self, writer: asyncio.StreamWriter, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        head = f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        await writer.drain()


class StandIns:
    """A thread that runs stand-ins, for tests that are not coroutines."""

    def __init__(self, groups: list[StandIn]) -> None:
        self.groups = groups
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)

    def __enter__(self) -> Self:
        self.thread.start()
        for group in self.groups:
            self.run(group.start())
        return self

    def run(self, coroutine: Any) -> None:
        """Run a coroutine in the thread, and wait for its end."""
        asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(LIMIT_S)

    def __exit__(self, *_error: object) -> None:
        for group in self.groups:
            self.run(group.kill())
        self.run(self._end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _end(self) -> None:
        """End all tasks that still serve a connection."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
