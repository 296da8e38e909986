# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: whether the programs of a release can run on a host, from their files and the end of a short run."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .cpu_class import short_words
from .elf import read_program

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

# The arguments with which a program initialises the CPU back end (ggml_cpu_init), needs neither model, port nor GPU,
# and ends. They were found by putting an illegal instruction at the start of ggml_cpu_init of 0.3.16 and of 0.3.36 and
# checking which arguments reach it; tests/integration/test_release_trial.py repeats that. --version and --help do not
# always reach it.
_LIST_DEVICES = ("--list-devices",)
_ARGUMENTS = {
    # It lists the devices and ends. If it went on, it could not listen, because the host name has no address.
    # (tools/rpc/rpc-server.cpp, create_server_socket in ggml/src/ggml-rpc)
    "rpc-server": ("-H", "no-address", "-d", "no-such-device"),
    # It initialises the back ends before it opens the model. Nothing can exist below a file. (tools/quantize)
    "llama-quantize": ("/dev/null/no-model", "/dev/null/no-output", "Q8_0"),
    # All others that have upstream's common options: the first call of common_params_parse loads the back ends.
    **dict.fromkeys(("llama-cli", "llama-completion", "llama-server", "llama-bench"), _LIST_DEVICES),
}
# Variables that could make the programs do more: settings of upstream's own options, and preloaded libraries.
WITHOUT_ENVIRONMENT = ("LLAMA_", "GGML_", "HF_", "LD_")
# Hides all GPUs: using one takes long, or takes memory of a busy one.
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1", "LC_ALL": "C"}

# Messages of the loaders of glibc and musl, which exit with 1 or 127.
_LIBRARY = re.compile(
    r"error while loading shared libraries: ([^:\s]+): cannot open shared object file"
    r"|^Error loading shared library ([^:\s]+):",
    re.MULTILINE,
)
_VERSION = re.compile(r"version `([A-Z]+)_([0-9.]+)' not found \(required by")
_LOADER = re.compile(
    r"error while loading shared libraries: (.+)|^Error relocating [^:]+: (.+)|^\S+: (symbol lookup error: .+)",
    re.MULTILINE,
)
# Exit statuses above 128 plus this are the program's own, such as 255 for -1.
_LAST_SIGNAL = 64
# "CPU ISA level is lower than required" (glibc 2.33 on): the program was linked for a newer x86-64 level.
_ISA_LEVEL = "CPU ISA level is lower than required"


@dataclass(frozen=True)
class Problem:
    """The reason why a program cannot run on this host."""

    kind: str
    message: str
    """One sentence without its end: what is wrong, and what to do."""


def arguments(program: str) -> tuple[str, ...]:
    """Return the arguments of a harmless run."""
    return _ARGUMENTS.get(program, ("--version",))


def check_file(path: Path, machine: str) -> Problem | None:
    """Return the problem of a program's file (missing, not a program, wrong machine or C library), or None."""
    if not path.is_file():
        return Problem("missing", f"there is no program {path}: install the release again")
    if not os.access(path, os.X_OK):
        return Problem("not_executable", f"{path} is not executable: correct its mode, or install the release again")
    try:
        program = read_program(path)
    except OSError as error:
        return Problem("not_a_program", f"{path} cannot be read ({error.strerror}): install the release again")
    if program is None:
        return Problem("not_a_program", f"{path} is not a program: install the release again")
    if not program.fits(machine):
        return Problem(
            "wrong_machine",
            f"{path} is for {program.machine_name}, this host is {machine}: take a release for {machine}",
        )
    if program.loader is not None and not os.path.exists(program.loader):  # noqa: PTH110 - a text of the file
        return Problem(
            "libc_missing",
            f"{path} needs the C library of {program.loader}, which this host does not have: take a release for the "
            "C library of this host",
        )
    return None


