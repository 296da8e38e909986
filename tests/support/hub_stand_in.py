# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for the Hugging Face hub: two servers that answer as the hub and its storage do, on loopback by default.

The answers follow the hub's documented protocol, as its own client uses it. A file's address redirects to storage at
another host, and carries `X-Linked-Etag` (the SHA-256 of a large file), `X-Linked-Size` and `X-Repo-Commit`. Reasons
for a refusal are in `X-Error-Code`. The hub itself cannot be reached from where these tests run.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SIGNATURE = "X-Amz-Signature=0a1b2c3d"
PIECE = 64 << 10


@dataclass
class Seen:
    """One request."""

    server: str
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Hub:
    """The files and the behaviour of the servers, and the requests that they got."""

    files: dict[str, bytes]
    repo: str = "someone/model-GGUF"
    small: set[str] = field(default_factory=set)  # kept in git itself, without a redirect
    token: str | None = None
    gated: bool = False
    ranges: bool = True
    statuses: list[int] = field(default_factory=list)  # of the next answers of the storage
    cut_after: list[int | None] = field(default_factory=list)  # bytes, in the next answers of the storage
    stall_s: float = 0
    bytes_per_s: float = 0  # of each answer of the storage; 0: as fast as can be
    chunked: bool = False
    sent_bytes: int = 0  # by the storage, as far as its client has taken them; in whole pieces
    seen: list[Seen] = field(default_factory=list)
    endpoint: str = ""
    storage: str = ""

    def url(self, name: str) -> str:
        return f"{self.endpoint}/{self.repo}/resolve/main/{name}"

    def direct(self, name: str) -> str:
        return f"{self.storage}/{name}?{SIGNATURE}"

    def downloads(self) -> list[Seen]:
        # A gateway of another test may still ask this port whether it is ready.
        return [it for it in self.seen if it.server == "store" and it.method == "GET" and it.path != "/ready"]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    server_name = ""

    def log_message(self, *_arguments: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        self.hub.seen.append(Seen(self.server_name, self.command, self.path, dict(self.headers.items())))
        getattr(self, self.server_name)()

    def reply(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def front(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        given = self.headers.get("Authorization")
        if hub.token and given != f"Bearer {hub.token}":
            self.reply(401, {"X-Error-Code": "GatedRepo" if hub.gated else "RepoNotFound"})
        elif hub.gated and not hub.token:
            self.reply(403, {"X-Error-Code": "GatedRepo"})
        elif path.startswith("/renamed/"):
            self.reply(307, {"Location": path.replace("/renamed/model-GGUF", f"/{hub.repo}")})
        elif path.startswith(f"/api/models/{hub.repo}/revision/"):
            listing = {"sha": COMMIT, "siblings": [{"rfilename": name} for name in hub.files]}
            self.reply(200, {"Content-Type": "application/json"}, json.dumps(listing).encode())
        elif path.startswith(f"/{hub.repo}/resolve/"):
            revision, _slash, name = path[len(f"/{hub.repo}/resolve/") :].partition("/")
            self.resolve(revision, name)
        else:
            self.reply(404, {"X-Error-Code": "RepoNotFound"})

    def resolve(self, revision: str, name: str) -> None:
        hub = self.hub
        if revision not in ("main", COMMIT):
            self.reply(404, {"X-Error-Code": "RevisionNotFound"})
        elif name not in hub.files:
            self.reply(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        elif name in hub.small:
            content = hub.files[name]
            self.reply(200, {"ETag": f'"{git_blob(content)}"', "X-Repo-Commit": COMMIT}, content)
        else:
            content = hub.files[name]
            headers = {
                "Location": hub.direct(name),
                "X-Linked-Etag": f'"{sha256(content)}"',
                "X-Linked-Size": str(len(content)),
                "X-Repo-Commit": COMMIT,
            }
            self.reply(302, headers)

    def store(self) -> None:
        hub, name = self.hub, unquote(urlsplit(self.path).path)[1:]
        if hub.statuses and self.command == "GET":
            status = hub.statuses.pop(0)
            if status != 200:
                self.reply(status)
                return
        content = hub.files.get(name)
        if content is None:
            self.reply(404)
            return
        etag = f'"{sha256(content)[:16]}"'
        headers = {"ETag": etag, "Accept-Ranges": "bytes" if hub.ranges else "none"}
        wanted = self.headers.get("Range")
        fresh = self.headers.get("If-Range", etag) == etag
        start, end, status = 0, len(content), 200
        if wanted and fresh and hub.ranges:
            first, _dash, last = wanted[len("bytes=") :].partition("-")
            start, status = int(first), 206
            end = min(end, int(last) + 1) if last else end
            if start >= len(content):
                self.reply(416, {"Content-Range": f"bytes */{len(content)}"})
                return
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        self.send_body(status, headers, content[start:end])

    def send_body(self, status: int, headers: dict[str, str], body: bytes) -> None:
        hub = self.hub
        cut = hub.cut_after.pop(0) if hub.cut_after and self.command == "GET" else None
        sent = body if cut is None else body[:cut]
        self.send_response(status)
        headers |= {"Transfer-Encoding": "chunked"} if hub.chunked else {"Content-Length": str(len(body))}
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if hub.chunked:
            sent = b"%x\r\n%s" % (len(body), sent) + (b"\r\n0\r\n\r\n" if cut is None else b"")
        try:
            step = min(PIECE, int(hub.bytes_per_s / 10)) or PIECE
            for start in range(0, len(sent), step):
                self.wfile.write(sent[start : start + step])
                hub.sent_bytes += step
                time.sleep(step / hub.bytes_per_s if hub.bytes_per_s else 0)
        except ConnectionError:  # the client wants no more
            self.close_connection = True
        if hub.stall_s and cut is not None:
            time.sleep(hub.stall_s)
        if cut is not None:
            self.close_connection = True


@contextmanager
def running_hub(
    files: dict[str, bytes], names: tuple[str, str] = ("127.0.0.1", "localhost"), **behaviour: Any
) -> Iterator[Hub]:
    """Start both servers at the first of two names of this host; yield the hub, and end them."""
    hub = Hub(files, **behaviour)
    servers = []
    for name in ("front", "store"):
        handler = type(name, (_Handler,), {"hub": hub, "server_name": name})
        server = ThreadingHTTPServer((names[0], 0), handler)
        server.daemon_threads = True
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    hub.endpoint = f"http://{names[0]}:{servers[0].server_port}"
    hub.storage = f"http://{names[1]}:{servers[1].server_port}"
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
