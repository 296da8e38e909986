# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure how fast a host reads weights, and compute how many tokens a second it can generate at most.

The measurement is `llama-bench` of a release that role `llama_cpp` installed, with a model of random weights in Q4_0.
The model is several times as large as the last-level cache, because otherwise the cache would be measured. It is
written to --folder and removed. The script needs only Python 3.8 and its standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

# The model has layers of the shape of Llama 3 8B, and so few tokens that the vocabulary hardly counts.
WIDTH, KV_WIDTH, FEED_FORWARD, VOCABULARY = 4096, 1024, 14336, 1024
LAYER = {
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (WIDTH, KV_WIDTH),
    "attn_v": (WIDTH, KV_WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_gate": (WIDTH, FEED_FORWARD),
    "ffn_up": (WIDTH, FEED_FORWARD),
    "ffn_down": (FEED_FORWARD, WIDTH),
}
F32, Q4_0 = 0, 2  # numbers of ggml's types
BLOCK, BLOCK_BYTES = 32, 18  # of Q4_0: a scale of 16 bits, and 32 weights of 4 bits
TIMES_CACHE = 4
LEAST_BYTES = 1_000_000_000
TOKENS, REPETITIONS, LIMIT_S = 16, 5, 600
CPUS = Path("/sys/devices/system/cpu")
# What a token reads of the models of docs/how-to/size.md: their weights, but of the table of embeddings only one row.
GB_A_TOKEN = {"3B": 1.91, "8B": 4.36, "14B": 8.07, "32B": 18.19, "70B": 39.37}


class SpeedError(Exception):
    """An error with one sentence for the user."""


def last_level_cache(allowed: set[int], cpus: Path = CPUS) -> int:
    """Return the bytes of all last-level caches of these CPUs, as the kernel reports them; 0 if it reports none."""
    levels: dict[int, dict[str, int]] = {}
    for cpu in allowed:
        for index in sorted((cpus / f"cpu{cpu}/cache").glob("index[0-9]*")):
            try:
                level, kind, size, shared = (
                    (index / name).read_text().strip() for name in ("level", "type", "size", "shared_cpu_list")
                )
                if kind != "Instruction":
                    unit = {"K": 1 << 10, "M": 1 << 20}[size[-1]]
                    levels.setdefault(int(level), {})[shared] = int(size[:-1]) * unit
            except (OSError, ValueError, KeyError, IndexError):
                continue
    return sum(levels[max(levels)].values()) if levels else 0


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the memory that is available."""
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise SpeedError(f"{meminfo} does not say how much memory is available.")


def tensor_bytes(shape: tuple[int, ...]) -> int:
    """Return the size of a tensor: a weight in Q4_0, or a norm in 32-bit floats."""
    return shape[0] * 4 if len(shape) == 1 else shape[0] * shape[1] // BLOCK * BLOCK_BYTES


def tensors(layers: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the model's tensors, norms first, so that the rest of the file is blocks of Q4_0."""
    norms = {f"blk.{i}.{name}.weight": (WIDTH,) for i in range(layers) for name in ("attn_norm", "ffn_norm")}
    weights = {f"blk.{i}.{name}.weight": shape for i in range(layers) for name, shape in LAYER.items()}
    ends = dict.fromkeys(("token_embd.weight", "output.weight"), (WIDTH, VOCABULARY))
    return {"output_norm.weight": (WIDTH,), **norms, **ends, **weights}


def bytes_a_token(layers: int) -> int:
    """Return how many bytes of the model a token reads: all but the table of embeddings."""
    return sum(tensor_bytes(shape) for name, shape in tensors(layers).items() if name != "token_embd.weight")


def layers_for(wanted: int) -> int:
    """Return the fewest layers of a model of which a token reads at least this many bytes."""
    one = bytes_a_token(1)
    return 1 + max(0, -(-(wanted - one) // (bytes_a_token(2) - one)))


def write_model(file: BinaryIO, layers: int) -> None:
    """Write the model in the format GGUF, version 3."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    def number(name: str, value: int) -> bytes:
        return text(f"llama.{name}") + struct.pack("<II", 4, value)

    keys = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("tokenizer.ggml.model") + struct.pack("<I", 8) + text("no_vocab"),
        text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5),
        number("vocab_size", VOCABULARY),
        number("context_length", 4096),
        number("embedding_length", WIDTH),
        number("block_count", layers),
        number("feed_forward_length", FEED_FORWARD),
        number("attention.head_count", WIDTH // 128),
        number("attention.head_count_kv", KV_WIDTH // 128),
        number("rope.dimension_count", 128),
    ]
    infos, offset, norms = [], 0, 0
    for name, shape in tensors(layers).items():
        kind = F32 if len(shape) == 1 else Q4_0
        infos.append(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
        offset += tensor_bytes(shape)
        norms += len(shape) == 1
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(keys)) + b"".join(keys) + b"".join(infos)
    file.write(head + bytes(-len(head) % 32))
    file.write(struct.pack("<f", 1.0) * (norms * WIDTH))

    # Random blocks with the same small scale. Each turn of the chunk begins with another block, so that no page of
    # memory is like another one: the host of a virtual machine might keep equal pages only once.
    chunk = bytearray(os.urandom(BLOCK_BYTES << 20))
    chunk[0::BLOCK_BYTES], chunk[1::BLOCK_BYTES] = bytes(1 << 20), b"\x1c" * (1 << 20)
    left, turn = offset - norms * WIDTH * 4, 0
    while left:
        first = turn % (1 << 11) * BLOCK_BYTES
        for part in (chunk[first:], chunk[:first]):
            left -= file.write(part[:left])
        turn += 1


def bench(program: Path, model: Path, threads: int) -> dict[str, Any]:
    """Return what llama-bench measured."""
    command = [program, "-m", model, "-p", 0, "-n", TOKENS, "-r", REPETITIONS, "-ngl", 0, "-o", "json"]
    try:
        done = subprocess.run(
            [*map(str, command), *(["-t", str(threads)] if threads else [])],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SpeedError(f"llama-bench did not end within {LIMIT_S} s: is this host busy?") from None
    try:
        measured: dict[str, Any] = json.loads(done.stdout)[0]
    except (ValueError, LookupError):
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        raise SpeedError(f"llama-bench ended with status {done.returncode}: {last}") from None
    return measured


def measure(program: Path, folder: Path, threads: int, cache: int) -> tuple[dict[str, Any], int]:
    """Return what llama-bench measured, and how many bytes each token read."""
    layers = layers_for(max(TIMES_CACHE * cache, LEAST_BYTES))
    size = bytes_a_token(layers)
    # llama.cpp reads the file, and keeps a copy of the weights in another order.
    available = available_bytes()
    if available < 2 * size:
        raise SpeedError(
            f"This needs {2 * size / 1e9:.1f} GB of available memory, for weights {TIMES_CACHE} times as large as the "
            f"last-level cache of {cache / 1e6:.0f} MB, and this host has {available / 1e9:.1f} GB: "
            "stop what uses it, or measure a host of this kind that has more."
        )
    with tempfile.TemporaryDirectory(dir=folder) as made:
        model = Path(made) / "random-q4_0.gguf"
        with model.open("wb") as file:
            write_model(file, layers)
        measured = bench(program, model, threads)
    whole = sum(map(tensor_bytes, tensors(layers).values()))
    if measured["model_size"] != whole:
        raise SpeedError(f"llama-bench found {measured['model_size']} bytes of weights, and {whole} were written.")
    return measured, size


def report(measured: dict[str, Any], size: int, cache: int, hosts: list[int]) -> str:
    """Return what was measured, and the table of what it implies."""
    speeds = measured["samples_ts"]
    rate = statistics.median(speeds) * size
    of_cache = f"{size / cache:.1f} times the last-level cache" if cache else "the kernel reports no cache"
    commit = measured["build_commit"]
    name = commit[:9] if commit != "unknown" else f"b{measured['build_number']}"
    build = f"{measured['n_threads']} threads, llama.cpp {name}"
    speed = f"{statistics.median(speeds):.2f} ({min(speeds):.2f} to {max(speeds):.2f}) tokens/s"
    columns = [f"`tensor` on {number}" for number in hosts]
    lines = [
        f"{measured.get('cpu_info') or 'unknown CPU'}, {build}",
        f"Measured: {speed}, of which each reads {size / 1e9:.2f} GB ({of_cache}): {rate / 1e9:.2f} GB/s.",
        "Computed: tokens/s of dense models in Q4_0, at most; networks, contexts and sums of `tensor` take more time.",
        "",
        f"| model | GB a token | `layer`, any number of such hosts | {' | '.join(columns)} |",
        "|--|--|--|" + "--|" * len(hosts),
    ]
    for model, gigabytes in GB_A_TOKEN.items():
        most = rate / 1e9 / gigabytes
        lines.append(
            f"| {model} | {gigabytes:.2f} | " + " | ".join(f"{most * number:.2f}" for number in [1, *hosts]) + " |"
        )
    return "\n".join(lines)


def interrupted(number: int, frame: object) -> NoReturn:  # noqa: ARG001
    """End the measurement, so that the model is removed."""
    raise SpeedError("interrupted; the model is removed.")


def main() -> int:
    """Parse the arguments, measure, and report an error in one sentence."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--bin",
        type=Path,
        default=Path("/opt/llama_cpp/current/bin"),
        help="the folder of llama-bench (default: %(default)s)",
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(), help="where to write the model, some GB (default: the current folder)"
    )
    parser.add_argument("--threads", type=int, default=0, help="of llama-bench (default: its own, one for each core)")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4], help="of split mode tensor (default: 2 4)")
    args = parser.parse_args()
    if args.threads < 0 or min(args.hosts) < 1:
        parser.error("--threads must be 0 or more, and --hosts 1 or more.")
    program = args.bin / "llama-bench"
    if not os.access(program, os.X_OK):
        parser.error(
            f"there is no llama-bench in {args.bin}: name its folder with --bin; masters of a cluster have it."
        )
    cache = last_level_cache(os.sched_getaffinity(0))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    try:
        measured, size = measure(program, args.folder, args.threads, cache)
    except SpeedError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"The model cannot be written to {args.folder}: {error.strerror}. Name another folder with --folder.",
            file=sys.stderr,
        )
        return 1
    print(report(measured, size, cache, args.hosts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
