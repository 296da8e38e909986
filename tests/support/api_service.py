# SPDX-License-Identifier: GPL-3.0-or-later
"""The API service as role llama_server starts it, over real workers on loopback, without systemd."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from support.api_client import PROMPT, Client
from support.harness import HANG_S, ROOT, Release, Worker, free_port, running_worker, talking
from support.templates import loaded, worked_out

if TYPE_CHECKING:
    import http.client
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

ROLE = ROOT / "roles/llama_server"
FILES = ROLE / "files"
VARIABLES = {**loaded(ROLE / "defaults/main.yml"), **loaded(ROLE / "vars/main.yml")}
ENVIRONMENT = {"PYTHONPATH": f"{ROOT / 'plugins/module_utils'}:{ROOT / 'plugins'}", "PYTHONUNBUFFERED": "1"}
# Starts a program again when it fails, as systemd does with the unit.
RESTARTS = (
    'umask 077; trap "kill \\$pid; wait \\$pid; exit" TERM; while :; do "$@" & pid=$!; wait $pid && exit; sleep 1; done'
)
KEY = "key-of-this-test-alone"
# The text of a model with random weights is noise.
ALIAS = "noise"


@dataclass
class Service:
    """A running service, and its output so far."""

    process: subprocess.Popen[str]
    port: int
    keys: Path
    lines: list[str]

    def wait_for(self, start: str, limit_s: float = 60) -> str:
        """Return the first line that has this text, once it appears; the text may follow llama-server's last words."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            found = next((line for line in list(self.lines) if start in line), None)
            if found is not None:
                return found
            if self.process.poll() is not None:
                time.sleep(0.2)  # the reader gets the last lines
                found = next((line for line in list(self.lines) if start in line), None)
                if found is not None:
                    return found
                break
            time.sleep(0.02)
        raise AssertionError(f"not said: {start}; but: {''.join(self.lines[-20:])}")

    @property
    def client(self) -> Client:
        """A client that has the key."""
        return Client("127.0.0.1", self.port, KEY)

    def request(
        self, path: str, body: dict[str, Any] | None = None, *, key: str | None = KEY, limit_s: float = HANG_S
    ) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        return replace(self.client, key=key).request(path, body, limit_s=limit_s)

    def stream(self, tokens: int, prompt: str = PROMPT) -> AbstractContextManager[http.client.HTTPResponse]:
        """Return a stream of so many tokens, whose first one has come."""
        return self.client.stream(tokens, prompt)

    def text(self) -> str:
        """Return the model's continuation of a prompt."""
        return self.client.text()

    def drain(self, limit_s: float, *by: str, pid: int | None = None) -> subprocess.Popen[str]:
        """Start the program that the unit runs before it stops the service, through the programs `by` if given."""
        main_pid = str(pid or self.process.pid)
        command = [sys.executable, FILES / "llama_server_drain.py", main_pid, "127.0.0.1", str(self.port)]
        return subprocess.Popen(
            [*by, *command, self.keys, str(limit_s), self.keys.with_name("prompts")],
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def speculation(**given: object) -> list[str]:
    """Return the arguments that the role gives llama-server for these variables of speculation."""
    return [str(word) for word in worked_out(VARIABLES["__llama_server_spec_arguments"], {**VARIABLES, **given})]


# This leaves out the chat page.
NO_PAGE = ("--no-ui",)


def settings(
    release: Release,
    model: Path,
    workers: Sequence[str],
    port: int,
    keys: Path,
    options: Sequence[str],
    ready_port: int = 0,
) -> dict[str, Any]:
    """Return the settings that role llama_server writes."""
    arguments = ["--model", str(model), "--alias", ALIAS, "--host", "127.0.0.1", "--port", str(port), "--threads", "1"]
    arguments += ["--parallel", "2", "--ctx-size", "1024", "--n-gpu-layers", "999", "--fit", "off", "--metrics"]
    arguments += ["--api-key-file", str(keys), "--cache-ram", "64", "--ubatch-size", "64", *options]
    arguments += ["--tensor-split", ",".join("1" for _worker in workers)]
    return {
        "program": str(release.bin / "llama-server"),
        "arguments": arguments,
        "workers": list(workers),
        "model": str(model),
        "alias": ALIAS,
        "address": "127.0.0.1",
        "port": port,
        "keys_file": str(keys),
        "stall_timeout_s": 60,
        "metrics_file": str(keys.with_name("llama_server.prom")),
        "ready_port": ready_port,
    }


@contextmanager
def running_service(
    release: Release,
    model: Path,
    workers: Sequence[str],
    folder: Path,
    port: int | None = None,
    options: Sequence[str] = NO_PAGE,
    ready_port: int = 0,
) -> Iterator[Service]:
    """Start the service with further options of llama-server; yield it, and end it by its own process id."""
    port = port or free_port()
    keys = folder / "keys"
    if not keys.exists():
        keys.write_text(f"{KEY}\n")
    written = settings(release, model, workers, port, keys, options, ready_port)
    (folder / "settings.json").write_text(json.dumps(written))
    command = [sys.executable, FILES / "llama_server_service.py", folder / "settings.json"]
    with talking(command, ENVIRONMENT) as (process, lines):
        yield Service(process, port, keys, lines)


@contextmanager
def healing_service(
    release: Release,
    model: Path,
    workers: Sequence[Worker],
    folder: Path,
    memory_mib: int = 1024,
    options: Sequence[str] = NO_PAGE,
    **more: Any,
) -> Iterator[Service]:
    """Start a service as systemd does, again and again, with a plan in which each worker has so much memory.

    `more` are further settings. Its spares are endpoints with the same memory.
    """
    port, keys = free_port(), folder / "keys"
    keys.write_text(f"{KEY}\n")
    endpoints = [worker.endpoint for worker in workers]
    written = settings(release, model, endpoints, port, keys, options)
    written |= {"plan_file": str(folder / "settings.plan"), "degrade": ["workers"], "worker_wait_s": 2}
    (folder / "settings.json").write_text(json.dumps({**written, **more}))
    known = [
        {"endpoint": it, "memory_available_bytes": memory_mib << 20} for it in (*endpoints, *more.get("spares", ()))
    ]
    plan = {"model": str(model), "bin_folder": str(release.bin), "options": written["arguments"], "reserve_bytes": 0}
    split = {"arguments": {**plan, "workers": known[: len(endpoints)]}, "spares": known[len(endpoints) :]}
    split["parts"] = [
        {"endpoint": it, "first_layer": index, "layers": 1, "has_output": it == endpoints[-1]}
        for index, it in enumerate(endpoints)
    ]
    (folder / "settings.plan").write_text(json.dumps(split))
    for name in ("run", "prompts"):
        (folder / name).mkdir(exist_ok=True)
    program = [sys.executable, FILES / "llama_server_service.py", folder / "settings.json"]
    environment = {**ENVIRONMENT, "RUNTIME_DIRECTORY": str(folder / "run"), "CACHE_DIRECTORY": str(folder / "prompts")}
    with talking(["sh", "-c", RESTARTS, "sh", *program], environment) as (process, lines):
        yield Service(process, port, keys, lines)


@contextmanager
def service_over_two(
    release: Release, model: Path, folder: Path, options: Sequence[str] = NO_PAGE
) -> Iterator[Service]:
    """Yield a service over two workers of its own, once it serves."""
    with ExitStack() as stack:
        workers = [stack.enter_context(running_worker(release, folder / f"{index}.log")) for index in range(2)]
        endpoints = [worker.endpoint for worker in workers]
        service = stack.enter_context(running_service(release, model, endpoints, folder, options=options))
        service.wait_for("Serving")
        yield service


def connects(port: int, limit_s: float, address: str = "127.0.0.1") -> bool:
    """Return whether a connection is established within the limit."""
    try:
        with socket.create_connection((address, port), limit_s):
            return True
    except OSError:
        return False
