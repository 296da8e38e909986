# SPDX-License-Identifier: GPL-3.0-or-later
"""The name and password in the URL of a source reach the server, and nothing that others can read."""

from __future__ import annotations

import base64
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.harness import run_module

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME, PASSWORD, SIGNATURE = "builder", "p4ss/word-of-the-mirror", "sig=0a1b2c3d4e5f"
TYPED = "p4ss%2Fword-of-the-mirror"
LOGIN = "Basic " + base64.b64encode(f"{NAME}:{PASSWORD}".encode()).decode()
COMMIT = "0" * 40


class Mirror(BaseHTTPRequestHandler):
    """Asks for a login, and has nothing. It notes the logins, and the arguments of all processes of the machine."""

    port: int
    logins: list[str]
    arguments: list[bytes]

    def log_message(self, *_arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        given = self.headers.get("Authorization")
        self.arguments += [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        if given:
            self.logins.append(given)
        if self.path.startswith("/endless"):
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(bytes(1 << 20))
            return
        if self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{self.port}/elsewhere{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(404 if given else 401)
        self.send_header("WWW-Authenticate", 'Basic realm="mirror"')
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def mirror() -> Iterator[type[Mirror]]:
    kind = type("Noted", (Mirror,), {"logins": [], "arguments": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    kind.port = server.server_port
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield kind
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("kind", ["git_url", "url"])
def test_the_login_reaches_the_server_and_nobody_else(tmp_path: Path, mirror: type[Mirror], kind: str) -> None:
    url = f"http://{NAME}:{TYPED}@127.0.0.1:{mirror.port}/llama.cpp?{SIGNATURE}"
    more = {"git_commit": COMMIT} if kind == "git_url" else {"sha256": "0" * 64}
    result = run_module("source_archive", {"path": str(tmp_path / "source.tar"), kind: url, **more})
    assert result["failed"]
    assert f"127.0.0.1:{mirror.port}/llama.cpp" in result["msg"]
    assert "could not be fetched: " in result["msg"]
    assert set(mirror.logins) == {LOGIN}
    said = str(result)
    for secret in (PASSWORD, TYPED, SIGNATURE):
        assert secret not in said
    if kind == "git_url":
        git = [words for words in mirror.arguments if b"git" in words and b"llama.cpp" in words]
        assert git, "git did not run while the mirror looked"
        assert not [words for words in git if PASSWORD.encode() in words or TYPED.encode() in words]


@pytest.mark.parametrize("kind", ["git_url", "url"])
def test_a_redirect_takes_the_login_nowhere_else(tmp_path: Path, mirror: type[Mirror], kind: str) -> None:
    url = f"http://{NAME}:{TYPED}@localhost:{mirror.port}/moved"
    more = {"git_commit": COMMIT} if kind == "git_url" else {"sha256": "0" * 64}
    result = run_module("source_archive", {"path": str(tmp_path / "source.tar"), kind: url, **more})
    assert result["failed"]
    assert mirror.logins == []


def test_a_server_that_never_stops_sending_does_not_fill_the_disk(tmp_path: Path, mirror: type[Mirror]) -> None:
    url = f"http://127.0.0.1:{mirror.port}/endless"
    result = run_module("source_archive", {"path": str(tmp_path / "source.tar"), "url": url, "sha256": "0" * 64})
    assert f"{url} sends more than 512 MiB, so it is no archive of a source." in result["msg"]
    assert [path.name for path in tmp_path.iterdir()] == [".source.tar.lock"]
