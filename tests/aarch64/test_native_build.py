# SPDX-License-Identifier: GPL-3.0-or-later
"""Compile the worker on aarch64 itself: in a Debian arm64 system beside the cluster.

Under emulation, compilation takes ten times as long. So this test compiles only the worker, without optimisation and
without optional kernels. It emulates programs rather than a whole system, which would take twice as long again. The
build is kept, and each run compiles one file of it anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from aarch64 import hosts
from support.pinned_source import archive_name

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_S = 900
SUITE = "trixie"
PACKAGES = "base-files,libc-bin,dash,coreutils,findutils,grep,g++,cmake,ninja-build"
SCRIPT = Path(__file__).with_name("native_build.sh")
VERSION = yaml.safe_load((hosts.ROOT / "roles/llama_cpp/defaults/main.yml").read_text())["llama_cpp_version"]


@pytest.fixture
def folder() -> Path:
    """Make a Debian arm64 system with its compiler and the cluster's source on first use; return its folder."""
    source = hosts.CACHE / "sources" / f"{archive_name(VERSION)}.tar.gz"
    digest = hashlib.sha256(f"{SUITE} {PACKAGES} {source.name} {SCRIPT.read_text()}".encode()).hexdigest()[:12]
    place = hosts.CACHE / "lab" / f"native-aarch64-{digest}"
    if not place.exists():
        for other in place.parent.glob("native-aarch64-*"):
            shutil.rmtree(other)
        work = place.with_name(f"{place.name}-work")
        (work / "build").mkdir(parents=True)
        # Unpack the packages only: nothing in the system needs to be configured.
        make = ["mmdebstrap", "--variant=extract", "--arch=arm64", f"--include={PACKAGES}", SUITE, str(work / "root")]
        done = subprocess.run(make, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stderr
        with tarfile.open(source) as archive:
            archive.extractall(work / "unpacked", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        next((work / "unpacked").glob("*/vendor/llama.cpp")).rename(work / "source")
        shutil.rmtree(work / "unpacked")
        work.rename(place)
    if not hosts.NATIVE:
        (place / "cpuinfo").write_text(hosts.said("arm-master", "cat", "/proc/cpuinfo") + "\n")
    assert hosts.said("arm-master", "uname", "-m") == "aarch64"
    return place


def test_a_worker_is_compiled_on_aarch64_and_answers(folder: Path, show: Callable[[str], None]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    apart = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--"]
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *apart, str(SCRIPT), str(folder), str(port)],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    answer = ""
    try:
        while process.poll() is None and not answer and time.monotonic() < began + LIMIT_S:
            time.sleep(1)
            if "program:" in log.read_text():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    hello = [sys.executable, "-", "127.0.0.1", str(port)]
                    answer = subprocess.run(
                        hello, input=hosts.HELLO, capture_output=True, text=True, timeout=30, check=False
                    ).stdout.strip()
    finally:
        process.kill()
        process.wait()
    text = log.read_text()
    how = "on aarch64" if hosts.NATIVE else "under user emulation (QEMU)"
    show(f"compiled natively, {how}, the worker alone, not optimised; {time.monotonic() - began:.0f} s:")
    show("  " + "\n  ".join(line for line in text.splitlines() if ": " in line)[:1000])
    show(f"  it answers with RPC protocol {answer}")
    assert answer == "7.0.0", text
    assert "machine: aarch64" in text
    assert re.search(r"^program: +183$", text, re.MULTILINE)
    assert "ARM detected flags:" in text
