# SPDX-License-Identifier: GPL-3.0-or-later
"""The patch rpc-transport on a connection: no message waits for a flush that nobody calls."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.harness import HANG_S, completed, free_port
from support.pinned_source import DEFAULT, unpack

PROGRAM = Path(__file__).parent / "rpc_transport.cpp"


def test_messages_arrive_though_nobody_flushes_and_signals_interrupt(tmp_path: Path) -> None:
    tree, program = tmp_path / "source", tmp_path / "program"
    unpack(DEFAULT, tree, ["rpc-transport"])
    folders = [f"-I{tree / folder}" for folder in ("ggml/src/ggml-rpc", "ggml/include", "ggml/src")]
    command = ["c++", "-std=c++17", "-O0", "-pthread", *folders, "-o", program, PROGRAM]
    subprocess.run(command, check=True, timeout=HANG_S)
    done = completed(program, str(free_port()))
    assert (done.returncode, done.stdout.splitlines()) == (
        0, ["asked: ping", "answered: pong", "kept alive: 2", "told at the end: over"],
    ), done.stdout  # fmt: skip
