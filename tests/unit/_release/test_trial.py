# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a program can run on a host, by the end of its run and the head of its file."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.elf import read_program
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.trial import (
    check_features,
    check_run,
    programs_of,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PROGRAM = Path("/opt/llama_cpp/current/bin/rpc-server")
LIBC = "/lib/aarch64-linux-gnu/libc.so.6"

# Exit status, output as the loaders of glibc and musl word it, kind of problem, and message.
RUNS: dict[str, tuple[int, str, str | None, str]] = {
    "fine": (0, "Available devices:\n  (none)\n", None, ""),
    "fine-with-another-status": (1, "error: unknown device: no-such-device\n", None, ""),
    "own-status-that-looks-like-a-signal": (255, "", None, ""),
    "glibc-missing-library": (
        127,
        (
            f"{PROGRAM}: error while loading shared libraries: libgomp.so.1: cannot open shared object file: "
            "No such file or directory\n"
        ),
        "library_missing",
        "needs the library libgomp.so.1, which this host does not have",
    ),
    "musl-missing-library": (
        127,
        (
            f"Error loading shared library libgomp.so.1: No such file or directory (needed by {PROGRAM})\n"
            f"Error relocating {PROGRAM}: GOMP_barrier: symbol not found\n"
        ),
        "library_missing",
        "needs the library libgomp.so.1, which",
    ),
    "musl-missing-symbol": (
        127,
        f"Error relocating {PROGRAM}: __isoc23_strtol: symbol not found\n",
        "not_loaded",
        "cannot be loaded (__isoc23_strtol: symbol not found)",
    ),
    "glibc-newest-of-several-versions": (
        1,
        (
            f"{PROGRAM}: {LIBC}: version `GLIBC_2.34' not found (required by {PROGRAM})\n"
            f"{PROGRAM}: {LIBC}: version `GLIBC_2.38' not found (required by {PROGRAM})\n"
            f"{PROGRAM}: {LIBC}: version `GLIBC_2.9' not found (required by {PROGRAM})\n"
            f"{PROGRAM}: /lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by {PROGRAM})\n"
        ),
        "libc_too_old",
        "needs glibc 2.38, this host has 2.31:",
    ),
    "glibc-newer-C++": (
        1,
        (
            f"{PROGRAM}: /lib/libstdc++.so.6: version `GLIBCXX_3.4.9' not found (required by {PROGRAM})\n"
            f"{PROGRAM}: /lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by {PROGRAM})\n"
        ),
        "library_too_old",
        "needs GLIBCXX 3.4.32 of the C++ runtime",
    ),
    "glibc-broken-library": (
        127,
        f"{PROGRAM}: error while loading shared libraries: libggml.so: file too short\n",
        "not_loaded",
        "cannot be loaded (libggml.so: file too short)",
    ),
    "glibc-missing-symbol": (
        127,
        f"{PROGRAM}: symbol lookup error: {PROGRAM}: undefined symbol: ggml_foo\n",
        "not_loaded",
        "cannot be loaded (symbol lookup error: ",
    ),
    "glibc-x86-64-level": (
        127,
        f"{PROGRAM}: CPU ISA level is lower than required\n",
        "illegal_instruction",
        "uses an instruction that this CPU lacks",
    ),
    "illegal-instruction": (132, "", "illegal_instruction", "uses an instruction that this CPU lacks"),
    "out-of-memory-killer": (137, "", "crashed", "was ended by SIGKILL as soon as it started"),
    "real-time-signal": (178, "", "crashed", "was ended by signal 50 as soon"),
    "folder-that-forbids-programs": (
        126,
        f"timeout: failed to run command '{PROGRAM}': Permission denied\n",
        "not_started",
        "cannot be started (timeout: failed to run command",
    ),
    "nothing-said": (126, "\n", "not_started", "cannot be started (exit status 126)"),
}


@pytest.mark.parametrize(("status", "output", "kind", "said"), RUNS.values(), ids=RUNS.keys())
def test_the_end_of_a_run_is_explained(status: int, output: str, kind: str | None, said: str) -> None:
    problem = check_run(PROGRAM, status, output, timed_out=False, timeout=20, libc="glibc 2.31")
    assert (problem.kind if problem else None) == kind
    if problem:
        assert problem.message.startswith(f"{PROGRAM} {said}")
        assert "\n" not in problem.message


@given(st.integers(0, 255), st.text() | st.lists(st.sampled_from([run[1] for run in RUNS.values()])).map("".join))
@settings(deadline=None)
def test_whatever_a_run_says_is_one_sentence_or_nothing(status: int, output: str) -> None:
    problem = check_run(PROGRAM, status, output, timed_out=False, timeout=20, libc="")
    assert problem is None or len(problem.message.splitlines()) == 1


FEATURES: dict[str, tuple[Any, str | None]] = {
    "all-there": ({"machine": "aarch64", "features": ["asimddp"]}, None),
    "none-needed": ({"machine": "aarch64", "features": []}, None),
    "lacking": ({"machine": "aarch64", "features": ["asimddp", "asimdhp", "sve"]}, "(fp16, sve)"),
    "of-an-older-manifest": ("aarch64 asimdhp", None),
    "none-said": (None, None),
    "of-another-kind": ({"features": 7}, None),
    "of-an-unknown-machine": ({"features": ["vsx"]}, "(vsx)"),
}


@pytest.mark.parametrize(("built_for", "said"), FEATURES.values(), ids=FEATURES.keys())
def test_features_that_a_host_lacks_are_named(built_for: object, said: str | None) -> None:
    problem = check_features({"cpu_class": built_for}, {"fp", "asimddp"})
    assert (problem is None) == (said is None)
    if problem and said:
        assert said in problem.message


def test_programs_are_those_of_the_manifest_or_those_that_are_there(tmp_path: Path) -> None:
    for name in ("rpc-server", "llama-cli", "libggml-cpu-x64.so", "libggml.so.0"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    assert programs_of({"programs": ["rpc-server"]}, tmp_path) == ["rpc-server"]
    assert programs_of({"programs": "all"}, tmp_path) == ["llama-cli", "rpc-server"]
    assert programs_of({}, tmp_path / "none") == []


def test_the_head_of_a_real_program_is_read() -> None:
    program = read_program(Path(sys.executable))
    assert program is not None
    assert program.fits(platform.machine())
    assert program.loader is None or Path(program.loader).exists()


def elf(bits: int, order: str, machine: int) -> bytes:
    head = b"\x7fELF" + bytes([bits // 32, 1 if order == "little" else 2]) + bytes(12)
    return head + machine.to_bytes(2, order) + bytes(44)  # type: ignore[arg-type]


HEADS = {
    "x86_64": (elf(64, "little", 62), "x86_64", ["x86_64"], ["aarch64", "i686"]),
    "aarch64": (elf(64, "little", 183), "aarch64", ["aarch64", "arm64"], ["x86_64", "armv7l"]),
    "arm-of-32-bits": (elf(32, "little", 40), "armv7l", ["armv7l", "armv8l", "aarch64"], ["x86_64"]),
    "x86-of-32-bits": (elf(32, "little", 3), "i686", ["i686", "x86_64"], ["aarch64"]),
    "big-endian": (elf(64, "big", 22), "s390x", ["s390x"], ["x86_64"]),
    "machine-that-is-not-known": (elf(64, "little", 9999), "machine 9999", ["sparc64"], ["x86_64"]),
}


@pytest.mark.parametrize(("content", "name", "fits", "fits_not"), HEADS.values(), ids=HEADS.keys())
def test_the_machine_of_a_program_is_known(
    content: bytes, name: str, fits: list[str], fits_not: list[str], tmp_path: Path
) -> None:
    (tmp_path / "program").write_bytes(content)
    program = read_program(tmp_path / "program")
    assert program is not None
    assert program.machine_name == name
    assert all(program.fits(machine) for machine in fits)
    assert not any(program.fits(machine) for machine in fits_not)


@given(
    content=st.binary(max_size=80).map(lambda rest: b"\x7fELF" + rest) | st.binary(max_size=80),
    start=st.integers(0, 200),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_broken_head_is_no_error(content: bytes, start: int, tmp_path: Path) -> None:
    with Path(sys.executable).open("rb") as file:
        real = file.read(4096)
    for text in (content, real[:start] + content + real[start + len(content) :], real[: start * 10]):
        (tmp_path / "program").write_bytes(text)
        program = read_program(tmp_path / "program")
        assert program is None or program.machine_name
