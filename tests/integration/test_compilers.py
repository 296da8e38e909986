# SPDX-License-Identifier: GPL-3.0-or-later
"""Compilers and upstream's CMake switch on the features of a CPU class, and no others."""

from __future__ import annotations

import platform
import re
import shutil
import tarfile

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.cpu_class import _FEATURES, CpuClass, cpu_class

from support.harness import CACHE, RELEASE, completed
from support.pinned_source import archive_name, inside

# The macros that a compiler defines if it may use a feature.
MACROS = {
    "aarch64": {
        "asimddp": "__ARM_FEATURE_DOTPROD",
        "asimdhp": "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC",
        "i8mm": "__ARM_FEATURE_MATMUL_INT8",
        "bf16": "__ARM_FEATURE_BF16_VECTOR_ARITHMETIC",
        "sve": "__ARM_FEATURE_SVE",
        "sve2": "__ARM_FEATURE_SVE2",
        "sme": "__ARM_FEATURE_SME",
        "atomics": "__ARM_FEATURE_ATOMICS",
        "asimdrdm": "__ARM_FEATURE_QRDMX",
        "crc32": "__ARM_FEATURE_CRC32",
    },
    "x86_64": {
        "sse4_2": "__SSE4_2__",
        "popcnt": "__POPCNT__",
        "xsave": "__XSAVE__",
        "avx": "__AVX__",
        "f16c": "__F16C__",
        "fma": "__FMA__",
        "bmi2": "__BMI2__",
        "avx2": "__AVX2__",
        "avx_vnni": "__AVXVNNI__",
        "avx512f": "__AVX512F__",
        "avx512cd": "__AVX512CD__",
        "avx512bw": "__AVX512BW__",
        "avx512dq": "__AVX512DQ__",
        "avx512vl": "__AVX512VL__",
        "avx512vbmi": "__AVX512VBMI__",
        "avx512_vnni": "__AVX512VNNI__",
        "avx512_bf16": "__AVX512BF16__",
        # No class has these features, and no other feature may bring them along: ggml has no code for them, or the role
        # switches that code off (AMX).
        "amx_int8": "__AMX_INT8__",
        "avx512_vbmi2": "__AVX512VBMI2__",
        "avx512_fp16": "__AVX512FP16__",
        "bmi1": "__BMI__",
        "sha_ni": "__SHA__",
    },
}
# x86 allows thousands of combinations. These are the ones of CPUs that are sold, the smallest one with each feature,
# and all features together.
X86 = [
    "",
    "bmi2",
    "avx f16c",
    "avx2 f16c fma bmi2",
    "avx2 f16c fma bmi2 avx_vnni",
    "avx512f bmi2",
    "avx512f bmi2 avx512vbmi avx512_vnni",
    "avx512f bmi2 avx512vbmi avx512_vnni avx512_bf16",
    *_FEATURES["x86_64"],
    " ".join(_FEATURES["x86_64"]),
]
ARM_FEATURES = [word for word in _FEATURES["aarch64"] if word != "sme"]
ARM = ["", *ARM_FEATURES, " ".join(ARM_FEATURES)]


def class_of(machine: str, features: str) -> CpuClass:
    """Return the class for these features and the features that they need, on a CPU that has all features."""
    known = _FEATURES[machine]
    cpu = " ".join(word for name, feature in known.items() for word in (name, *feature.also))
    return cpu_class(machine, cpu, features=features.split() or ["baseline"])


def compiler_for(machine: str) -> str:
    """Return a compiler for a machine."""
    if machine == platform.machine():
        return "cc"
    name = f"{machine.replace('_', '-')}-linux-gnu-gcc"
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name}")
    return name


def defined(machine: str, flags: list[str]) -> set[str]:
    """Return the features that a compiler may use with these flags."""
    done = completed(compiler_for(machine), *flags, "-dM", "-E", "-x", "c", "/dev/null")
    assert done.returncode == 0, done.stderr
    macros = {line.split()[1] for line in done.stdout.splitlines()}
    return {word for word, macro in MACROS[machine].items() if macro in macros}


@pytest.mark.parametrize(
    ("machine", "features"),
    [("aarch64", features) for features in sorted(set(ARM))]
    + [("x86_64", features) for features in dict.fromkeys(X86)],
)
def test_compilers_use_the_features_of_a_class_and_no_others(machine: str, features: str) -> None:
    found = class_of(machine, features)
    # A feature may bring these along. It counts only if the host has them too.
    allowed = set(found["features"]).union(*(_FEATURES[machine][word].also for word in found["features"]))
    used = defined(machine, found["flags"])
    assert used & set(_FEATURES[machine]) == set(found["features"])
    assert used <= allowed | ({"crc32"} & used)


@pytest.mark.parametrize("machine", ["x86_64", "loongarch64", "riscv64", "s390x"])
def test_no_option_of_upstream_is_left_to_its_default(machine: str) -> None:
    version = RELEASE.version
    archive = CACHE / "sources" / f"{archive_name(version)}.tar.gz"
    if not archive.exists():
        pytest.fail(f"there is no {archive}: run `make test`, which fetches it")
    with tarfile.open(archive) as source:
        member = source.extractfile(f"{inside(version)}/ggml/CMakeLists.txt")
        assert member is not None
        text = member.read().decode()
    section = text.partition("# instruction set specific")[2].partition("# ggml core")[0]
    options = set(re.findall(r"option\((GGML_\w+)", section))
    assert "GGML_AVX512_BF16" in options, "upstream's file has changed"
    # These options choose no instructions: a library for memory, code that is chosen at run time, and the build of all
    # variants.
    options -= {"GGML_CPU_HBM", "GGML_CPU_REPACK", "GGML_CPU_KLEIDIAI", "GGML_CPU_ALL_VARIANTS"}
    others = {
        "loongarch64": {"GGML_LASX", "GGML_LSX"},
        "riscv64": {name for name in options if name.startswith(("GGML_RV", "GGML_XTHEAD"))},
        "s390x": {"GGML_VXE", "GGML_NNPA"} & options,
    }
    own = others.get(machine, options.difference(*others.values()))
    assert own <= set(cpu_class(machine, "")["cmake_options"])
