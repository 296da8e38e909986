# SPDX-License-Identifier: GPL-3.0-or-later
"""The results of release_trial for real releases and for programs that cannot run here, and that it does no harm."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.modules.release_trial import ARGUMENTS, problem_of

from support.harness import RELEASE, completed, run_module

if TYPE_CHECKING:
    from collections.abc import Callable

MACHINE = platform.machine()
FINE = "int main(void) { return 1; }\n"


def trial(release: Path, **arguments: object) -> dict[str, Any]:
    return run_module("release_trial", {"path": str(release), **arguments})


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Return the folder of an empty release."""
    tmp_path.chmod(0o755)
    (tmp_path / "bin").mkdir()
    return tmp_path


@pytest.fixture
def compiled(release: Path) -> Callable[..., Path]:
    """Return a function that compiles a C program into the release, as an RPC server."""

    def compile_program(code: str, *options: str) -> Path:
        path = release / "bin/rpc-server"
        subprocess.run(["cc", "-x", "c", "-o", path, "-", *options], input=code, text=True, check=True, timeout=300)
        return path

    return compile_program


@pytest.mark.llama
def test_a_release_that_was_built_here_runs_here() -> None:
    prefix = RELEASE.prefix / "current"
    assert sorted(trial(prefix)["programs"]) == sorted(path.name for path in (prefix / "bin").iterdir())


@pytest.mark.llama
@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_trial_initialises_the_cpu_back_end(name: str, release: Path) -> None:
    """Try a copy of a program with an illegal instruction at the start of ggml_cpu_init."""
    program, copy = RELEASE.bin / name, release / "bin" / name
    shutil.copy(program, copy)

    def shown(*command: str) -> str:
        return subprocess.run([*command, program], capture_output=True, text=True, check=True, timeout=300).stdout

    address = next(int(line.split()[0], 16) for line in shown("nm").splitlines() if line.endswith("T ggml_cpu_init"))
    loads = re.findall(r"^ +LOAD +0x(\w+) 0x(\w+) 0x\w+ 0x(\w+)", shown("readelf", "-lW"), re.MULTILINE)
    segments = [[int(number, 16) for number in load] for load in loads]
    offset, start = next((at, start) for at, start, size in segments if start <= address < start + size)
    with copy.open("r+b") as file:
        file.seek(address - start + offset)
        file.write({"x86_64": b"\x0f\x0b"}.get(MACHINE, bytes(4)))
    assert "uses an instruction that this CPU lacks" in trial(release)["msg"]


