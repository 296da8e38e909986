# SPDX-License-Identifier: GPL-3.0-or-later
"""`make serve` with programs, model and page in place: its output, and that Ctrl-C ends all of its processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.api_client import Client
from support.gateway import make_program
from support.harness import HANG_S, ROOT, Release
from support.runs import left_over

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.llama


@contextmanager
def serving(release: Release, model: Path, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    places = [f"--bin={release.bin}", f"--state={folder}/api", f"--page={folder}/page"]
    process = subprocess.Popen(
        [sys.executable, ROOT / "playbooks/files/demo_api.py", *places, f"--model={model}", "--count=2", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=HANG_S)


def printed(process: subprocess.Popen[str]) -> dict[str, str]:
    """Return the lines up to the line about the page, by their first words."""
    assert process.stdout is not None
    found: dict[str, str] = {}
    for line in process.stdout:
        name, _blank, value = line.rstrip().partition(" ")
        found[name] = value
        if worker := worker_to_kill(line):
            found["worker of a"] = str(worker)
        if name == "Page":
            return found
    pytest.fail(f"it ended: {found}")


def worker_to_kill(line: str) -> int | None:
    """Return the process id in the `kill` command that a line about group a offers."""
    command = re.match("Group a: `kill -9 ([0-9]+)`", line)
    return int(command[1]) if command else None


def a_worker(folder: Path) -> int:
    """Return the process id of a worker whose log is in the folder."""
    for path in Path("/proc").glob("[0-9]*/exe"):
        with suppress(OSError):
            log = os.readlink(path.with_name("fd") / "1")
            if path.readlink().name == "rpc-server" and log.startswith(str(folder)):
                return int(path.parent.name)
    pytest.fail("no worker runs")


def test_it_prints_where_all_is_and_ctrl_c_ends_all_of_it(release: Release, model: Path, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    with serving(release, model, tmp_path) as process:
        said = printed(process)
        port = int(said["API"].rpartition(":")[2].removesuffix("/v1"))
        assert said["Page"] == "is being built; a line says when it is there"
        stranger = Client("127.0.0.1", port, None)
        assert stranger.request("/")[0] == 404
        (tmp_path / "page/index.html").write_text("<p>hello</p>")
        assert printed(process)["Page"] == f"http://127.0.0.1:{port}/"
        assert stranger.request("/") == (200, "<p>hello</p>")
        assert stranger.request("/v1/models")[0] == 401
        assert Client("127.0.0.1", port, said["Key"]).text()
        assert len(left_over(tmp_path / "api")) >= 4, "this program, two workers and the service"
        os.kill(a_worker(tmp_path / "api"), signal.SIGKILL)
        assert process.stdout is not None
        assert any(line.startswith("Serving ") for line in process.stdout), "it is started again"
        assert Client("127.0.0.1", port, said["Key"]).text()
        os.killpg(process.pid, signal.SIGINT)
        rest = process.communicate(timeout=HANG_S)[0]
        assert process.returncode == 130
        assert "The API and its workers have ended." in rest
        assert left_over(tmp_path / "api") == []


def test_two_groups_go_on_when_a_worker_is_killed_and_all_ends_with_the_script(release: Release, model: Path) -> None:
    # pytest's own folders are too deep for a socket's path.
    with tempfile.TemporaryDirectory(prefix="demo-") as path:
        folder = Path(path)
        (folder / "page").mkdir()
        (folder / "page/index.html").write_text("<p>hello</p>")
        program = make_program(folder)
        with serving(release, model, folder, "--groups=2", f"--gateway={program}") as process:
            said = printed(process)
            port = int(said["API"].rpartition(":")[2].removesuffix("/v1"))
            assert Client("127.0.0.1", port, None).request("/") == (200, "<p>hello</p>")
            assert Client("127.0.0.1", port, None).request("/props")[0] == 401
            you = Client("127.0.0.1", port, said["Key"])
            assert you.request("/props")[0] == 200
            text = you.text()
            killed = int(said["worker of a"])
            os.kill(killed, signal.SIGKILL)
            assert [you.text() for _number in range(4)] == [text] * 4
            assert process.stdout is not None
            assert process.stdout.readline() == "Ctrl-C ends it.\n"
            for line in process.stdout:
                if worker := worker_to_kill(line):
                    assert worker != killed, "the worker that has been started again"
                    break
                assert "lines are above" not in line
            # It cannot end anything itself now.
            process.kill()
            deadline = time.monotonic() + HANG_S
            while left_over(folder / "api") and time.monotonic() < deadline:
                time.sleep(0.2)
            assert left_over(folder / "api") == []
