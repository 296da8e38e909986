# SPDX-License-Identifier: GPL-3.0-or-later
"""`make demo` and `make serve`, ended while they compile, fetch a model and build the chat page.

The source, the index of pip and npm are stand-ins that take long.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import tarfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.harness import HANG_S, ROOT
from support.stand_in_source import FAKE, PAGE_SOURCE, digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONG_S = 500
ENDS_WITHIN_S = 8
CLAIM_WAIT_S = 90  # how long a run waits for another one (roles/llama_cpp/tasks/claim.yml)
MARK = "PROCESSES_OF_THIS_TEST"
NODE = "#!/bin/sh\necho v22.13.0\n"
NPM = f'#!/bin/sh\n[ "$1" = --version ] || exec sleep {LONG_S + 1}\necho 10.8.2\n'
COMPILER, NPM_ITSELF = f"sleep\0{LONG_S}\0".encode(), f"sleep\0{LONG_S + 1}\0".encode()
PIP = b"pip\0download"


class Run:
    """A run in a cache of its own. Every process that it starts inherits a variable by which it is found."""

    def __init__(self, folder: Path, port: int, *, serve: bool) -> None:
        self.mark = f"{MARK}={folder}".encode()
        for name, text in (("node", NODE), ("npm", NPM)):
            (folder / "bin").mkdir(exist_ok=True)
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        for name, text in PAGE_SOURCE.items():
            (folder / "ui" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "ui" / name).write_text(text)
        with tarfile.open(folder / "source.tar.gz", "w:gz") as tar:
            tar.add(FAKE, "src")
            tar.add(folder / "ui", "src/tools/ui")
        given = {
            "llama_cpp_archive": str(folder / "source.tar.gz"),
            "llama_cpp_sha256": digest(folder / "source.tar.gz"),
            "llama_cpp_archive_subdir": "src",
            "llama_cpp_patches": [],
            "llama_cpp_cmake_options": {"FAKE_SLEEP": LONG_S, "LLAMA_BUILD_SERVER": True},
        }
        self.process = subprocess.Popen(
            [ROOT / "scripts/demo.sh", "-e", json.dumps(given)],
            env={
                **os.environ,
                MARK: str(folder),
                "PATH": f"{folder}/bin:{os.environ['PATH']}",
                "LLAMA_CPP_CLUSTER_CACHE": str(folder / "cache"),
                "PIP_CONFIG_FILE": os.devnull,
                "PIP_INDEX_URL": f"http://127.0.0.1:{port}/",
                "PIP_EXTRA_INDEX_URL": "",
                "PIP_FIND_LINKS": "",
                **({"SERVE": "yes"} if serve else {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def processes(self) -> dict[int, bytes]:
        """Return the commands of the processes of this run, by their ids."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark in (path / "environ").read_bytes().split(b"\0"):
                    found[int(path.name)] = (path / "cmdline").read_bytes()
            except OSError:
                continue
        return {process: command for process, command in found.items() if command}

    def wait_for(self, *words: bytes) -> None:
        deadline = time.monotonic() + HANG_S
        while not all(any(word in command for command in self.processes().values()) for word in words):
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < deadline, self.processes()
            time.sleep(0.2)

    def kill(self) -> None:
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


@pytest.fixture
def index() -> Iterator[int]:
    """Yield the port of a package index that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield silent.getsockname()[1]


def interrupted(run: Run, number: signal.Signals, send: Callable[[int, signal.Signals], None], *words: bytes) -> str:
    """Send a run a signal while these processes run, assert that all of it ends within seconds; return its output."""
    try:
        run.wait_for(*words)
        began = time.monotonic()
        send(run.process.pid, number)
        output = run.process.communicate(timeout=HANG_S)[0]
        took = time.monotonic() - began
        assert run.processes() == {}
        assert took < ENDS_WITHIN_S
        assert "Traceback" not in output
        assert run.process.returncode == 128 + number
        assert "Interrupted: all processes of this run have ended." in output
    finally:
        run.kill()
    return output


def test_ctrl_c_ends_every_process(tmp_path: Path, index: int) -> None:
    run = Run(tmp_path, index, serve=True)
    interrupted(run, signal.SIGINT, os.killpg, COMPILER, PIP, b"ninja", b"build_page.py", NPM_ITSELF)


def test_a_signal_for_the_script_does_too_and_the_next_run_goes_on_at_once(tmp_path: Path, index: int) -> None:
    for words in ((COMPILER, PIP, b"ninja"), (COMPILER,)):
        output = interrupted(Run(tmp_path, index, serve=False), signal.SIGTERM, os.kill, *words)
    waited = re.search(r"(\d+):(\d\d) Build the programs", output)
    assert waited, output
    assert 60 * int(waited[1]) + int(waited[2]) < CLAIM_WAIT_S