def check_features(manifest: Mapping[str, Any], words: Collection[str]) -> Problem | None:
    """Return the problem of a release built for features that are not among a CPU's words, None if it has none."""
    built_for = manifest.get("cpu_class")
    if not isinstance(built_for, dict):
        return None
    features = built_for.get("features")
    missing = [word for word in features if word not in words] if isinstance(features, list) else []
    if not missing:
        return None
    names = ", ".join(short_words(str(built_for.get("machine")), map(str, missing)))
    return Problem(
        "feature_missing",
        f"it uses CPU features that this host lacks ({names}): take a release of this host's CPU class, or leave them "
        "out of llama_cpp_cpu_features where it is built",
    )


def check_run(path: Path, exit_status: int, output: str, timed_out: bool, timeout: int, libc: str) -> Problem | None:
    """Return the problem that the end of a run shows, or None. `exit_status` is a shell's, `libc` is the host's."""
    if timed_out:
        return Problem("timed_out", f"{path} did not end within {timeout} s: check what else keeps this host busy")
    if 128 < exit_status <= 128 + _LAST_SIGNAL:
        return _by_signal(path, exit_status - 128)
    if exit_status in (126, 127) or exit_status == 1:
        loading = _loading(path, output, libc)
        if loading is not None:
            return loading
    if exit_status in (126, 127):
        return Problem(
            "not_started",
            f"{path} cannot be started ({_last_line(output) or f'exit status {exit_status}'}): check whether programs "
            "may be run from that folder, and install the release again",
        )
    return None


def _loading(path: Path, output: str, libc: str) -> Problem | None:
    """Return the problem that the loader of a program reported, or None."""
    versions: list[tuple[str, str]] = _VERSION.findall(output)
    needed = sorted((_numbers(version), version) for family, version in versions if family == "GLIBC")
    if needed:
        newest = needed[-1][1]
        has = re.sub(r"^glibc\s+", "", libc) or "an older one"
        return Problem(
            "libc_too_old",
            f"{path} needs glibc {newest}, this host has {has}: take a release that was built against the C library of "
            "this host or an older one",
        )
    if versions:
        family, newest = max(versions, key=lambda version: (version[0], _numbers(version[1])))
        return Problem(
            "library_too_old",
            f"{path} needs {family} {newest} of the C++ runtime, this host has an older one: take a release that has "
            "it inside, or one that was built on an older system",
        )
    library = _LIBRARY.search(output)
    if library:
        return Problem(
            "library_missing",
            f"{path} needs the library {library.group(1) or library.group(2)}, which this host does not have: install "
            "it, or take a release that has it inside",
        )
    if _ISA_LEVEL in output:
        return _illegal_instruction(path)
    loader = _LOADER.search(output)
    if loader:
        said = " ".join(next(filter(None, loader.groups())).split())
        return Problem(
            "not_loaded", f"{path} cannot be loaded ({said}): take a release for this host, or install it again"
        )
    return None


def _by_signal(path: Path, number: int) -> Problem:
    if number == signal.SIGILL:
        return _illegal_instruction(path)
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return Problem("crashed", f"{path} was ended by {name} as soon as it started: install the release again")


def _illegal_instruction(path: Path) -> Problem:
    return Problem(
        "illegal_instruction",
        f"{path} uses an instruction that this CPU lacks: take a release of this host's CPU class, or build it here",
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d{1,9}", version))


def _last_line(output: str) -> str:
    return next((" ".join(line.split()) for line in reversed(output.splitlines()) if line.strip()), "")


def programs_of(manifest: Mapping[str, Any], bin_folder: Path) -> list[str]:
    """Return the programs that a release's manifest names, or else those in its folder."""
    said = manifest.get("programs")
    if isinstance(said, list) and said and all(isinstance(name, str) for name in said):
        return list(said)
    # Backends that are loaded at run time (.so) are in the same folder.
    return sorted(path.name for path in bin_folder.glob("*") if path.is_file() and ".so" not in path.name)
