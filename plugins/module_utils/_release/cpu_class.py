# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the class of hosts that one build of llama.cpp serves, from a host's CPU and C library."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable, Sequence, TypedDict

# Asks for no features beyond those that every CPU of a machine has.
BASELINE = "baseline"
PORTABLE = "portable"


class CpuClassError(ValueError):
    """No class fits the host and the requested features; the message is one sentence."""


class CpuClass(TypedDict):
    """The class of hosts that a build is compiled for."""

    # Readable, usable as a file name, and unique for a machine, its features and its C library.
    name: str
    # As `uname -m` prints it.
    machine: str
    # As /proc/cpuinfo names them, in the order of the tables below.
    features: list[str]
    # "glibc 2.36", "musl", or empty if unknown.
    libc: str
    # The value of -march on aarch64, empty on other machines.
    march: str
    # The flags that a compiler must accept to build for the class.
    flags: list[str]
    # For ggml's CMake. Every feature option of the machine is set explicitly, because their defaults differ.
    cmake_options: dict[str, bool | str]


@dataclass(frozen=True)
class _Feature:
    # Its word in class names and in a user's list of features.
    short: str
    # Other features that the compiler assumes with it.
    needs: tuple[str, ...] = ()
    # Words of /proc/cpuinfo that the compiler assumes with it and that are not features of this table.
    also: tuple[str, ...] = ()
    # x86: ggml's option, and the flags that it adds. (ggml/src/ggml-cpu/CMakeLists.txt)
    option: str = ""
    flags: tuple[str, ...] = ()


# What -march=armv8.2-a also lets a compiler use: LSE atomics, rounding multiplication, CRC.
_ARMV8_2 = ("atomics", "asimdrdm", "crc32")

# The features for which ggml has its own code, and BF16. GCC and Clang enable with each what `needs` and `also` list
# (GCC: gcc/config/aarch64/aarch64-option-extensions.def and gcc/common/config/i386/i386-common.cc).
_FEATURES: dict[str, dict[str, _Feature]] = {
    "aarch64": {
        "asimddp": _Feature("dotprod", also=_ARMV8_2),
        "asimdhp": _Feature("fp16", also=(*_ARMV8_2, "fphp")),
        "i8mm": _Feature("i8mm", also=_ARMV8_2),
        "bf16": _Feature("bf16", also=_ARMV8_2),
        "sve": _Feature("sve", needs=("asimdhp",), also=("fcma",)),
        "sve2": _Feature("sve2", needs=("sve",)),
        "sme": _Feature("sme", needs=("sve2", "bf16")),
    },
    "x86_64": {
        "sse4_2": _Feature("sse42", also=("popcnt",), option="SSE42", flags=("-msse4.2",)),
        "avx": _Feature("avx", needs=("sse4_2",), also=("xsave",), option="AVX", flags=("-mavx",)),
        "f16c": _Feature("f16c", needs=("avx",), option="F16C", flags=("-mf16c",)),
        "fma": _Feature("fma", needs=("avx",), option="FMA", flags=("-mfma",)),
        "bmi2": _Feature("bmi2", option="BMI2", flags=("-mbmi2",)),
        "avx2": _Feature("avx2", needs=("avx",), option="AVX2", flags=("-mavx2",)),
        "avx_vnni": _Feature("avxvnni", needs=("avx2",), option="AVX_VNNI", flags=("-mavxvnni",)),
        "avx512f": _Feature(
            "avx512",
            needs=("avx2", "fma", "f16c"),
            also=("avx512cd", "avx512vl", "avx512dq", "avx512bw"),
            option="AVX512",
            flags=("-mavx512f", "-mavx512cd", "-mavx512vl", "-mavx512dq", "-mavx512bw"),
        ),
        "avx512vbmi": _Feature("vbmi", needs=("avx512f",), option="AVX512_VBMI", flags=("-mavx512vbmi",)),
        "avx512_vnni": _Feature("vnni", needs=("avx512f",), option="AVX512_VNNI", flags=("-mavx512vnni",)),
        "avx512_bf16": _Feature("bf16", needs=("avx512f",), option="AVX512_BF16", flags=("-mavx512bf16",)),
    },
}
_MACHINES = {"arm64": "aarch64", "amd64": "x86_64"}

# Options that a build turns off unless it is portable or native is off: features of other machines that ggml enables by
# default although not every CPU has them (ggml/CMakeLists.txt), and AMX. With AMX, ggml aborts while it loads a model
# with latent attention. A master with AMX also computes differently from its workers, because their weights are never
# placed where AMX is used.
_OFF = {
    "loongarch64": ("LASX", "LSX"),
    "riscv64": ("RVV", "RV_ZFH", "RV_ZVFH", "RV_ZICBOP", "RV_ZIHINTPAUSE", "RV_ZVFBFWMA", "XTHEADVECTOR"),
    "s390x": ("VXE", "NNPA"),
    "x86_64": ("AMX_TILE", "AMX_INT8", "AMX_BF16"),
}

