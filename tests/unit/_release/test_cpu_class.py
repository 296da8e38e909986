# SPDX-License-Identifier: GPL-3.0-or-later
"""The CPU classes of hosts, from their own descriptions."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.filter.cpu_class import FilterModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.cpu_class import _FEATURES
from hypothesis import given, settings
from hypothesis import strategies as st

from support.templates import holds, loaded
from support.tree import ROOT

cpu_class = FilterModule().filters()["cpu_class"]

# Lines of /proc/cpuinfo. Those of x86 are without the flags that do not matter.
A72 = "fp asimd evtstrm crc32 cpuid"
N1 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs"
V2 = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 "
    "asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm sb paca pacg dcpodp sve2 sveaes svepmull svebitperm svesha3 "
    "flagm2 frint svei8mm svebf16 i8mm bf16 dgh rng bti"
)
SME = V2 + " sme smei16i64 smef64f64 smei8i32 smef16f32 smeb16f32 smef32f32 smefa64"
X86 = "fpu sse sse2 ssse3 sse4_1 sse4_2 popcnt xsave"
HASWELL = X86 + " avx f16c fma bmi1 bmi2 avx2"
SKYLAKE_X = HASWELL + " avx512f avx512dq avx512cd avx512bw avx512vl"
ZEN4 = SKYLAKE_X + " avx512_bf16 avx512vbmi avx512_vbmi2 avx512_vnni"
SAPPHIRE_RAPIDS = ZEN4 + " avx_vnni amx_bf16 amx_tile amx_int8"
ALDER_LAKE = HASWELL + " avx_vnni"

# The host, its class, and its -march.
ARM: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "Neoverse-V2": (
        {"cpu": V2, "libc": "glibc 2.39"},
        (
            "aarch64-dotprod-fp16-i8mm-bf16-sve-sve2-glibc2.39",
            "armv8.2-a+dotprod+fp16+i8mm+bf16+sve+sve2",
        ),
    ),
    "with-SME": (
        {"cpu": SME, "libc": "glibc 2.41"},
        (
            "aarch64-dotprod-fp16-i8mm-bf16-sve-sve2-sme-glibc2.41",
            "armv8.2-a+dotprod+fp16+i8mm+bf16+sve+sve2+sme",
        ),
    ),
    "SME-without-SVE2-is-not-built-for": (
        {"cpu": SME.replace(" sve2 ", " ").replace(" sve ", " ")},
        ("aarch64-dotprod-fp16-i8mm-bf16", "armv8.2-a+dotprod+fp16+i8mm+bf16"),
    ),
    "without-what-armv8.2-implies": (
        {"cpu": N1.replace(" atomics", ""), "libc": "musl"},
        ("aarch64-baseline-musl", "armv8-a"),
    ),
    "nothing-said-of-the-CPU": ({"cpu": None, "libc": None}, ("aarch64-baseline", "armv8-a")),
    "label-of-the-line": ({"cpu": f"Features\t: {N1}"}, ("aarch64-dotprod-fp16", "armv8.2-a+dotprod+fp16")),
    "portable": (
        {"cpu": V2, "libc": "glibc 2.39", "features": ["portable"]},
        ("aarch64-portable-glibc2.39", ""),
    ),
    "fewer-features": (
        {"cpu": V2, "libc": "glibc 2.39", "features": ["dotprod", "fp16"]},
        ("aarch64-dotprod-fp16-glibc2.39", "armv8.2-a+dotprod+fp16"),
    ),
    "what-a-feature-needs-comes-with-it": (
        {"cpu": V2, "features": ["sve2"]},
        ("aarch64-fp16-sve-sve2", "armv8.2-a+fp16+sve+sve2"),
    ),
    "features-as-the-kernel-names-them": (
        {"cpu": N1, "features": ["asimddp"]},
        ("aarch64-dotprod", "armv8.2-a+dotprod"),
    ),
    "no-feature-at-all": ({"cpu": V2, "features": ["baseline"]}, ("aarch64-baseline", "armv8-a")),
    "another-name-of-the-machine": ({"machine": "arm64", "cpu": A72}, ("aarch64-baseline", "armv8-a")),
}


@pytest.mark.parametrize(("host", "expected"), ARM.values(), ids=ARM.keys())
def test_class_of_an_arm_host(host: dict[str, Any], expected: tuple[str, str]) -> None:
    found = cpu_class({"machine": "aarch64", **host}, host.get("features", []))
    assert (found["name"], found["march"]) == expected
    assert found["machine"] == "aarch64"
    assert found["cmake_options"].get("GGML_CPU_ARM_ARCH", "") == found["march"]
    if found["march"]:
        assert found["flags"] == [f"-march={found['march']}"]


# The host's flags, the requested features, the class, and its options that are on.
INTEL = {
    "before-AVX": (X86, [], "x86_64-sse42-glibc2.36", "SSE42"),
    "virtual-CPU-without-anything": ("fpu sse sse2", [], "x86_64-baseline-glibc2.36", ""),
    "Haswell": (HASWELL, [], "x86_64-f16c-fma-bmi2-avx2-glibc2.36", "AVX AVX2 BMI2 F16C FMA SSE42"),
    "Alder-Lake": (
        ALDER_LAKE,
        [],
        "x86_64-f16c-fma-bmi2-avx2-avxvnni-glibc2.36",
        "AVX AVX2 AVX_VNNI BMI2 F16C FMA SSE42",
    ),
    "Skylake-X": (SKYLAKE_X, [], "x86_64-bmi2-avx2-avx512-glibc2.36", "AVX AVX2 AVX512 BMI2 F16C FMA SSE42"),
    "Zen-4": (
        ZEN4,
        [],
        "x86_64-bmi2-avx2-avx512-vbmi-vnni-bf16-glibc2.36",
        "AVX AVX2 AVX512 AVX512_BF16 AVX512_VBMI AVX512_VNNI BMI2 F16C FMA SSE42",
    ),
    "Sapphire-Rapids-without-its-AMX": (
        SAPPHIRE_RAPIDS,
        [],
        "x86_64-bmi2-avx2-avxvnni-avx512-vbmi-vnni-bf16-glibc2.36",
        "AVX AVX2 AVX512 AVX512_BF16 AVX512_VBMI AVX512_VNNI AVX_VNNI BMI2 F16C FMA SSE42",
    ),
    "AVX512-that-is-not-whole": (
        SKYLAKE_X.replace(" avx512vl", "") + " avx512_vnni",
        [],
        "x86_64-f16c-fma-bmi2-avx2-glibc2.36",
        "AVX AVX2 BMI2 F16C FMA SSE42",
    ),
    "fewer-features": (ZEN4, ["avx2"], "x86_64-avx2-glibc2.36", "AVX AVX2 SSE42"),
    "fewer-features-that-need-others": (
        ZEN4,
        ["vnni", "bmi2"],
        "x86_64-bmi2-avx2-avx512-vnni-glibc2.36",
        "AVX AVX2 AVX512 AVX512_VNNI BMI2 F16C FMA SSE42",
    ),
}


@pytest.mark.parametrize(("cpu", "features", "name", "options"), INTEL.values(), ids=INTEL.keys())
def test_class_of_an_x86_host(cpu: str, features: list[str], name: str, options: str) -> None:
    found = cpu_class({"machine": "x86_64", "cpu": cpu, "libc": "glibc 2.36"}, features)
    assert found["name"] == name
    assert found["march"] == ""
    given = dict(found["cmake_options"])
    assert given.pop("GGML_NATIVE") is False
    assert len(given) == 14, "an option is left to its default"
    assert sorted(key for key, value in given.items() if value) == [f"GGML_{word}" for word in options.split()]


@pytest.mark.parametrize(
    ("machine", "options"),
    [
        ("ppc64le", {}),
        ("armv7l", {}),
        ("s390x", {"GGML_VXE": False, "GGML_NNPA": False}),
        ("loongarch64", {"GGML_LSX": False, "GGML_LASX": False}),
    ],
)
def test_other_machines_have_no_features(machine: str, options: dict[str, bool]) -> None:
    found = cpu_class({"machine": machine, "cpu": "vx sve avx2", "libc": "glibc 2.39"})
    assert (found["name"], found["features"], found["flags"]) == (f"{machine}-glibc2.39", [], [])
    assert found["cmake_options"] == {"GGML_NATIVE": False, **options}


def test_a_portable_build_asks_for_a_compiler_of_the_newest_variant() -> None:
    arm = cpu_class({"machine": "aarch64"}, ["portable"])
    assert arm["flags"] == ["-march=armv9.2-a+dotprod+fp16+sve+i8mm+sve2+sme"]
    assert arm["cmake_options"]["GGML_CPU_ALL_VARIANTS"] is True
    assert "GGML_CPU_ARM_ARCH" not in arm["cmake_options"], "upstream refuses both together"


NONSENSE: dict[str, tuple[object, object, str]] = {
    "no-dictionary": ("aarch64", [], "needs a dictionary"),
    "machine-of-another-kind": ({"machine": 7}, [], "machine of the host must be a text, not 7"),
    "model-of-another-kind": ({"machine": "aarch64", "model": 7}, [], "model of the host must be a text, not 7"),
    "features-of-another-kind": ({"machine": "aarch64"}, "dotprod", "features must be a list of words"),
}


@pytest.mark.parametrize(("look", "features", "said"), NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_is_an_error(look: object, features: object, said: str) -> None:
    with pytest.raises(AnsibleFilterError, match=said):
        cpu_class(look, features)


BAD: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "no-machine": ({"cpu": N1}, [], "'' is not a machine as `uname -m` names it"),
    "a-sentence-for-a-machine": ({"machine": "my host"}, [], "'my host' is not a machine"),
    "feature-that-the-CPU-lacks": (
        {"machine": "aarch64", "cpu": N1, "model": "Neoverse-N1"},
        ["dotprod", "i8mm", "sve"],
        "the CPU (Neoverse-N1) lacks i8mm, sve: leave",
    ),
    "feature-of-the-other-machine": (
        {"machine": "x86_64", "cpu": HASWELL, "model": "Intel(R) Core(TM) i7"},
        ["dotprod"],
        "the CPU (x86_64) lacks dotprod",
    ),
    "feature-that-is-not-whole": (
        {"machine": "x86_64", "cpu": HASWELL + " avx512f"},
        ["avx512f"],
        "the CPU (x86_64) lacks avx512f:",
    ),
    "unknown-feature": (
        {"machine": "aarch64", "cpu": N1},
        ["dotprod", "neon3"],
        "neon3: no such CPU feature; known for aarch64 are dotprod, fp16, i8mm, bf16, sve, sve2, sme, or baseline",
    ),
    "baseline-and-others": (
        {"machine": "aarch64", "cpu": N1},
        ["baseline", "dotprod"],
        "baseline: no such CPU feature",
    ),
    "features-of-another-machine": (
        {"machine": "ppc64le"},
        ["vsx"],
        "known for aarch64 and x86_64 only, not for ppc64le",
    ),
}


@pytest.mark.parametrize(("look", "features", "said"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_built_for_is_one_sentence(look: dict[str, Any], features: list[str], said: str) -> None:
    found = cpu_class(look, features)
    assert list(found) == ["problem"]
    assert said in found["problem"]
    assert "\n" not in found["problem"]


LIBC = {
    "same": ("glibc 2.36", "glibc 2.36", True),
    "newer-runs-older": ("glibc 2.41", "glibc 2.36", True),
    "older-does-not-run-newer": ("glibc 2.36", "glibc 2.41", False),
    "by-number-and-not-by-letter": ("glibc 2.9", "glibc 2.36", False),
    "other-kind": ("musl", "glibc 2.17", False),
    "musl": ("musl", "musl", True),
    "host-not-known": ("", "glibc 2.36", True),
    "need-not-known": ("glibc 2.36", "", True),
}


@pytest.mark.parametrize(("libc", "needed", "can"), LIBC.values(), ids=LIBC.keys())
def test_c_libraries_are_compared(libc: str, needed: str, can: bool) -> None:
    task = loaded(ROOT / "roles/llama_cpp/tasks/compiler.yml")[-1]
    assert "C library" in task["ansible.builtin.assert"]["fail_msg"]
    given = {"__llama_cpp_class": {"libc": libc}, "__llama_cpp_builder": {"libc": needed}}
    assert holds(task["ansible.builtin.assert"]["that"], given) is can


def closed_sets(machine: str) -> list[frozenset[str]]:
    """Return the sets of features that a class can have."""
    known = _FEATURES[machine]
    return [
        frozenset(chosen)
        for size in range(len(known) + 1)
        for chosen in combinations(known, size)
        if all(set(known[word].needs) <= set(chosen) for word in chosen)
    ]


@pytest.mark.parametrize("machine", sorted(_FEATURES))
def test_a_name_stands_for_one_set_of_features(machine: str) -> None:
    known = _FEATURES[machine]
    names = {}
    for chosen in closed_sets(machine):
        cpu = " ".join(word for feature in chosen for word in (feature, *known[feature].also))
        found = cpu_class({"machine": machine, "cpu": cpu})
        assert set(found["features"]) == chosen
        assert re.fullmatch(r"[a-z0-9_.-]+", found["name"])
        assert names.setdefault(found["name"], chosen) == chosen


@given(
    st.fixed_dictionaries(
        {
            "machine": st.sampled_from(["aarch64", "x86_64"]) | st.text(),
            "cpu": st.none()
            | st.text()
            | st.lists(st.sampled_from(SME.split() + SAPPHIRE_RAPIDS.split())).map(" ".join),
            "model": st.none() | st.text(),
            "libc": st.none() | st.text(),
        }
    ),
    st.sampled_from([[], ["portable"], ["baseline"]]),
)
@settings(deadline=None)
def test_whatever_a_host_says_it_has_a_class_or_an_error(look: dict[str, Any], features: list[str]) -> None:
    found = cpu_class(look, features)
    if "problem" in found:
        return
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", found["name"])
    assert set(found["features"]) <= set((look["cpu"] or "").split())
    # A request for the features of a class gives the same class.
    if found["features"]:
        assert cpu_class(look, found["features"]) == found
