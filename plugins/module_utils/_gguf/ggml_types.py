# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the tensor and file types of GGUF files, by upstream's numbers and names. Tables only."""

from __future__ import annotations

from typing import NamedTuple

# The release that these tables follow. A type that is missing here is newer, or was never in a file.
TABLES_OF = "b11549"


class TensorType(NamedTuple):
    """One of ggml's types: a block of `block` weights takes `block_bytes` bytes."""

    name: str
    block: int
    block_bytes: int


# ggml/include/ggml.h (enum ggml_type); names and sizes from ggml/src/ggml.c (type_traits) and ggml-common.h.
TENSOR_TYPES = {
    0: TensorType("f32", 1, 4),
    1: TensorType("f16", 1, 2),
    2: TensorType("q4_0", 32, 18),
    3: TensorType("q4_1", 32, 20),
    6: TensorType("q5_0", 32, 22),
    7: TensorType("q5_1", 32, 24),
    8: TensorType("q8_0", 32, 34),
    9: TensorType("q8_1", 32, 36),
    10: TensorType("q2_K", 256, 84),
    11: TensorType("q3_K", 256, 110),
    12: TensorType("q4_K", 256, 144),
    13: TensorType("q5_K", 256, 176),
    14: TensorType("q6_K", 256, 210),
    15: TensorType("q8_K", 256, 292),
    16: TensorType("iq2_xxs", 256, 66),
    17: TensorType("iq2_xs", 256, 74),
    18: TensorType("iq3_xxs", 256, 98),
    19: TensorType("iq1_s", 256, 50),
    20: TensorType("iq4_nl", 32, 18),
    21: TensorType("iq3_s", 256, 110),
    22: TensorType("iq2_s", 256, 82),
    23: TensorType("iq4_xs", 256, 136),
    24: TensorType("i8", 1, 1),
    25: TensorType("i16", 1, 2),
    26: TensorType("i32", 1, 4),
    27: TensorType("i64", 1, 8),
    28: TensorType("f64", 1, 8),
    29: TensorType("iq1_m", 256, 56),
    30: TensorType("bf16", 1, 2),
    34: TensorType("tq1_0", 256, 54),
    35: TensorType("tq2_0", 256, 66),
    39: TensorType("mxfp4", 32, 17),
    40: TensorType("nvfp4", 64, 36),
    41: TensorType("q1_0", 128, 18),
    42: TensorType("q2_0", 64, 18),
}

# Upstream has removed these types and refuses a file that has one.
REMOVED_TYPES = (4, 5, 31, 32, 33, 36, 37, 38)
# A number between upstream's last type and this one may come from a later release. A larger one is damage.
LAST_PLAUSIBLE_TYPE = 255

# The types of ik_llama.cpp, a fork: quantisations of its own, and the same with interleaved rows.
_OF_FORK = (range(133, 300), range(335, 400))


def is_of_fork(kind: int) -> bool:
    """Return whether a type's number is one of ik_llama.cpp, which llama.cpp does not read."""
    return any(kind in numbers for numbers in _OF_FORK)


# The values of --cache-type-k and --cache-type-v: common/arg.cpp (kv_cache_types).
CACHE_TYPES = {
    kind.name: kind
    for kind in TENSOR_TYPES.values()
    if kind.name in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
}

# general.file_type: include/llama.h (enum llama_ftype), named as src/llama-model-loader.cpp (llama_ftype_name) does.
FILE_TYPES = {
    0: "all F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K - Medium",
    11: "Q3_K - Small",
    12: "Q3_K - Medium",
    13: "Q3_K - Large",
    14: "Q4_K - Small",
    15: "Q4_K - Medium",
    16: "Q5_K - Small",
    17: "Q5_K - Medium",
    18: "Q6_K",
    19: "IQ2_XXS - 2.0625 bpw",
    20: "IQ2_XS - 2.3125 bpw",
    21: "Q2_K - Small",
    22: "IQ3_XS - 3.3 bpw",
    23: "IQ3_XXS - 3.0625 bpw",
    24: "IQ1_S - 1.5625 bpw",
    25: "IQ4_NL - 4.5 bpw",
    26: "IQ3_S - 3.4375 bpw",
    27: "IQ3_S mix - 3.66 bpw",
    28: "IQ2_S - 2.5 bpw",
    29: "IQ2_M - 2.7 bpw",
    30: "IQ4_XS - 4.25 bpw",
    31: "IQ1_M - 1.75 bpw",
    32: "BF16",
    36: "TQ1_0 - 1.69 bpw ternary",
    37: "TQ2_0 - 2.06 bpw ternary",
    38: "MXFP4 MoE",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}
UNKNOWN_FILE_TYPE = "unknown, may not work"
GUESSED = 1024  # LLAMA_FTYPE_GUESSED
