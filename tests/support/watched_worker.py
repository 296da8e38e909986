# SPDX-License-Identifier: GPL-3.0-or-later
"""Workers that report what they do with weights: in their log, and in the status that they write."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable

import jinja2
from ansible.plugins.filter.core import to_bool

from support.harness import HANG_S, ROOT, AnyRelease, Release, Worker, running_worker
from support.quantised_models import TYPES
from support.rpc_session import Type

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class Watched:
    """A worker, and its reports about its weights."""

    worker: Worker
    status_file: Path

    @property
    def port(self) -> int:
        return self.worker.port

    @property
    def log(self) -> str:
        return self.worker.log.read_text()

    @property
    def repack(self) -> dict[str, float]:
        return dict(json.loads(self.status_file.read_text())["repack"])

    @property
    def layouts(self) -> set[str]:
        """Return the interleavings of weights for the kernels of this CPU, as the worker reports them at its start."""
        (line,) = [line for line in self.log.splitlines() if line.startswith("  repack  ")]
        return set(re.findall(r"\w+_\d+x\d+", line))

    @property
    def kernels(self) -> set[Type]:
        """Return the types for which this CPU has kernels."""
        types = {layout.rpartition("_")[0].lower() for layout in self.layouts}
        return {kind for kind in TYPES if kind.name.lower() in types}


@contextmanager
def watched(
    release: AnyRelease,
    folder: Path,
    *environment: str,
    threads: int = 1,
    options: tuple[str, ...] = (),
    under: tuple[str, ...] = (),
) -> Iterator[Watched]:
    """Start a worker whose cache, log and status are in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    status = folder / "status.json"
    own = ("env", f"GGML_RPC_STATUS={status}", f"LLAMA_CACHE={folder / 'cache'}")
    prefix = (*own, *environment, *under)
    with running_worker(release, folder / "log", "-d", "CPU", *options, threads=threads, prefix=prefix) as worker:
        yield Watched(worker, status)


def settings(**variables: object) -> list[str]:
    """Return what the unit of role `rpc_server` sets in the environment of its process, not paths or the digest."""
    worker = {"__rpc_server_worker": {"port": 50052}, "__rpc_server_links": []}
    chosen = {"__rpc_server_has_cache": False, "rpc_server_environment": {}, **worker, **variables}
    templates = jinja2.FileSystemLoader(ROOT / "roles/rpc_server/templates")
    environment = jinja2.Environment(loader=templates, undefined=jinja2.ChainableUndefined, autoescape=False)
    environment.filters.update(bool=to_bool, hash=lambda text, kind: hashlib.new(kind, text.encode()).hexdigest())
    unit = environment.get_template("llama-rpc-server.service.j2").render(common_systemd=257, **chosen)
    found = [line.partition("=")[2] for line in unit.splitlines() if line.startswith("Environment=")]
    return [setting for setting in found if "=/" not in setting and not setting.startswith("LLAMA_CPP_CLUSTER_UNIT=")]


def until(said: Callable[[], object]) -> None:
    deadline = time.monotonic() + HANG_S
    while not said():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def killed_in_a_run(release: Release, model: Path, worker: Watched) -> None:
    before = worker.log.count("Repacked")
    command: list[str | Path] = [release.bin / "llama-completion", "-m", model, "--rpc", f"127.0.0.1:{worker.port}"]
    command += ["-ngl", "99", "-fit", "off", "-c", "512", "-n", "-1", "--ignore-eos", "-no-cnv", "-p", "the"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
    )  # fmt: skip
    until(lambda: worker.log.count("Repacked") > before or process.poll() is not None)
    process.kill()
    assert process.wait(10) == -signal.SIGKILL
    until(lambda: not worker.worker.alive or worker.log.count("Accepted") == worker.log.count("connection closed"))
