# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds of the default source that no role makes: unpatched and patched, with sanitizers, and for another machine.

The cache keeps them by their inputs, so a second run builds nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.collection import check_origin, read_patch
from support.harness import ARCHIVES, CACHE, DEFAULT, ROOT
from support.pinned_source import archive_name, unpack

ROLE = ROOT / "roles/llama_cpp"
VERSION = DEFAULT
# The patches that the role applies, in this order.
PATCHES = tuple(ARCHIVES[VERSION]["patches"])
ARCHIVE = CACHE / f"sources/{archive_name(VERSION)}.tar.gz"
LIMIT_S = 3600
# The options that the role uses.
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release", "BUILD_SHARED_LIBS": "OFF", "GGML_NATIVE": "ON", "GGML_RPC": "ON",
    "GGML_RPC_RDMA": "OFF", "GGML_BLAS": "OFF", "LLAMA_CURL": "OFF", "LLAMA_OPENSSL": "OFF", "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF", "LLAMA_BUILD_APP": "OFF", "LLAMA_BUILD_TESTS": "OFF", "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_SERVER": "OFF", "LLAMA_BUILD_NUMBER": "0", "FETCHCONTENT_FULLY_DISCONNECTED": "ON",
    # As in the role: with AMX, local inference of the small models of tests ends by a signal.
    "CMAKE_C_FLAGS": "-U__AMX_INT8__", "CMAKE_CXX_FLAGS": "-U__AMX_INT8__",
}  # fmt: skip
SANITIZED = {
    "CMAKE_BUILD_TYPE": "RelWithDebInfo", "GGML_SANITIZE_ADDRESS": "ON", "GGML_SANITIZE_UNDEFINED": "ON",
    "GGML_OPENMP": "OFF",
}  # fmt: skip
# For builds of which only the behaviour counts.
QUICK = {"CMAKE_C_FLAGS_RELEASE": "-O1 -DNDEBUG", "CMAKE_CXX_FLAGS_RELEASE": "-O1 -DNDEBUG"}
RACES = {"CMAKE_BUILD_TYPE": "RelWithDebInfo", "GGML_SANITIZE_THREAD": "ON", "GGML_OPENMP": "OFF"}
# For processors of either architecture that lack the instructions of the kernels.
OLD_CPU = {
    "GGML_NATIVE": "OFF", "GGML_SSE42": "ON", "GGML_AVX": "OFF", "GGML_AVX2": "OFF", "GGML_BMI2": "OFF",
    "GGML_FMA": "OFF", "GGML_F16C": "OFF", "GGML_CPU_ARM_ARCH": "armv8-a",
}  # fmt: skip
AARCH64 = {
    "CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": "aarch64", "CMAKE_C_COMPILER": "aarch64-linux-gnu-gcc",
    "CMAKE_CXX_COMPILER": "aarch64-linux-gnu-g++", "CMAKE_EXE_LINKER_FLAGS": "-static", "GGML_NATIVE": "OFF",
    "GGML_OPENMP": "OFF",
}  # fmt: skip


@dataclass(frozen=True)
class Build:
    """Programs in `bin`, as a release of the role has them."""

    bin: Path

    @property
    def rpc_server(self) -> Path:
        return self.bin / "ggml-rpc-server"


def _source(names: tuple[str, ...]) -> Path:
    """Return the folder of upstream's source with these patches of ours."""
    sha256 = hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()
    patches = [read_patch(ROLE / "files/patches" / VERSION / f"{name}.patch") for name in names]
    for patch in patches:
        check_origin(patch, sha256, "", ARCHIVE.name)
    content = hashlib.sha256("".join([sha256, *(patch.sha256 for patch in patches)]).encode()).hexdigest()
    tree = CACHE / "performance" / f"{'patched' if patches else 'stock'}-{content[:12]}"
    if not tree.exists():
        unpack(VERSION, tree, names)
    return tree


def build(name: str, options: dict[str, str], targets: list[str], patches: tuple[str, ...]) -> Build:
    (CACHE / "performance").mkdir(exist_ok=True)
    # With `pytest -n`, several processes share the builds.
    with (CACHE / "performance/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return built(name, options, targets, _source(patches))


def built(name: str, options: dict[str, str], targets: list[str], source: Path) -> Build:
    """Build programs of an unpacked source, in a subfolder of this name."""
    folder = source / name
    # The builds have most of their compiled files in common.
    ccache = {"CCACHE_DIR": str(CACHE / "ccache"), "CCACHE_BASEDIR": str(source.parent), "CCACHE_NOHASHDIR": "1"}
    environment = {**os.environ, **ccache}
    given = [f"-D{option}={value}" for option, value in {**OPTIONS, **options}.items()]
    for command in (
        ["cmake", "-S", source, "-B", folder, "-G", "Ninja", *given],
        ["cmake", "--build", folder, "--target", *targets],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return Build(folder / "bin")
