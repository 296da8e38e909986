# SPDX-License-Identifier: GPL-3.0-or-later
"""Role inference over workers, one of which is killed in the first run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from support.harness import Release, Worker, play_here
from support.runs import wrapped

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

GIB = 1 << 30
# Runs a command in the first run only.
ONCE = 'if mkdir "$here/first" 2>/dev/null; then {}; fi'


class Play:
    """The role over three workers on loopback, through playbooks/infer.yml."""

    def __init__(self, release: Release, model: Path, folder: Path, workers: list[Worker]) -> None:
        self.release, self.model, self.folder, self.workers = release, model, folder, workers

    def __call__(self, script: str, **variables: Any) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
        programs = self.folder / "prefix/current/bin"
        programs.mkdir(parents=True)
        wrapped(self.release, programs, script)
        report = self.folder / "report.json"
        host = {
            "rpc_server_address": "127.0.0.1",
            "rpc_server_bind_address": "127.0.0.1",
            "rpc_server_instances": [{"port": worker.port} for worker in self.workers],
            "gguf_model_path": str(self.model),
            "llama_cpp_prefix": str(self.folder / "prefix"),
            "inference_worker_memory_bytes": {worker.endpoint: GIB for worker in self.workers},
            "inference_report_path": str(report),
            "inference_n_predict": 8,
            "inference_ctx_size": 512,
            **variables,
        }
        done = play_here("infer.yml", self.folder, {name: value for name, value in host.items() if value is not None})
        return done, json.loads(report.read_text()) if report.exists() else {}


def kills(worker: Worker) -> str:
    return ONCE.format(f"kill -9 {worker.process.pid}; while kill -0 {worker.process.pid}; do :; done")


def reaped(worker: Worker) -> None:
    """Reap the process as soon as it has ended."""
    import threading

    threading.Thread(target=worker.process.wait, daemon=True).start()
