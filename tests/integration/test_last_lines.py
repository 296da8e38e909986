# SPDX-License-Identifier: GPL-3.0-or-later
"""The patch programs: a program does not end before it has written its last lines."""

from __future__ import annotations

import fcntl
import os
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.harness import HANG_S

if TYPE_CHECKING:
    from support.harness import Release

pytestmark = pytest.mark.llama


def full_pipe() -> tuple[int, int]:
    """Return the ends of a pipe that takes nothing until somebody reads."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETFL, os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"-" * 4096)
    fcntl.fcntl(writer, fcntl.F_SETFL, 0)
    return reader, writer


def ticks(process: subprocess.Popen[bytes]) -> list[str]:
    """Return the user and system time of a process, in clock ticks."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]


def test_last_lines_are_written_although_the_reader_is_slow(release: Release, model: Path) -> None:
    """The text waits in a queue until somebody reads. Meanwhile the program has nothing left to do but to end."""
    tokens = 400
    command = [release.bin / "llama-completion", "-m", model, "-p", "the river", "-n", str(tokens), "--ignore-eos"]
    # Several threads would wait for each other actively, which takes long on a busy machine.
    command += ["-t", "1"]
    reader, writer = full_pipe()
    process = subprocess.Popen(
        [*command, "-no-cnv"], stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE
    )  # fmt: skip
    os.close(writer)
    with process, os.fdopen(reader, "rb") as text:
        log: list[bytes] = []
        thread = threading.Thread(target=lambda: log.extend(process.stderr or ()))
        thread.start()
        deadline = time.monotonic() + HANG_S
        before: list[str] = []
        # Wait until the process has computed, and has computed nothing between two looks.
        while (now := ticks(process)) != before or now == ["0", "0"]:
            assert time.monotonic() < deadline
            before = now
            time.sleep(0.3)
        written = text.read().lstrip(b"-")
        thread.join()
    assert process.returncode == 0
    assert len(written.split()) > tokens / 2
    assert written.endswith(b"\n\n")
    assert b"total time" in b"".join(log)
