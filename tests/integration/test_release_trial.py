# SPDX-License-Identifier: GPL-3.0-or-later
"""The results of release_trial for real releases and for programs that cannot run here, and that it does no harm."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release import trial as trials

from support.harness import RELEASE, free_port, run_module

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.llama

MACHINE = platform.machine()
OTHER = {"x86_64": ("aarch64", 183)}.get(MACHINE, ("x86_64", 62))
ILLEGAL = {"x86_64": b"\x0f\x0b", "aarch64": bytes(4)}
BUILT = [
    pytest.param(release.version, name, id=f"{release.version}-{name}")
    for release, names in ((RELEASE, "llama-bench llama-cli llama-completion llama-quantize llama-server rpc-server"),)
    for name in names.split()
]


def program_of(version: str, name: str) -> Path:
    path = RELEASE.bin / name
    if not path.exists():
        pytest.fail(f"llama.cpp of archive {version} is not built: run `make test`, which builds it first")
    return path


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
        subprocess.run(["cc", "-x", "c", "-o", path, "-", *options], input=code, text=True, check=True, timeout=60)
        return path

    return compile_program


def test_a_release_that_was_built_here_runs_here() -> None:
    prefix = RELEASE.prefix / "current"
    result = trial(prefix)
    assert result["failure"] is None
    assert {program["name"] for program in result["programs"]} == {path.name for path in (prefix / "bin").iterdir()}
    assert trial(prefix, programs=["rpc-server"])["programs"][0]["name"] == "rpc-server"


def with_illegal_instruction(program: Path, symbol: str, copy: Path) -> None:
    """Copy a program and put an illegal instruction at the start of one of its functions."""
    shutil.copy(program, copy)
    symbols = subprocess.run(["nm", program], capture_output=True, text=True, check=True, timeout=60).stdout
    address = int(re.search(rf"^([0-9a-f]+) [tT] {symbol}$", symbols, re.MULTILINE).group(1), 16)
    segments = subprocess.run(
        ["readelf", "-lW", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    for offset, start, size in re.findall(r"^ +LOAD +0x(\w+) 0x(\w+) 0x\w+ 0x(\w+)", segments, re.MULTILINE):
        if 0 <= address - int(start, 16) < int(size, 16):
            with copy.open("r+b") as file:
                file.seek(address - int(start, 16) + int(offset, 16))
                file.write(ILLEGAL[MACHINE])
            return
    pytest.fail(f"{program} has no segment with {symbol}")


@pytest.mark.parametrize(("version", "name"), BUILT)
def test_the_trial_initialises_the_cpu_back_end(version: str, name: str, release: Path) -> None:
    with_illegal_instruction(program_of(version, name), "ggml_cpu_init", release / "bin" / name)
    result = trial(release)
    assert result["failure"] == {"kind": "illegal_instruction", "program": name}
    assert result["msg"] == (
        f"{release}/bin/{name} uses an instruction that this CPU lacks: take a release of this host's CPU class, or "
        "build it here."
    )
    assert not list(release.rglob("core*"))


@pytest.mark.parametrize(("version", "name"), BUILT)
def test_the_trial_opens_no_port(version: str, name: str, tmp_path: Path) -> None:
    code = "#include <stdlib.h>\nint bind(int fd, const void *a, unsigned n) { abort(); }\n"
    shim = tmp_path / "no_bind.so"
    subprocess.run(["cc", "-x", "c", "-shared", "-o", shim, "-"], input=code, text=True, check=True, timeout=60)
    arguments = [[*trials.arguments(name)]]
    if name == "rpc-server":  # and the shim reports an opened port
        arguments.append(["-H", "127.0.0.1", "-p", str(free_port())])
    statuses = [
        subprocess.run(
            [program_of(version, name), *given],
            env={**os.environ, "LD_PRELOAD": str(shim)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        ).returncode
        for given in arguments
    ]
    assert statuses[0] in (0, 1)
    assert statuses[1:] in ([], [-signal.SIGABRT])


LOOP = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"
FINE = "int main(void) { return 1; }\n"

# The program, compiler options, the module's arguments, the kind of failure, and the message.
COMPILED: dict[str, tuple[str, list[str], dict[str, Any], str, str]] = {
    "illegal-instruction": (
        "int main(void) { __builtin_trap(); }" if MACHINE == "x86_64" else 'int main(void) { __asm__("udf #0"); }',
        [],
        {},
        "illegal_instruction",
        "{bin}/rpc-server uses an instruction that this CPU lacks: take",
    ),
    "crash": (
        "#include <signal.h>\nint main(void) { raise(SIGSEGV); }",
        [],
        {},
        "crashed",
        "{bin}/rpc-server was ended by SIGSEGV as soon as it started: install the release again.",
    ),
    "hang": (LOOP, [], {"timeout": 1}, "timed_out", "{bin}/rpc-server did not end within 1 s: check"),
    "other-C-library": (
        FINE,
        ["-Wl,--dynamic-linker=/lib/ld-nowhere.so.1"],
        {},
        "libc_missing",
        "{bin}/rpc-server needs the C library of /lib/ld-nowhere.so.1, which this host does not have: take",
    ),
}


@pytest.mark.parametrize(("code", "options", "arguments", "kind", "said"), COMPILED.values(), ids=COMPILED.keys())
def test_a_program_that_cannot_run_is_explained(
    code: str,
    options: list[str],
    arguments: dict[str, Any],
    kind: str,
    said: str,
    compiled: Callable[..., Path],
    release: Path,
) -> None:
    path = compiled(code, *options)
    result = trial(release, **arguments)
    assert result["failure"] == {"kind": kind, "program": "rpc-server"}
    assert result["msg"].startswith(said.format(bin=release / "bin"))
    assert "\n" not in result["msg"]
    running = subprocess.run(["pgrep", "-f", f"^{path}"], capture_output=True, text=True, check=False, timeout=60)
    assert running.stdout == "", "the program was left running"


def test_a_library_that_is_not_there_is_named(compiled: Callable[..., Path], release: Path) -> None:
    library = release / "libggml_gone.so.1"
    subprocess.run(
        ["cc", "-x", "c", "-shared", "-Wl,-soname,libggml_gone.so.1", "-o", library, "-"],
        input="int gone(void) { return 0; }",
        text=True,
        check=True,
        timeout=60,
    )
    compiled("int gone(void);\nint main(void) { return gone(); }", "-x", "none", str(library))
    library.unlink()
    result = trial(release)
    assert result["failure"]["kind"] == "library_missing"
    assert "rpc-server needs the library libggml_gone.so.1, which this host does not have: install" in result["msg"]


def test_a_newer_glibc_that_is_needed_is_named(compiled: Callable[..., Path], release: Path) -> None:
    path = compiled("#include <stdio.h>\n" + FINE.replace("return 1", 'return puts("")'))
    # Replace the versions that the linker recorded with one that does not exist.
    path.write_bytes(re.sub(rb"GLIBC_2\.\d\d\0", b"GLIBC_2.99\0", path.read_bytes()))
    result = trial(release)
    assert result["failure"] == {"kind": "libc_too_old", "program": "rpc-server"}
    has = os.confstr("CS_GNU_LIBC_VERSION").split()[1]
    assert f"rpc-server needs glibc 2.99, this host has {has}: take a release" in result["msg"]


def test_a_program_for_another_machine_is_not_started(compiled: Callable[..., Path], release: Path) -> None:
    name, number = OTHER
    path = compiled(FINE)
    content = bytearray(path.read_bytes())
    content[18:20] = number.to_bytes(2, "little")
    path.write_bytes(content)
    result = trial(release)
    assert result["failure"] == {"kind": "wrong_machine", "program": "rpc-server"}
    assert result["programs"] == []
    assert result["msg"] == f"{path} is for {name}, this host is {MACHINE}: take a release for {MACHINE}."


@pytest.mark.skipif(MACHINE != "x86_64", reason="it compiles for the other machine")
@pytest.mark.skipif(not shutil.which("aarch64-linux-gnu-gcc"), reason="there is no cross compiler")
def test_a_program_from_a_cross_compiler_is_not_started(release: Path) -> None:
    path = release / "bin/rpc-server"
    subprocess.run(["aarch64-linux-gnu-gcc", "-x", "c", "-o", path, "-"], input=FINE, text=True, check=True, timeout=60)
    assert trial(release)["msg"] == f"{path} is for aarch64, this host is x86_64: take a release for x86_64."


def test_what_the_host_lacks_is_named_before_anything_runs(compiled: Callable[..., Path], release: Path) -> None:
    compiled(LOOP)
    has, lacks = ("fpu", "sve2") if MACHINE == "x86_64" else ("fp", "avx2")
    manifest = {"cpu_class": {"machine": MACHINE, "features": [has, lacks]}, "programs": ["rpc-server"]}
    (release / "manifest.json").write_text(json.dumps(manifest))
    result = trial(release)
    assert result["failure"] == {"kind": "feature_missing", "program": None}
    assert result["programs"] == []
    assert result["msg"].startswith(
        f"{release} cannot run on this host: it uses CPU features that this host lacks ({lacks}): take a release"
    )


def test_the_features_of_this_host_are_looked_at(compiled: Callable[..., Path], release: Path) -> None:
    compiled(FINE)
    known = "sse4_2" if MACHINE == "x86_64" else "asimd"
    (release / "manifest.json").write_text(json.dumps({"cpu_class": {"machine": MACHINE, "features": [known]}}))
    assert trial(release)["failure"] is None
    (release / "manifest.json").write_text(json.dumps({"cpu_class": {"machine": MACHINE, "features": ["mmx9"]}}))
    assert "(mmx9)" in trial(release)["msg"]


# Ends with 32, and one bit for each thing that a program of a stranger may not be, have or do.
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
    return 32 + bits;
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
        assert [program["exit_status"] for program in result["programs"]] == [32]
        assert "warnings" not in result
        # The account may not read this release.
        release.chmod(0o700)
        result = trial(release)
    assert result["programs"][0]["exit_status"] & 1
    said = f"The programs of {release}/bin run as root with the network, because the account nobody may not read"
    assert f"{said} {release}: let every account read it." in str(result["warnings"])


def put(path: Path, content: bytes, mode: int = 0o755) -> None:
    path.write_bytes(content)
    path.chmod(mode)


FILES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "no-program": (lambda _path: None, "missing", "There is no program in {bin}: install"),
    "folder": (lambda path: path.mkdir(), "missing", "there is no program {bin}/rpc-server: install"),
    "text": (
        lambda path: put(path, b"not found\n" * 20),
        "not_a_program",
        "{bin}/rpc-server is not a program: install",
    ),
    "empty": (lambda path: put(path, b""), "not_a_program", "{bin}/rpc-server is not a program: install"),
    "not-executable": (
        lambda path: put(path, b"\x7fELF", 0o644),
        "not_executable",
        "{bin}/rpc-server is not executable:",
    ),
    "cut-off": (
        lambda path: put(path, Path("/bin/sh").read_bytes()[:3000]),
        "crashed|not_loaded|not_started",
        "{bin}/rpc-server ",
    ),
}


@pytest.mark.parametrize(("make", "kind", "said"), FILES.values(), ids=FILES.keys())
def test_a_file_that_is_no_program_is_explained(
    make: Callable[[Path], None], kind: str, said: str, release: Path
) -> None:
    make(release / "bin/rpc-server")
    result = trial(release, **({} if kind == "missing" and said.startswith("There") else {"programs": ["rpc-server"]}))
    assert re.fullmatch(kind, result["failure"]["kind"])
    assert result["msg"].startswith(said.format(bin=release / "bin"))
    assert "\n" not in result["msg"]


def test_a_time_limit_that_is_none_is_an_error(release: Path) -> None:
    assert trial(release, timeout=0)["msg"] == "timeout must be at least 1 second, not 0."
