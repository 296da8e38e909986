# SPDX-License-Identifier: GPL-3.0-or-later
"""The name and password in the URL of a source reach the server, and nothing that others can read."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.harness import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME, PASSWORD, SIGNATURE = "builder", "p4ss/word-of-the-mirror", "sig=0a1b2c3d4e5f"
TYPED = "p4ss%2Fword-of-the-mirror"
LOGIN = "Basic " + base64.b64encode(f"{NAME}:{PASSWORD}".encode()).decode()
PLAY = [{"hosts": "all", "gather_facts": False, "roles": ["llama_cpp.cluster.llama_cpp"]}]


class Mirror(BaseHTTPRequestHandler):
    """Asks for a login, and has nothing. It notes the logins, and the arguments of all processes of the machine."""

    port: int
    logins: list[str]
    arguments: list[bytes]

    def log_message(self, *_arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        given = self.headers.get("Authorization")
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                self.arguments.append(path.read_bytes())
        if given:
            self.logins.append(given)
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


def fetch(folder: Path, url: str) -> str:
    """Let the role fetch an archive, which fails; return all that is printed."""
    given = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "llama_cpp_prefix": str(folder / "prefix"),
        "llama_cpp_manage_packages": False,
        "llama_cpp_targets": ["rpc-server"],
        "llama_cpp_archive": url,
        "llama_cpp_sha256": "0" * 64,
        "llama_cpp_commit": "0" * 40,
    }
    (folder / "given.json").write_text(json.dumps(given))
    (folder / "play.yml").write_text(json.dumps(PLAY))
    program = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [program, "-i", "node,", "-e", f"@{folder}/given.json", "-vvv", f"{folder}/play.yml"],
        env={
            **os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1",
            "LLAMA_CPP_CLUSTER_CACHE": str(folder / "cache"),
        },
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    left = [path.name for path in folder.glob("cache/sources/*") if not path.name.endswith(".lock")]
    assert left == []
    return " ".join(done.stdout.split())


def test_the_login_reaches_the_server_and_nobody_else(tmp_path: Path, mirror: type[Mirror]) -> None:
    said = fetch(tmp_path, f"http://{NAME}:{TYPED}@127.0.0.1:{mirror.port}/llama.cpp?{SIGNATURE}")
    assert f"http://127.0.0.1:{mirror.port}/llama.cpp could not be fetched: " in said
    assert set(mirror.logins) == {LOGIN}
    for secret in (PASSWORD, TYPED, SIGNATURE):
        assert secret not in said
    assert not [it for it in mirror.arguments if PASSWORD.encode() in it or TYPED.encode() in it]
    assert mirror.arguments


def test_a_redirect_takes_the_login_nowhere_else(tmp_path: Path, mirror: type[Mirror]) -> None:
    fetch(tmp_path, f"http://{NAME}:{TYPED}@localhost:{mirror.port}/moved")
    assert mirror.logins == []
