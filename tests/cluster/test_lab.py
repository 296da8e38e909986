# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of the program that makes the test hosts: it removes what a killed run leaves, and touches no other lab.

The tests that need no root are in tests/tooling/test_lab.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.lab.hosts import CACHE, NUMBER, ROOT, ssh

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = ROOT / "tests/lab/lab.py"
# A lab number that neither the other tests nor anybody else uses.
OTHER = next(
    number
    for number in ((NUMBER + 100 + step) % 256 for step in range(256))
    if number != NUMBER and not Path(f"/sys/class/net/llama-lab{number}").exists()
)


def lab(*arguments: str, cache: Path = CACHE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, PROGRAM, *arguments],
        env={**os.environ, "LAB_NUMBER": str(OTHER), "LLAMA_CPP_CLUSTER_CACHE": str(cache)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    said = process.communicate(timeout=180)[0]
    return process.returncode, said


def leftovers(cache: Path) -> list[str]:
    """Return all traces of the other lab on this machine."""
    found = [
        str(path) for path in [Path(f"/sys/class/net/llama-lab{OTHER}"), cache / "lab" / str(OTHER)] if path.exists()
    ]
    for hierarchy in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        found += map(str, Path(hierarchy).glob(f"lab{OTHER}-*"))
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
    found += [line for line in tables.splitlines() if line.endswith(f"llama_lab{OTHER}")]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode() + (
                process / "mountinfo"
            ).read_text()
        except OSError:
            continue
        if f"lab{OTHER}-" in said or f"{cache}/lab/{OTHER}/" in said:
            found.append(f"{process.name}: {said[:100]}")
    return found


@pytest.fixture
def other() -> Iterator[Path]:
    """Yield the cache folder of the other lab, and check that the lab leaves no traces before and after."""
    assert leftovers(CACHE) == [], f"lab {OTHER} is in use"
    yield CACHE
    assert finished(lab("down"))[0] == 0
    assert leftovers(CACHE) == []
    # The lab of the other tests was not touched.
    ssh("outsider", "true")


@pytest.mark.parametrize("after", [0.15, 0.3, 0.4, 0.5, 0.7, 1.2, 2.0], ids="after_{}_s".format)
def test_what_a_killed_run_leaves_is_removed(other: Path, after: float) -> None:
    process = lab("up")
    time.sleep(after)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert finished(lab("down"))[0] == 0
    assert leftovers(other) == []


@pytest.mark.usefixtures("other")
def test_a_run_after_a_killed_one_makes_the_hosts() -> None:
    process = lab("up", "worker1")
    time.sleep(1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    status, said = finished(lab("up", "outsider"))
    assert status == 0, said
    assert "1 hosts are up" in said
    assert finished(lab("status"))[1].split()[0] == "outsider"


def test_an_interrupted_run_removes_what_it_made(other: Path) -> None:
    process = lab("up")
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    status, said = finished(process)
    assert status == 1
    assert said == "lab: interrupted; what was there of the lab is removed.\n"
    assert leftovers(other) == []


@pytest.mark.long
@pytest.mark.usefixtures("other")
def test_a_system_that_was_half_made_is_made_anew(tmp_path: Path) -> None:
    process = lab("up", "outsider", cache=tmp_path)
    work = tmp_path / "lab/roots/trixie-work/root"
    end = time.monotonic() + 60
    while not (work / "var/lib/dpkg/status").exists() and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    time.sleep(1)
    assert [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in _text(path)] == []
    status, said = finished(lab("up", "outsider", cache=tmp_path))
    assert status == 0, said
    assert not work.exists()
    status, said = finished(lab("up", cache=CACHE))
    assert status == 1
    assert said == f"lab: lab {OTHER} is in use from {tmp_path}/lab/{OTHER}: end it there, or set LAB_NUMBER.\n"
    assert finished(lab("down", cache=tmp_path))[0] == 0


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""
