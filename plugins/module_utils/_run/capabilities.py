# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: what a llama.cpp build is and can do, as data, from its own `--version` and `--help` and its manifest.

Builds from b8492 on can be run: role llama_cpp refuses older ones. `--help` is preferred to the build number, because a
build from a source archive calls itself build 0 or 1.
"""

from __future__ import annotations

import json
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping

COMPLETION_PROGRAM = "llama-completion"
BENCH_PROGRAM = "llama-bench"
SERVER_PROGRAM = "llama-server"

# The RPC protocol of source archives in use, by commit, because their builds have no real build number.
# (ggml/include/ggml-rpc.h at that commit, RPC_PROTO_*_VERSION)
PROTOCOL_BY_COMMIT = {
    "f449e05": "4.0.1",
    "e3546c7": "4.0.2",
    "4df29be": "5.0.0",
    "0c1e570": "7.0.0",
}

# From b9151 on, each line begins with a time and a level, and device and buffer lines have the level "trace".
_TRACE_LEVEL = re.compile(r"^ +- (\d+): trace\b", re.MULTILINE)

# llama-bench says in its help which values these options take. (tools/llama-bench/llama-bench.cpp, print_usage)
_BENCH_VALUES = r"^ +-\w+, {option} +<([\w|]+)>"
# Builds of early 2026 take numbers.
_FLASH_ATTN_NUMBERS = {"on": "1", "off": "0"}

_VERSION_NUMBERED = re.compile(r"^version: (\d+) \(([0-9a-f]{6,40}|unknown)\)", re.MULTILINE)
_VERSION_NAMED = re.compile(r"^version: (\S+) \(build (\d+), commit ([0-9a-f]{6,40}|unknown)\)", re.MULTILINE)
_PROTOCOL = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){2}")
_OPTION_NAMES = re.compile(r"^ {0,2}-{1,2}[A-Za-z][\w-]*(?:, +-{1,2}[A-Za-z][\w-]*)*", re.MULTILINE)


class BinaryError(Exception):
    """There is no llama.cpp program here that can run; the message is one sentence."""


@dataclass(frozen=True)
class Program:
    """A llama.cpp program: its identity, and what it says in its help."""

    program: str
    version: str | None
    build_number: int | None
    commit: str | None
    # "7.0.0", or None if neither the manifest nor the commit tells it.
    protocol: str | None
    # The sorted names of the patches of its build; None if no manifest names them.
    patches: tuple[str, ...] | None
    # The spellings of each option: {-m, --model}, ...
    options: tuple[frozenset[str], ...]
    usage: str

    def has(self, option: str) -> bool:
        """Return whether `--help` names this option."""
        return any(option in names for names in self.options)

    def spellings(self, option: str) -> frozenset[str]:
        """Return all spellings of an option, itself included."""
        return next((names for names in self.options if option in names), frozenset([option]))

    @property
    def verbosity(self) -> tuple[str, ...]:
        """The arguments that put the lines about devices, buffers and offloaded layers into the log."""
        trace = _TRACE_LEVEL.search(self.usage)
        return ("-lv", trace.group(1)) if trace else ()

    def values(self, option: str) -> list[str]:
        """Return which values an option takes, as llama-bench says; none if it does not."""
        found = re.search(_BENCH_VALUES.format(option=option), self.usage, re.MULTILINE)
        return found[1].split("|") if found else []

    @property
    def flash_attn(self) -> Mapping[str, str]:
        """How llama-bench spells on, off and auto."""
        words = self.values("--flash-attn")
        return {word: word for word in words} if "on" in words else _FLASH_ATTN_NUMBERS


def find_program(bin_folder: str, name: str = COMPLETION_PROGRAM) -> str:
    """Return the path of a program in a folder. Raises BinaryError if it is not there, or not for this machine."""
    folder = Path(bin_folder)
    if not folder.is_dir():
        raise BinaryError(f"There is no folder {bin_folder}; install llama.cpp there, or set bin_folder.")
    path = folder / name
    if not path.exists() and not path.is_symlink():
        raise BinaryError(f"There is no {name} in {bin_folder}; install llama.cpp there, or set bin_folder.")
    check_program(path)
    return str(path)


def check_program(path: Path) -> None:
    """Raise BinaryError if a file cannot be run here. A shell would run a file of unknown format as a script."""
    if not path.is_file():
        raise BinaryError(f"{path} is not a file; install llama.cpp again.")
    if not os.access(path, os.X_OK | os.R_OK):
        raise BinaryError(f"{path} may not be run by this user; correct its permissions, or run as another user.")
    head, ours = _head(path), _head(Path("/proc/self/exe"))
    if head[:2] == b"#!":
        return
    if len(head) < len(ours) or head[:4] != ours[:4]:
        raise BinaryError(f"{path} is not a program; install llama.cpp again.")
    # The machine, in the header of ELF.
    if head[18:] != ours[18:]:
        machine = platform.machine()
        raise BinaryError(
            f"{path} is built for another kind of machine than this one ({machine}); build llama.cpp for it."
        )


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(20)


def read_manifest(bin_folder: str) -> Mapping[str, object]:
    """Return the manifest of the release that a `bin` folder belongs to, or an empty one."""
    try:
        manifest = json.loads((Path(bin_folder).resolve().parent / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _identity(program: str, version_text: str) -> tuple[str | None, int | None, str | None]:
    """Return version, build number and commit."""
    named = _VERSION_NAMED.search(version_text)
    if named:
        version, build, commit = named.groups()
        return version, int(build), None if commit == "unknown" else commit
    numbered = _VERSION_NUMBERED.search(version_text)
    if numbered:
        build, commit = numbered.groups()
        return None, int(build), None if commit == "unknown" else commit
    raise BinaryError(f"{program} does not answer --version as llama.cpp does; set bin_folder to a llama.cpp release.")


def _release(commit: str | None, manifest: Mapping[str, object]) -> tuple[str | None, str | None]:
    """Return commit and RPC protocol, as exactly as the release's manifest has them."""
    source = manifest.get("source")
    full_commit = _text(source.get("commit")) if isinstance(source, dict) else None
    if full_commit and (commit is None or full_commit.startswith(commit)):
        commit = full_commit
    stated = _text(manifest.get("rpc_protocol"))
    if stated is None or not _PROTOCOL.fullmatch(stated):
        stated = None
    return commit, stated or PROTOCOL_BY_COMMIT.get((commit or "")[:7])