def machine_of_another(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[18:20] = (62 if MACHINE == "aarch64" else 183).to_bytes(2, "little")
    path.write_bytes(content)


def newer_glibc(path: Path) -> None:
    """Replace the versions that the linker recorded with one that does not exist."""
    path.write_bytes(re.sub(rb"GLIBC_2\.\d\d\0", b"GLIBC_2.99\0", path.read_bytes()))


# The program, compiler options, what happens to it afterwards, and the sentence.
PROGRAMS: dict[str, tuple[str, list[str], Callable[[Path], object], str]] = {
    "illegal-instruction": (
        "int main(void) { __builtin_trap(); }" if MACHINE == "x86_64" else 'int main(void) { __asm__("udf #0"); }',
        [],
        bool,
        "{path} uses an instruction that this CPU lacks: take a release of this host's CPU class, or build it here.",
    ),
    "crash": (
        "#include <signal.h>\nint main(void) { raise(SIGSEGV); }",
        [],
        bool,
        "{path} was ended by signal 11 as soon as it started: install the release again.",
    ),
    "hang": (
        "#include <unistd.h>\nint main(void) { for (;;) pause(); }",
        [],
        bool,
        "{path} did not end within 2 s: check what else keeps this host busy.",
    ),
    "other-C-library": (
        FINE,
        ["-Wl,--dynamic-linker=/lib/ld-nowhere.so.1"],
        bool,
        "{path} cannot be started (",
    ),
    "newer-glibc": (
        '#include <stdio.h>\nint main(void) { return puts(""); }',
        [],
        newer_glibc,
        "{path} cannot be loaded ({path}: ",
    ),
    "other-machine": (
        FINE,
        [],
        machine_of_another,
        f"{{path}} is built for another kind of machine than this one ({MACHINE}); build llama.cpp for it.",
    ),
    "text": (FINE, [], lambda path: path.write_text("not found\n" * 20), "{path} is not a program; install llama.cpp"),
    "not-executable": (FINE, [], lambda path: path.chmod(0o644), "{path} may not be run by this user; correct its"),
    "none": (FINE, [], Path.unlink, "There is no program in {folder}: install the release again."),
}


@pytest.mark.parametrize(("code", "options", "change", "said"), PROGRAMS.values(), ids=PROGRAMS.keys())
def test_why_a_program_cannot_run_is_said(
    code: str, options: list[str], change: Callable[[Path], object], said: str, compiled: Callable[..., Path]
) -> None:
    path = compiled(code, *options)
    change(path)
    result = trial(path.parents[1], **({"timeout": 2} if "for (;;)" in code else {}))
    assert result["failed"]
    assert result["msg"].startswith(said.format(path=path, folder=path.parent))
    assert "\n" not in result["msg"]
    assert not list(path.parents[1].rglob("core*"))
    running = completed("pgrep", "-f", f"^{path}")
    assert running.stdout == "", "the program was left running"


LOADED = "cannot be loaded ({}): install the library that is missing, or take a release that was built on this system"


@pytest.mark.parametrize(
    ("status", "output", "said"),
    [
        (0, "version: 1\n", ""),
        (1, "error: unknown argument: --version\n", ""),
        (
            127,
            "rpc-server: error while loading shared libraries: libgomp.so.1: cannot open shared object file: gone\n",
            LOADED.format(
                "rpc-server: error while loading shared libraries: libgomp.so.1: cannot open shared object file: gone"
            ),
        ),
        (
            127,
            "Error loading shared library libgomp.so.1: No such file or directory (needed by rpc-server)\n",
            LOADED.format(
                "Error loading shared library libgomp.so.1: No such file or directory (needed by rpc-server)"
            ),
        ),
        (
            1,
            "a: /lib/libc.so.6: version `GLIBC_2.38' not found (required by a)\n",
            LOADED.format("a: /lib/libc.so.6: version `GLIBC_2.38' not found (required by a)"),
        ),
        (127, "a: CPU ISA level is lower than required\n", "uses an instruction that this CPU lacks: take"),
        (126, "a: Permission denied\x1b[2J\n", "cannot be started (a: Permission denied\ufffd[2J): check"),
        (127, "", "cannot be started (exit status 127): check"),
    ],
    ids=["fine", "own-status", "glibc", "musl", "version", "level", "folder", "nothing-said"],
)
def test_the_end_of_a_run_is_explained(status: int, output: str, said: str) -> None:
    found = problem_of(status, output)
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_features_that_the_host_lacks_are_named_before_anything_runs(compiled: Callable[..., Path]) -> None:
    folder = compiled("#include <unistd.h>\nint main(void) { for (;;) pause(); }").parents[1]
    has, lacks = ("fpu", "sve2") if MACHINE == "x86_64" else ("fp", "avx2")
    manifest = {"cpu_class": {"machine": MACHINE, "features": [has, lacks]}, "programs": ["rpc-server"]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert trial(folder)["msg"].startswith(
        f"{folder} cannot run on this host: it uses CPU features that this host lacks ({lacks}): take a release"
    )
    compiled(FINE)
    manifest["cpu_class"]["features"] = [has]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert trial(folder)["programs"] == ["rpc-server"]


# Says, and ends with 127, what a program of a stranger may not be, have or do.
PROBE = """
#include <arpa/inet.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    int bits = getuid() == 0, value;
    unsigned long long caps = 1;
    char line[256];
    FILE * status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status)) {
        if (sscanf(line, "CapEff: %%llx", &caps) == 1 && caps) bits |= 2;
        if (sscanf(line, "NoNewPrivs: %%d", &value) == 1 && !value) bits |= 4;
    }
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(%d), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    if (connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *) &to, sizeof to) == 0) bits |= 8;
    if (access("%s", R_OK) == 0) bits |= 16;
    printf("has %%d", bits);
    return 127;
}
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take privileges from a program")
def test_a_program_has_no_privileges_and_no_network(
    compiled: Callable[..., Path], release: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    mine = tmp_path_factory.mktemp("home") / "mine"
    mine.touch(0o644)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        compiled(PROBE % (listener.getsockname()[1], mine))
        result = trial(release)
        assert "(has 0)" in result["msg"]
        assert "warnings" not in result
        # The account may not read this release.
        release.chmod(0o700)
        result = trial(release)
    assert "(has 31)" in result["msg"]
    said = f"The programs of {release}/bin run as root with the network, because the account nobody may not read"
    assert f"{said} {release}: let every account read it." in str(result["warnings"])


def test_a_time_limit_that_is_none_is_an_error(release: Path) -> None:
    assert trial(release, timeout=0)["msg"] == "timeout must be at least 1 second, not 0."