# A compiler for a build of all variants must accept the flags of the newest variant. (ggml/src/CMakeLists.txt)
_NEWEST_VARIANT = {
    "aarch64": ("-march=armv9.2-a+dotprod+fp16+sve+i8mm+sve2+sme",),
    "x86_64": ("-mavxvnni", "-mavx512vbmi", "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8"),
}


def cpu_class(
    machine: str,
    cpu: str = "",
    model: str = "",
    libc: str = "",
    features: Sequence[str] = (),
) -> CpuClass:
    """Return the class of a host.

    `cpu` is the line of flags or features of /proc/cpuinfo. `model` is the CPU's common name, which messages use on
    Arm. `features` are those to build for, by default all that the CPU has. A portable build (PORTABLE alone) has all
    variants and no features of its own. Raises CpuClassError.
    """
    machine = _MACHINES.get(machine.strip().lower(), machine.strip())
    if not re.fullmatch(r"[A-Za-z0-9_]{1,30}", machine):
        raise CpuClassError(f"{machine!r} is not a machine as `uname -m` names it, such as aarch64")
    libc = " ".join(libc.split())
    kind, march = "", ""
    chosen: list[str] = []
    flags: list[str] = []
    options: dict[str, bool | str] = {"GGML_NATIVE": False}
    if list(features) == [PORTABLE]:
        kind = PORTABLE
        options.update(BUILD_SHARED_LIBS=True, GGML_BACKEND_DL=True, GGML_CPU_ALL_VARIANTS=True)
        flags = list(_NEWEST_VARIANT.get(machine, ()))
    elif machine in _FEATURES:
        chosen = _choose(machine, cpu, features, model)
        kind = "-".join(_words(machine, chosen)) or BASELINE
        if machine == "aarch64":
            march = "+".join(["armv8.2-a" if chosen else "armv8-a", *short_words(machine, chosen)])
            flags = [f"-march={march}"]
            options["GGML_CPU_ARM_ARCH"] = march
        else:
            flags = [flag for word in chosen for flag in _FEATURES[machine][word].flags]
            options.update({f"GGML_{known.option}": word in chosen for word, known in _FEATURES[machine].items()})
    else:
        _refuse_features(machine, features)
    if kind != PORTABLE:
        options.update({f"GGML_{option}": False for option in _OFF.get(machine, ())})
    return {
        "name": "-".join(filter(None, [machine, kind, re.sub(r"[^A-Za-z0-9_.]", "", libc)])),
        "machine": machine,
        "features": chosen,
        "libc": libc,
        "march": march,
        "flags": flags,
        "cmake_options": options,
    }


def features_of(machine: str, cpu: str) -> list[str]:
    """Return the relevant features of a CPU, from its line of flags or features in /proc/cpuinfo.

    A feature is left out if the CPU lacks anything that a compiler assumes with it.
    """
    words = frozenset(cpu.split())
    found: list[str] = []
    for word, feature in _FEATURES.get(_MACHINES.get(machine, machine), {}).items():
        if word in words and words.issuperset(feature.also) and set(feature.needs) <= set(found):
            found.append(word)
    return found


def short_words(machine: str, features: Iterable[str]) -> list[str]:
    """Return the usual words for these features, such as `dotprod` for `asimddp`."""
    known = _FEATURES.get(machine, {})
    return [known[word].short if word in known else word for word in features]


def _choose(machine: str, cpu: str, wanted: Sequence[str], model: str) -> list[str]:
    has = features_of(machine, cpu)
    if not wanted:
        return has
    if list(wanted) == [BASELINE]:
        return []
    known = _FEATURES[machine]
    by_word = {**{feature.short: word for word, feature in known.items()}, **{word: word for word in known}}
    anywhere = {
        word for table in _FEATURES.values() for name, feature in table.items() for word in (name, feature.short)
    }
    unknown = [word for word in wanted if word not in anywhere]
    if unknown:
        raise CpuClassError(
            f"{', '.join(unknown)}: no such CPU feature; known for {machine} are "
            f"{', '.join(feature.short for feature in known.values())}, or {BASELINE} by itself for "
            f"none of them; {PORTABLE} by itself is for a build of all variants"
        )
    missing = [word for word in wanted if by_word.get(word) not in has]
    if missing:
        raise CpuClassError(
            f"the CPU ({(machine == 'aarch64' and model) or machine}) lacks {', '.join(missing)}: "
            "leave it out of the features to build for"
        )
    chosen = {by_word[word] for word in wanted}
    for word in reversed(list(known)):  # the table lists what a feature needs before the feature
        if word in chosen:
            chosen.update(known[word].needs)
    return [word for word in known if word in chosen]


def _refuse_features(machine: str, wanted: Sequence[str]) -> None:
    if wanted and list(wanted) != [BASELINE]:
        raise CpuClassError(f"features to build for are known for {' and '.join(_FEATURES)} only, not for {machine}")


def _words(machine: str, features: Sequence[str]) -> list[str]:
    """Return the short words of features for a class name. On x86, leave out those that others imply, for brevity."""
    implied = {needed for word in features for needed in _FEATURES[machine][word].needs if machine == "x86_64"}
    implied -= {"avx2", "avx512f"}  # people look for these
    return short_words(machine, [word for word in features if word not in implied])
