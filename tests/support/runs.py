# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs over real workers: what is visible of them from outside, and their failures."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.harness import Release, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def wrapped(release: Release, folder: Path, script: str) -> Path:
    """Write a completion program that runs a script before each run; return its folder.

    The script has $real, the program of the release, and $here, the folder. The program itself runs after it.
    """
    program = folder / "llama-completion"
    program.write_text(
        f"#!/bin/sh\nhere={folder} real={release.bin / program.name}\n"
        f'case " $* " in *" --rpc "*)\n{script}\n;; esac\nexec "$real" "$@"\n'
    )
    program.chmod(0o755)
    return folder


def failure(result: dict[str, Any]) -> tuple[str, str | None]:
    """Return the kind and endpoint of a failure; assert that its result is as complete as that of a success."""
    assert result["failed"]
    found = result["failure"]
    assert found is not None, result
    assert result["msg"] == found["message"]
    assert found["message"].endswith(".")
    assert "Traceback" not in json.dumps(result)
    assert {"text", "perf", "devices", "offload", "build", "wall_time_ms", "command"} <= set(result)
    print(f"{found['kind']} | {found['endpoint']} | {found['message']}")
    return found["kind"], found["endpoint"]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(what: Callable[[], Any], limit: float = 60) -> Any:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        time.sleep(0.005)
    pytest.fail(f"did not happen within {limit} s")


def generating(worker: Worker) -> bool:
    """Return whether the worker computes: loading the model takes it only a few milliseconds of CPU time."""
    return worker.held() and cpu_seconds(worker.process.pid) > 0.5


@contextmanager
def held_by_another_client(worker: Worker) -> Iterator[None]:
    """Hold a worker like a client that has sent HELLO."""
    with socket.create_connection(("127.0.0.1", worker.port), 5) as client:
        client.sendall(struct.pack("<BQ24x", 14, 24))
        assert client.recv(8)
        yield


def masters(endpoint: str) -> list[int]:
    """Return the ids of the llama.cpp processes, other than the worker itself, that were told to use this worker."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if Path(words[0]).name == "llama-completion" and any(endpoint in word for word in words):
                found.append(int(path.parent.name))
    return found


def left_over(folder: Path) -> list[str]:
    """Return the commands of processes that name this folder, or have a file of it open."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            files = [os.readlink(descriptor) for descriptor in (path / "fd").iterdir()]
        except OSError:
            continue
        if str(folder) in command or any(file.startswith(str(folder)) for file in files):
            found.append(command)
    return found
