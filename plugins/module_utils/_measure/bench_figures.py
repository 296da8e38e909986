# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: what llama-bench printed of each test, and of what it ran."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

from .bench import Options

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .._run.capabilities import Bench


class OutputError(ValueError):
    """What llama-bench printed is not its results; the message is one sentence."""


def _kind(n_prompt: int, n_gen: int) -> str:
    if n_prompt and n_gen:
        return "mixed"
    return "prompt" if n_prompt else "generation"


def _name(n_prompt: int, n_gen: int, n_depth: int) -> str:
    """Return upstream's short name of a test: pp512, tg128 @ d4096."""
    parts = [f"pp{n_prompt}"] * bool(n_prompt) + [f"tg{n_gen}"] * bool(n_gen)
    return "+".join(parts) + (f" @ d{n_depth}" if n_depth else "")


def _rates(tokens: int, samples_ns: Sequence[int]) -> dict[str, Any]:
    rates = [1e9 * tokens / ns for ns in samples_ns]
    return {
        "mean": round(statistics.mean(rates), 3),
        "stddev": round(statistics.stdev(rates), 3) if len(rates) > 1 else None,
        "min": round(min(rates), 3),
        "max": round(max(rates), 3),
        "samples": [round(rate, 3) for rate in rates],
    }


def parse_lines(stdout: str, *, whole: bool) -> list[dict[str, Any]]:
    """Return what llama-bench printed of each test; raises OutputError.

    Of a run that was ended (`whole` is False) the last line may be cut off.
    """
    lines = [line for line in stdout.splitlines() if line.strip()]
    found = []
    for number, line in enumerate(lines, 1):
        try:
            raw = json.loads(line)
            _test(raw)
        except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
            if not whole and number == len(lines):
                break
            raise OutputError(f"Line {number} of what llama-bench printed is no result: {line[:100]}.") from None
        found.append(raw)
    return found


def _test(raw: Mapping[str, Any]) -> dict[str, Any]:
    n_prompt, n_gen, n_depth = int(raw["n_prompt"]), int(raw["n_gen"]), int(raw.get("n_depth", 0))
    return {
        "name": _name(n_prompt, n_gen, n_depth),
        "kind": _kind(n_prompt, n_gen),
        "n_prompt": n_prompt,
        "n_gen": n_gen,
        "n_depth": n_depth,
        "batch_size": int(raw["n_batch"]),
        "ubatch_size": int(raw["n_ubatch"]),
        "tokens_per_second": _rates(n_prompt + n_gen, raw["samples_ns"]),
    }


def figures_of(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the result of each test."""
    return [_test(line) for line in lines]


def build_of(bench: Bench, line: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return which build ran, from what it says of itself and from a line of its results."""
    commit, number = bench.commit, bench.build_number
    if line and commit is None:
        commit = str(line.get("build_commit", "")) or None
    if line and number is None and isinstance(line.get("build_number"), int):
        number = line["build_number"]
    return {
        "number": number,
        "commit": None if commit == "unknown" else commit,
        "version": bench.version,
        "patches": None if bench.patches is None else list(bench.patches),
    }


def model_of(path: str, sha256: str | None, line: Mapping[str, Any]) -> dict[str, Any]:
    """Return what model ran."""
    return {
        "path": path,
        "type": str(line.get("model_type", "")),
        "size_bytes": int(line.get("model_size", 0)),
        "n_params": int(line.get("model_n_params", 0)),
        "sha256": sha256,
    }


def options_of(options: Options, line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that figures depend on, as they were in effect."""
    # A boolean in the oldest builds, with a third value since.
    flash_attn = line.get("flash_attn")
    return {
        "split_mode": options.split_mode,
        "tensor_split": list(options.tensor_split),
        "n_gpu_layers": options.n_gpu_layers,
        "cache_type_k": options.cache_type_k,
        "cache_type_v": options.cache_type_v,
        "flash_attn": "on" if flash_attn in (True, 1) else "off" if flash_attn in (False, 0) else "auto",
        "threads": int(line.get("n_threads", 0)),
        "repetitions": options.repetitions,
    }