def _patches(manifest: Mapping[str, object]) -> tuple[str, ...] | None:
    """Return the names of a release's patches, sorted, because their order does not change the build."""
    patches = manifest.get("patches")
    if not isinstance(patches, list):
        return None
    names = [_text(patch.get("name")) if isinstance(patch, dict) else None for patch in patches]
    return None if None in names else tuple(sorted(name for name in names if name))


def describe(program: str, version_text: str, help_text: str, manifest: Mapping[str, object]) -> Program:
    """Return what a build is and can do, from its own output and its manifest. Raises BinaryError if it is unusable."""
    return _described(program, _identity(program, version_text), help_text, manifest)


def describe_bench(program: str, version_text: str, help_text: str, manifest: Mapping[str, object]) -> Program:
    """Return a build of llama-bench, as `describe` does; those before protocol 7 do not answer --version."""
    known = frozenset().union(*_options(help_text))
    if not {"--n-prompt", "--n-gen", "--verbose"} <= known:
        raise BinaryError(
            f"{program} does not answer --help as llama-bench does; set bin_folder to a llama.cpp release."
        )
    identity = _identity(program, version_text) if "--version" in known else (None, None, None)
    return _described(program, identity, help_text, manifest)


def _described(
    program: str,
    identity: tuple[str | None, int | None, str | None],
    help_text: str,
    manifest: Mapping[str, object],
) -> Program:
    options = _options(help_text)
    if "--rpc" not in frozenset().union(*options):
        raise BinaryError(f"{program} was built without RPC; build llama.cpp with GGML_RPC=ON.")
    version, build_number, commit = identity
    commit, protocol = _release(commit, manifest)
    return Program(program, version, build_number, commit, protocol, _patches(manifest), options, help_text)


def _options(help_text: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(re.split(r", +", names.strip())) for names in _OPTION_NAMES.findall(help_text))
