# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: one run of llama-bench over RPC workers: its options, its command line, its failure and its figures.

This file knows neither Ansible nor processes.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from dataclasses import dataclass
from typing import Any, Iterable, Mapping, Sequence

from .._rpc.worker_status import WorkerStatus
from .._run import worker_run
from .._run.capabilities import Program
from .._run.worker_run import Ending, Failure, OptionError, RunOptions

# The types that ggml_type_from_name knows in all supported builds (tools/llama-bench/llama-bench.cpp).
CACHE_TYPES = ("f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
MAX_TESTS = 1000
MAX_TOKENS = 1_000_000
# The lowest and the highest value of each option.
_BOUNDS = {
    "n_prompt": (0, MAX_TOKENS),
    "n_gen": (0, MAX_TOKENS),
    "n_depth": (0, MAX_TOKENS),
    "batch_size": (1, MAX_TOKENS),
    "ubatch_size": (1, MAX_TOKENS),
    "repetitions": (1, 1000),
}


@dataclass(frozen=True)
class Options(RunOptions):
    """The options of a run; None leaves a value to upstream."""

    n_prompt: tuple[int, ...]
    n_gen: tuple[int, ...]
    n_depth: tuple[int, ...]
    batch_size: tuple[int, ...]
    ubatch_size: tuple[int, ...]
    cache_type_k: str
    cache_type_v: str
    flash_attn: str | None
    split_mode: str
    repetitions: int

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The prompt and generation tokens of each test, without the tests that upstream skips."""
        return [shape for shape in [*((n, 0) for n in self.n_prompt), *((0, n) for n in self.n_gen)] if any(shape)]


def check_options(options: Options) -> None:
    """Raise OptionError for the first value that no build can run."""
    worker_run.check_numbers(options, _BOUNDS)
    for name in ("n_depth", "batch_size", "ubatch_size"):
        if not getattr(options, name):
            raise OptionError(f"{name} is empty; give at least one number.")
    if not options.shapes:
        raise OptionError("There is nothing to measure; give a number above 0 in n_prompt or n_gen.")
    tests = len(options.shapes) * len(options.n_depth) * len(options.batch_size) * len(options.ubatch_size)
    if tests > MAX_TESTS:
        raise OptionError(f"The lists make {tests} tests; ask for at most {MAX_TESTS} at once.")
    if "," in options.model:
        raise OptionError(f"llama-bench takes the comma in {options.model} for a separator; rename the model.")
    if "\0" in options.model:
        raise OptionError("model contains a NUL character, which no program accepts; remove it.")


def check_build(options: Options, bench: Program) -> None:
    """Raise OptionError for the first option that this build of llama-bench does not have."""
    if options.split_mode not in bench.values("--split-mode"):
        raise OptionError(
            f"This build of llama-bench has no split_mode {options.split_mode}; use another or a newer build."
        )
    if options.flash_attn is not None and options.flash_attn not in bench.flash_attn:
        known = " or ".join(bench.flash_attn)
        raise OptionError(f"This build of llama-bench has no flash_attn {options.flash_attn}; use {known}.")


def time_limit(options: Options, model_bytes: int) -> int:
    """Return the time limit of the run in seconds: the given one, or one that even slow hosts stay under."""
    if options.timeout is not None:
        return options.timeout
    prompts = sum(prompt + depth for prompt, _gen in options.shapes for depth in options.n_depth)
    generated = sum(gen for _prompt, gen in options.shapes) * len(options.n_depth)
    once = prompts / worker_run.PROMPT_TOKENS_PER_S + generated * worker_run.S_PER_TOKEN
    variants = len(options.batch_size) * len(options.ubatch_size)
    return math.ceil(
        worker_run.BASE_S + model_bytes / worker_run.LOAD_BYTES_PER_S + once * variants * (options.repetitions + 1)
    )


def build_command(bench: Program, options: Options, statuses: Sequence[WorkerStatus]) -> list[str]:
    """Return the command line; `statuses` are those of the verified workers, or empty if nothing verified them."""
    names = worker_run.device_names(statuses)
    split = worker_run.shares(options.tensor_split, statuses) if statuses else options.tensor_split

    def listed(values: Iterable[int]) -> str:
        return ",".join(str(value) for value in values) or "0"

    return [
        bench.program,
        *("-m", options.model),
        # -dev must follow --rpc, because the devices have names only then.
        *("--rpc", ",".join(options.endpoints)),
        # Name all devices or none. With names, upstream fails if a worker is missing, and ignores the master's devices.
        *(("-dev", "/".join(names)) if names else ()),
        *("-ngl", str(options.n_gpu_layers)),
        *("-sm", options.split_mode),
        *(("-ts", "/".join(f"{share:g}" for share in split)) if split else ()),
        *("-p", listed(options.n_prompt)),
        *("-n", listed(options.n_gen)),
        *("-d", listed(options.n_depth)),
        *("-b", listed(options.batch_size)),
        *("-ub", listed(options.ubatch_size)),
        *("-ctk", options.cache_type_k),
        *("-ctv", options.cache_type_v),
        *(("-fa", bench.flash_attn[options.flash_attn]) if options.flash_attn else ()),
        *(("-t", str(options.threads)) if options.threads is not None else ()),
        *("-r", str(options.repetitions)),
        # Print a line for each test as soon as it is done.
        *("-o", "jsonl"),
        # Announce each run to people who wait.
        "--progress",
        # Without -v, llama-bench logs neither what each worker holds nor why a run failed.
        "-v",
    ]


# tools/llama-bench/llama-bench.cpp
_BAD_PARAMETER = re.compile(r"^error: invalid parameter for argument: (.*)", re.MULTILINE)
_PARAMETER_REASON = re.compile(r"^error: (?!invalid parameter for argument)(.*)", re.MULTILINE)


def classify(options: Options, ending: Ending, protocol: str | None) -> Failure | None:
    """Return the failure of the run, or None if it succeeded and every worker took part."""
    failure = worker_run.given_up(options, ending)
    if failure:
        return failure
    if ending.exit_status == 0:
        return worker_run.dropped(options, ending, protocol)
    return worker_run.failed(
        options, ending, protocol, _option_rejected, "lower n_depth, n_prompt, n_gen or ubatch_size"
    ) or worker_run.unknown(ending)


def _option_rejected(ending: Ending, protocol: str | None) -> Failure | None:
    bad = _BAD_PARAMETER.search(ending.stderr)
    if not bad:
        return None
    reason = _PARAMETER_REASON.search(ending.stderr)
    if bad[1] in ("--rpc", "-rpc", "-dev", "--device"):
        # Some builds skip a worker that they cannot reach. Its device then has no name.
        message = f"llama-bench did not take all workers: {reason[1] if reason else bad[1]}; look at the workers' logs."
        return worker_run.worker_failure(ending.workers_after, protocol) or Failure("worker_dropped", None, message)
    why = f": {reason[1]}" if reason else ""
    return Failure("option_rejected", None, f"llama-bench does not take this value of {bad[1]}{why}.")


class OutputError(ValueError):
    """The output of llama-bench does not hold results; the message is one sentence."""


def _name(n_prompt: int, n_gen: int, n_depth: int) -> str:
    """Return upstream's short name of a test, such as pp512 or tg128 @ d4096."""
    return (f"pp{n_prompt}" if n_prompt else f"tg{n_gen}") + (f" @ d{n_depth}" if n_depth else "")


def spread_of(rates: Sequence[float]) -> dict[str, Any]:
    """Return the figures of several measurements in tokens per second."""
    return {
        "mean": round(statistics.mean(rates), 3),
        "stddev": round(statistics.stdev(rates), 3) if len(rates) > 1 else None,
        "min": round(min(rates), 3),
        "max": round(max(rates), 3),
        "samples": [round(rate, 3) for rate in rates],
    }


def parse_lines(stdout: str, *, whole: bool) -> list[dict[str, Any]]:
    """Return the JSON object that llama-bench printed for each test; raises OutputError.

    If the run was ended early (`whole` is False), the last line may be incomplete.
    """
    lines = [line for line in stdout.splitlines() if line.strip()]
    found = []
    for number, line in enumerate(lines, 1):
        try:
            raw = json.loads(line)
            figures_of(raw)
        except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
            if not whole and number == len(lines):
                break
            raise OutputError(f"Line {number} of llama-bench's output is not a result: {line[:100]}.") from None
        found.append(raw)
    return found


def figures_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a test from its line of output."""
    n_prompt, n_gen, n_depth = int(raw["n_prompt"]), int(raw["n_gen"]), int(raw.get("n_depth", 0))
    return {
        "name": _name(n_prompt, n_gen, n_depth),
        "kind": "prompt" if n_prompt else "generation",
        "n_prompt": n_prompt,
        "n_gen": n_gen,
        "n_depth": n_depth,
        "batch_size": int(raw["n_batch"]),
        "ubatch_size": int(raw["n_ubatch"]),
        "tokens_per_second": spread_of([1e9 * (n_prompt + n_gen) / ns for ns in raw["samples_ns"]]),
    }


def build_of(bench: Program, line: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the build that ran, from its capabilities and from a line of its results."""
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
    return {
        "path": path,
        "type": str(line.get("model_type", "")),
        "size_bytes": int(line.get("model_size", 0)),
        "n_params": int(line.get("model_n_params", 0)),
        "sha256": sha256,
    }


def options_of(options: Options, line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the effective values of the options that the figures depend on."""
    # Builds of early 2026 print a boolean; later builds know a third value.
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
