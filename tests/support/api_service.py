# SPDX-License-Identifier: GPL-3.0-or-later
"""The API service as role llama_server starts it, over real workers on loopback, without systemd."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from support.harness import HANG_S, ROOT, Release, end, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FILES = ROOT / "roles/llama_server/files"
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "plugins/module_utils"), "PYTHONUNBUFFERED": "1"}
KEY = "key-of-this-test-alone"
# What a model of random weights may say, by its alias alone.
ALIAS = "noise"


@dataclass
class Service:
    """A running service, and what it has said so far."""

    process: subprocess.Popen[str]
    port: int
    keys: Path
    lines: list[str] = field(default_factory=list)

    def wait_for(self, start: str, limit_s: float = 60) -> str:
        """Return the first line that starts so, once it is said."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            found = next((line for line in list(self.lines) if line.startswith(start)), None)
            if found is not None:
                return found
            if self.process.poll() is not None:
                time.sleep(0.2)  # the last lines are read
                found = next((line for line in list(self.lines) if line.startswith(start)), None)
                if found is not None:
                    return found
                break
            time.sleep(0.02)
        raise AssertionError(f"not said: {start}; but: {''.join(self.lines[-20:])}")

    def request(
        self, path: str, body: dict[str, Any] | None = None, *, key: str | None = KEY, limit_s: float = HANG_S
    ) -> tuple[int, Any]:
        """Return status and JSON of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=limit_s)
        headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
        try:
            connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text.decode()

    @contextmanager
    def stream(self, tokens: int, prompt: str = "the river") -> Iterator[http.client.HTTPResponse]:
        """A stream of so many tokens, whose first one has come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)
        wanted = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0}
        connection.request("POST", "/v1/completions", json.dumps(wanted), {"Authorization": f"Bearer {KEY}"})
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.readline().startswith(b"data:")
        try:
            yield answer
        finally:
            connection.close()

    def text(self) -> str:
        """Return what the model says first."""
        status, body = self.request("/v1/completions", {"prompt": "the river", "max_tokens": 8, "temperature": 0})
        assert status == 200, body
        return str(body["choices"][0]["text"])

    def drain(self, limit_s: float) -> subprocess.Popen[str]:
        """Start what the unit runs before it stops the service."""
        command = [sys.executable, FILES / "llama_server_drain.py", str(self.process.pid), "127.0.0.1", str(self.port)]
        return subprocess.Popen(
            [*command, self.keys, str(limit_s)],
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def settings(release: Release, model: Path, workers: Sequence[str], port: int, keys: Path) -> dict[str, Any]:
    """Return what role llama_server writes."""
    arguments = ["--model", str(model), "--alias", ALIAS, "--host", "127.0.0.1", "--port", str(port), "--threads", "1"]
    arguments += ["--parallel", "2", "--ctx-size", "1024", "--n-gpu-layers", "999", "--fit", "off", "--metrics"]
    arguments += ["--api-key-file", str(keys), "--cache-ram", "64", "--no-ui", "--ubatch-size", "64"]
    arguments += ["--tensor-split", ",".join("1" for _worker in workers)]
    return {
        "program": str(release.bin / "llama-server"),
        "arguments": arguments,
        "workers": list(workers),
        "expected_protocol": release.protocol,
        "model": str(model),
        "alias": ALIAS,
        "address": "127.0.0.1",
        "port": port,
        "keys_file": str(keys),
        "stall_timeout_s": 60,
    }


@contextmanager
def running_service(
    release: Release,
    model: Path,
    workers: Sequence[str],
    folder: Path,
    port: int | None = None,
    options: Sequence[str] = (),
) -> Iterator[Service]:
    """Start the service, with further options of llama-server, give it, and end it by its own process id."""
    port = port or free_port()
    keys = folder / "keys"
    if not keys.exists():
        keys.write_text(f"{KEY}\n")
    given = settings(release, model, workers, port, keys)
    (folder / "settings.json").write_text(json.dumps({**given, "arguments": [*given["arguments"], *options]}))
    process = subprocess.Popen(
        [sys.executable, FILES / "llama_server_service.py", folder / "settings.json"],
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    service = Service(process, port, keys)

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as said:
            for line in said:
                service.lines.append(line)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield service
    finally:
        end(process)  # type: ignore[arg-type]
        reader.join()


def connects(port: int, limit_s: float) -> bool:
    """Whether a connection comes about within the limit."""
    try:
        with socket.create_connection(("127.0.0.1", port), limit_s):
            return True
    except OSError:
        return False
