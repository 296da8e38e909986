# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: one run of llama-bench over RPC workers: its command line, its figures, and how they compare with others.

Knows neither Ansible nor processes. A baseline is a JSON file with the figures of a run and with all that they depend
on; figures are compared only where all of that is equal.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .._run.worker_run import (
    BASE_S,
    LOAD_BYTES_PER_S,
    PROMPT_TOKENS_PER_S,
    S_PER_TOKEN,
    Ending,
    Failure,
    OptionError,
    cannot_run,
    check_number,
    check_workers,
    cut_off,
    device_counts,
    dropped,
    given_up,
    mismatched,
    model_invalid,
    not_connected,
    other_version,
    out_of_memory,
    shares,
    unknown,
    worker_failure,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .._rpc.endpoint import Endpoint
    from .._rpc.worker_status import WorkerStatus
    from .._run.capabilities import Bench

SCHEMA = "llama_cpp.cluster.llama_bench"
SCHEMA_VERSION = 1
# A thousand tests have some 300 kB.
MAX_BASELINE_BYTES = 16 << 20
# What ggml_type_from_name knows in all supported builds. (tools/llama-bench/llama-bench.cpp)
CACHE_TYPES = ("f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
MAX_TESTS = 1000
MAX_TOKENS = 1_000_000


class BaselineError(ValueError):
    """A baseline cannot be read or written; the message is one sentence."""


class OutputError(ValueError):
    """What llama-bench printed is not its results; the message is one sentence."""


@dataclass(frozen=True)
class Options:
    """What to run; None leaves a thing to upstream, and for `timeout` derives it."""

    model: str
    workers: tuple[Endpoint, ...]
    n_prompt: tuple[int, ...]
    n_gen: tuple[int, ...]
    mixed: tuple[tuple[int, int], ...]
    n_depth: tuple[int, ...]
    batch_size: tuple[int, ...]
    ubatch_size: tuple[int, ...]
    cache_type_k: str
    cache_type_v: str
    flash_attn: str | None
    split_mode: str
    tensor_split: tuple[float, ...]
    n_gpu_layers: int
    threads: int | None
    repetitions: int
    timeout: int | None

    @property
    def endpoints(self) -> list[str]:
        """The workers as upstream's log names them."""
        return [str(worker) for worker in self.workers]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The tokens of prompt and of generation of each test, without those that upstream skips."""
        alone = [*((n, 0) for n in self.n_prompt), *((0, n) for n in self.n_gen)]
        return [shape for shape in [*alone, *self.mixed] if any(shape)]


class Tolerance(NamedTuple):
    """By how many percent a test may be slower than its baseline, by its kind."""

    prompt: float
    generation: float
    mixed: float


# Before the run


# What each number of an option may be.
_BOUNDS = {
    "n_prompt": (0, MAX_TOKENS),
    "n_gen": (0, MAX_TOKENS),
    "n_depth": (0, MAX_TOKENS),
    "batch_size": (1, MAX_TOKENS),
    "ubatch_size": (1, MAX_TOKENS),
    "repetitions": (1, 1000),
    "threads": (1, 512),
    "timeout": (1, 30 * 24 * 3600),
}


def check_options(options: Options) -> None:
    """Raise OptionError for the first value that no build can run."""
    check_workers(options)
    for name, (low, high) in _BOUNDS.items():
        given = getattr(options, name)
        for value in given if isinstance(given, tuple) else () if given is None else (given,):
            check_number(name, value, low, high)
    for tokens in (tokens for pair in options.mixed for tokens in pair):
        check_number("mixed", tokens, 1, MAX_TOKENS)
    for name in ("n_depth", "batch_size", "ubatch_size"):
        if not getattr(options, name):
            raise OptionError(f"{name} is empty; give at least one number.")
    if not options.shapes:
        raise OptionError("There is nothing to measure; give a number above 0 in n_prompt, n_gen or mixed.")
    tests = len(options.shapes) * len(options.n_depth) * len(options.batch_size) * len(options.ubatch_size)
    if tests > MAX_TESTS:
        raise OptionError(f"The lists make {tests} tests; ask for at most {MAX_TESTS} at once.")
    if "," in options.model:
        raise OptionError(f"llama-bench takes the comma in {options.model} for a separator; rename the model.")
    if "\0" in options.model:
        raise OptionError("model holds a NUL character, which no program can be given; take it out.")


def check_build(options: Options, bench: Bench) -> None:
    """Raise OptionError for what this build of llama-bench does not have."""
    if options.split_mode not in bench.split_modes:
        raise OptionError(
            f"This build of llama-bench has no split_mode {options.split_mode}; use another or a newer build."
        )
    if options.flash_attn is not None and options.flash_attn not in bench.flash_attn:
        known = " or ".join(bench.flash_attn)
        raise OptionError(f"This build of llama-bench has no flash_attn {options.flash_attn}; use {known}.")
    if options.n_depth != (0,) and not bench.has("-d"):
        raise OptionError("This build of llama-bench has no n_depth; leave it out or use a newer build.")


def check_tolerance(
    tolerance_percent: float, prompt_tolerance_percent: float | None, generation_tolerance_percent: float | None
) -> Tolerance:
    """Return the tolerance by kind; raises OptionError."""
    given = {
        "tolerance_percent": tolerance_percent,
        "prompt_tolerance_percent": prompt_tolerance_percent,
        "generation_tolerance_percent": generation_tolerance_percent,
    }
    for name, value in given.items():
        if value is not None and not 0 <= value < 100:
            raise OptionError(f"{name} is {value:g}; give a number from 0 to below 100, as no run loses 100 percent.")
    prompt, generation = prompt_tolerance_percent, generation_tolerance_percent
    return Tolerance(
        prompt=tolerance_percent if prompt is None else prompt,
        generation=tolerance_percent if generation is None else generation,
        mixed=tolerance_percent,
    )


def check_baseline_options(path: str | None, *, update: bool, required: bool) -> None:
    """Raise OptionError for what cannot be meant of a baseline."""
    if path is None and (update or required):
        name = "baseline_update" if update else "baseline_required"
        raise OptionError(f"{name} is true and there is no baseline_path; give it, or leave {name} out.")
    if update and required:
        raise OptionError("baseline_update and baseline_required are both true; a baseline is replaced or insisted on.")


def time_limit(options: Options, model_bytes: int) -> int:
    """Return the time limit of the run in seconds: as asked for, or one that even slow hosts stay under.

    The latter is 120 s, the model at 10 MB/s, and for each test and its warm-up prompts at 10 tokens a second and 2 s
    for each generated token.
    """
    if options.timeout is not None:
        return options.timeout
    prompts = sum(prompt + depth for prompt, _gen in options.shapes for depth in options.n_depth)
    generated = sum(gen for _prompt, gen in options.shapes) * len(options.n_depth)
    once = prompts / PROMPT_TOKENS_PER_S + generated * S_PER_TOKEN
    variants = len(options.batch_size) * len(options.ubatch_size)
    return math.ceil(BASE_S + model_bytes / LOAD_BYTES_PER_S + once * variants * (options.repetitions + 1))


def build_command(bench: Bench, options: Options, statuses: Sequence[WorkerStatus]) -> list[str]:
    """Return the command line; `statuses` are those of the verified workers, empty if nobody asked them."""
    names = bench.rpc_device_names(options.endpoints, device_counts(statuses) if statuses else None)
    split = shares(options.tensor_split, statuses) if statuses else options.tensor_split

    def listed(values: Iterable[int]) -> str:
        return ",".join(str(value) for value in values) or "0"

    return [
        bench.program,
        *("-m", options.model),
        # Devices have names only after --rpc.
        *("--rpc", ",".join(options.endpoints)),
        # All or none: upstream then refuses to go on without a worker, and leaves devices of the master out.
        *(("-dev", "/".join(names)) if names else ()),
        *("-ngl", str(options.n_gpu_layers)),
        *("-sm", options.split_mode),
        *(("-ts", "/".join(f"{share:g}" for share in split)) if split else ()),
        *("-p", listed(options.n_prompt)),
        *("-n", listed(options.n_gen)),
        *(word for prompt, gen in options.mixed for word in ("-pg", f"{prompt},{gen}")),
        *(("-d", listed(options.n_depth)) if bench.has("-d") else ()),
        *("-b", listed(options.batch_size)),
        *("-ub", listed(options.ubatch_size)),
        *("-ctk", options.cache_type_k),
        *("-ctv", options.cache_type_v),
        *(("-fa", bench.flash_attn[options.flash_attn]) if options.flash_attn else ()),
        *(("-t", str(options.threads)) if options.threads is not None else ()),
        *("-r", str(options.repetitions)),
        # A line for each test as soon as it is done.
        *("-o", "jsonl"),
        # Each run is announced, for those who wait.
        *(("--progress",) if bench.has("--progress") else ()),
        # Without it nothing is logged: neither what each worker holds nor why a run failed.
        "-v",
    ]


# The figures


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


def _flash_attn(value: object) -> str:
    """Return a word for upstream's flag, which is a boolean in the oldest builds and has a third value since."""
    return "on" if value in (True, 1) else "off" if value in (False, 0) else "auto"


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
    return {
        "split_mode": options.split_mode,
        "tensor_split": list(options.tensor_split),
        "n_gpu_layers": options.n_gpu_layers,
        "cache_type_k": options.cache_type_k,
        "cache_type_v": options.cache_type_v,
        "flash_attn": _flash_attn(line.get("flash_attn")),
        "threads": int(line.get("n_threads", 0)),
        "repetitions": options.repetitions,
    }


# Against a baseline


@dataclass(frozen=True)
class Baseline:
    """The figures of a run, and what they depend on."""

    build: dict[str, Any]
    model: dict[str, Any]
    workers: list[str]
    options: dict[str, Any]
    tests: list[dict[str, Any]]
    # When the run ended, in UTC (ISO 8601).
    created: str


_NUMBER = (int, float)
_OPTIONAL_TEXT = (str, type(None))
_SHAPES: dict[str, dict[str, Any]] = {
    "build": {"number": (int, type(None)), "commit": _OPTIONAL_TEXT, "version": _OPTIONAL_TEXT},
    "model": {"type": str, "size_bytes": int, "n_params": int, "sha256": _OPTIONAL_TEXT},
    "options": {
        "split_mode": str,
        "tensor_split": list,
        "n_gpu_layers": int,
        "cache_type_k": str,
        "cache_type_v": str,
        "flash_attn": str,
        "threads": int,
    },
}
_TEST_KEY = ("kind", "n_prompt", "n_gen", "n_depth", "batch_size", "ubatch_size")


def _no_constant(name: str) -> float:
    raise ValueError(name)


def read_baseline(path: str) -> Baseline | None:
    """Return what a baseline file holds, or None if there is none; raises BaselineError."""
    file = Path(path)
    try:
        if file.is_dir():
            raise BaselineError(f"The baseline {path} is a folder; give the path of a file.")
        if not file.exists():
            return None
        if not file.is_file():
            raise BaselineError(f"The baseline {path} is not a file; give another path.")
        with file.open("rb") as stream:
            content = stream.read(MAX_BASELINE_BYTES)
    except OSError as error:
        raise BaselineError(f"The baseline {path} cannot be read: {error.strerror}.") from error
    remedy = "it was left as it is; move it away, or choose another path"
    try:
        # What is larger is cut off, and so is no JSON.
        found = json.loads(content.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise BaselineError(f"The baseline {path} is not JSON of this module, so {remedy}.") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise BaselineError(f"The file {path} is not a baseline of llama_bench, so {remedy}.")
    if found.get("schema_version") != SCHEMA_VERSION:
        version = json.dumps(found.get("schema_version"))[:40]
        raise BaselineError(
            f"The baseline {path} is of schema version {version} and this collection knows {SCHEMA_VERSION}; {remedy}."
        )
    wrong = _wrong_part(found)
    if wrong:
        raise BaselineError(f"The baseline {path} is damaged ({wrong} is not as it was written); {remedy}.")
    return Baseline(**{name: found[name] for name in Baseline.__dataclass_fields__})


def _wrong_part(found: Mapping[str, Any]) -> str | None:
    """Return the first part of a baseline that is not as this module writes it."""
    for part, shape in _SHAPES.items():
        values = found.get(part)
        if not isinstance(values, dict):
            return part
        for name, kind in shape.items():
            if name not in values or not isinstance(values[name], kind) or isinstance(values[name], bool):
                return f"{part}.{name}"
    # Baselines of earlier versions of this module do not tell.
    patches = found["build"].get("patches")
    if patches is not None and not _are_texts(patches):
        return "build.patches"
    if not isinstance(found.get("created"), str):
        return "created"
    workers, tests = found.get("workers"), found.get("tests")
    if not _are_texts(workers):
        return "workers"
    if not isinstance(tests, list) or not tests:
        return "tests"
    return next((f"tests[{n}]" for n, test in enumerate(tests) if not _is_test(test)), None)


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _is_test(test: object) -> bool:
    if not isinstance(test, dict) or not isinstance(test.get("name"), str) or not isinstance(test.get("kind"), str):
        return False
    rates = test.get("tokens_per_second")
    if not isinstance(rates, dict) or "stddev" not in rates:
        return False
    numbers: list[Any] = [*(test.get(name) for name in _TEST_KEY[1:]), rates.get("mean"), rates["stddev"] or 0]
    # No token rate and no count is larger.
    return all(isinstance(n, _NUMBER) and not isinstance(n, bool) and 0 <= n < 1e12 for n in numbers) and numbers[5] > 0


def check_baseline_place(path: str) -> None:
    """Raise BaselineError if a baseline could not be written there."""
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise BaselineError(f"There is no folder {folder} for the baseline; make it, or choose another path.")
    if not os.access(str(folder), os.W_OK | os.X_OK):
        raise BaselineError(f"The folder {folder} of the baseline cannot be written by this user; choose another path.")


def write_baseline(path: str, baseline: Baseline) -> None:
    """Write a baseline, which appears at its path only when it is whole; raises BaselineError."""
    content = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **asdict(baseline)}
    place = Path(path).resolve()
    temporary = None
    try:
        mode = place.stat().st_mode & 0o777 if place.exists() else 0o666 & ~_umask()
        handle, temporary = tempfile.mkstemp(prefix=f".{place.name[:100]}.", suffix=".new", dir=str(place.parent))
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(json.dumps(content, indent=2, sort_keys=True) + "\n")
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        Path(temporary).replace(place)
    except OSError as error:
        if temporary:
            with suppress(OSError):
                Path(temporary).unlink()
        raise BaselineError(f"The baseline {path} cannot be written: {error.strerror}.") from error


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _same_commit(one: str | None, other: str | None) -> bool:
    # One may be abbreviated.
    length = min(len(one or ""), len(other or ""))
    return one == other or (length >= 7 and (one or "")[:length] == (other or "")[:length])


def _test_names(tests: Iterable[Mapping[str, Any]]) -> str:
    names = [f"{test['name']} b{test['batch_size']:g} ub{test['ubatch_size']:g}" for test in tests]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def differences(baseline: Baseline, now: Baseline) -> list[dict[str, Any]]:
    """Return what makes the figures of two runs incomparable: what differs, with both values."""
    found: list[dict[str, Any]] = []

    def differ(what: str, before: object, after: object) -> None:
        found.append({"what": what, "baseline": before, "now": after})

    before, after = baseline.build, now.build
    commits = before["commit"], after["commit"]
    if not _same_commit(*commits):
        differ("build commit", *commits)
    elif commits == (None, None) and before["number"] != after["number"]:
        differ("build number", before["number"], after["number"])
    patches = before.get("patches"), after.get("patches")
    if None not in patches and patches[0] != patches[1]:
        differ("build patches", *patches)
    for name in ("type", "n_params", "size_bytes"):
        if baseline.model[name] != now.model[name]:
            differ(f"model {name}", baseline.model[name], now.model[name])
    digests = baseline.model["sha256"], now.model["sha256"]
    if all(digests) and digests[0] != digests[1]:
        differ("model sha256", *digests)
    if len(baseline.workers) != len(now.workers):
        differ("number of workers", len(baseline.workers), len(now.workers))
    for name in _SHAPES["options"]:
        if baseline.options[name] != now.options[name]:
            differ(name, baseline.options[name], now.options[name])
    if {_key(test) for test in baseline.tests} != {_key(test) for test in now.tests}:
        differ("tests", _test_names(baseline.tests), _test_names(now.tests))
    return found


def _key(test: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(test[name] for name in _TEST_KEY)


def _figures(rates: Mapping[str, Any]) -> dict[str, Any]:
    return {name: rates.get(name) for name in ("mean", "stddev", "min", "max")}


def metrics(baseline: Baseline, now: Baseline, tolerance: Tolerance) -> list[dict[str, Any]]:
    """Return each test with both figures, the change, and whether that is more of a loss than is tolerated."""
    before = {_key(test): test["tokens_per_second"] for test in baseline.tests}
    found = []
    for test in now.tests:
        old, new = before[_key(test)], test["tokens_per_second"]
        change = 100 * (new["mean"] / old["mean"] - 1)
        allowed: float = getattr(tolerance, test["kind"])
        found.append(
            {
                "name": test["name"],
                **dict(zip(_TEST_KEY, _key(test))),
                "baseline": _figures(old),
                "now": _figures(new),
                "change_percent": round(change, 2),
                "tolerance_percent": allowed,
                # As printed: what is shown as equal to the tolerance is within it.
                "regression": round(change, 2) < -allowed,
            }
        )
    return found


def _with_spread(figures: Mapping[str, Any]) -> str:
    spread = "one run" if figures["stddev"] is None else f"± {figures['stddev']:.2f}"
    return f"{figures['mean']:.2f} ({spread})"


def _label(metric: Mapping[str, Any], among: Sequence[Mapping[str, Any]]) -> str:
    several = len({(other["batch_size"], other["ubatch_size"]) for other in among}) > 1
    return str(metric["name"]) + (f" b{metric['batch_size']} ub{metric['ubatch_size']}" if several else "")


def regression_message(found: Sequence[Mapping[str, Any]], path: str) -> str | None:
    """Return one sentence with all that became slower than is tolerated, or None."""
    slower = [
        f"{_label(m, found)} {_with_spread(m['now'])} after {_with_spread(m['baseline'])} tokens per second, "
        f"{m['change_percent']:+.1f} % with {m['tolerance_percent']:g} % tolerated"
        for m in found
        if m["regression"]
    ]
    return f"Slower than the baseline {path}: {'; '.join(slower)}." if slower else None


def difference_message(found: Sequence[Mapping[str, Any]], path: str) -> str:
    """Return one sentence that says why figures are not compared."""
    said = "; ".join(f"{d['what']} was {_said(d['baseline'])} and is {_said(d['now'])}" for d in found)
    return f"Not compared with the baseline {path}: {said}."


def _said(value: object) -> str:
    if isinstance(value, list) and value and _are_texts(value):
        return ", ".join(value)
    return "unknown" if value in (None, "") else "none" if value == [] else str(value)


# After the run

# tools/llama-bench/llama-bench.cpp
_BAD_PARAMETER = re.compile(r"^error: invalid parameter for argument: (.*)", re.MULTILINE)
_PARAMETER_REASON = re.compile(r"^error: (?!invalid parameter for argument)(.*)", re.MULTILINE)
_NO_CONTEXT = re.compile(r"error: failed to create context with model")
# src/llama-context.cpp
_CONTEXT_REASON = re.compile(r"^llama_init_from_model: (.*)", re.MULTILINE)


def classify(options: Options, ending: Ending, protocol: str | None) -> Failure | None:
    """Return why the run failed, or None if it ended well and every worker took part."""
    failure = given_up(options, ending)
    if failure:
        return failure
    if ending.exit_status == 0:
        return dropped(options, ending, protocol)
    return (
        cannot_run(ending)
        or _option_rejected(ending, protocol)
        or mismatched(ending, protocol)
        or not_connected(options, ending)
        or other_version(options, ending, protocol)
        or out_of_memory(ending, "lower n_depth, n_prompt, n_gen or ubatch_size")
        or cut_off(options, ending, protocol)
        or _context_rejected(ending)
        or model_invalid(options, ending)
        or unknown(ending)
    )


def _option_rejected(ending: Ending, protocol: str | None) -> Failure | None:
    bad = _BAD_PARAMETER.search(ending.stderr)
    if not bad:
        return None
    reason = _PARAMETER_REASON.search(ending.stderr)
    if bad[1] in ("--rpc", "-rpc", "-dev", "--device"):
        # Some builds skip a worker that they cannot reach; then its device has no name.
        message = f"llama-bench did not take all workers: {reason[1] if reason else bad[1]}; look at the workers' logs."
        return worker_failure(ending.workers_after, protocol) or Failure("worker_dropped", None, message)
    why = f": {reason[1]}" if reason else ""
    return Failure("option_rejected", None, f"llama-bench does not take this value of {bad[1]}{why}.")


def _context_rejected(ending: Ending) -> Failure | None:
    if not _NO_CONTEXT.search(ending.stderr):
        return None
    reasons = _CONTEXT_REASON.findall(ending.stderr)
    why = f": {reasons[-1].rstrip('.')}" if reasons else ""
    message = f"llama.cpp makes no context with these options{why}; change flash_attn, cache types or sizes."
    return Failure("option_rejected", None, message)
