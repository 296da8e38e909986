# SPDX-License-Identifier: GPL-3.0-or-later
"""A worker's cache folder, and the program that keeps it in order."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.harness import RELEASE

DAY = 86400
PROGRAM = RELEASE.rpc_cache


def fnv(data: bytes) -> str:
    """Return the name of an entry, as upstream's fnv_hash computes it."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & (1 << 64) - 1
    return f"{value:016x}"


@dataclass
class Cache:
    """A worker's cache folder, and the state beside it."""

    root: Path

    def __post_init__(self) -> None:
        self.folder, self.state = self.root / "rpc", self.root / "state"
        self.folder.mkdir()
        self.state.mkdir()

    def entry(self, data: bytes, *, name: str = "", age: float = 2 * DAY) -> Path:
        path = self.folder / (name or fnv(data))
        path.write_bytes(data)
        os.utime(path, (time.time() - age,) * 2)
        return path

    @property
    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    def tidy(self, *options: object, quiet: int = 0) -> dict[str, Any]:
        command = [PROGRAM, "tidy", self.folder, self.state, "--quiet", quiet, *options]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done
        status: dict[str, Any] = {**json.loads((self.state / "status.json").read_text()), "said": done.stdout}
        assert status["entries"] == sum(1 for name in self.names if re.fullmatch("[0-9a-f]{16}", name))
        return status

    def add(self, text: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = [str(PROGRAM), "add", str(self.folder), *options]
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=300, check=False)
