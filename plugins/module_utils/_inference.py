# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Private: one run of distributed inference, as a command line before it and as a result after it.

Knows neither Ansible nor processes: it checks what was asked for, builds the command, and judges how the run ended.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ansible_collections.llama_cpp.cluster.plugins.module_utils._capabilities import Capabilities
    from ansible_collections.llama_cpp.cluster.plugins.module_utils._perf_log import Perf, PerfLog
    from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc_client import Endpoint, WorkerStatus

# GGML_SCHED_MAX_BACKENDS is 16, and the master's CPU is one of them. (ggml/src/ggml-backend.cpp)
MAX_DEVICES = 15
# Linux takes at most 128 KiB as one argument (MAX_ARG_STRLEN); a longer prompt goes through a file.
MAX_PROMPT_ARGUMENT_BYTES = 100_000
# An abort would start a debugger to print its trace (ggml/src/ggml.c); messages and numbers are in English and C form.
ENVIRONMENT = {"GGML_NO_BACKTRACE": "1", "LC_ALL": "C"}
# Upstream takes defaults of options from the environment; a run must be what its command says. (common/arg.cpp)
WITHOUT_ENVIRONMENT = ("LLAMA_ARG_", "LLAMA_LOG_")

# Of the default time limit: what a slow card, a slow network and a slow processor take.
_BASE_S = 120
_LOAD_BYTES_PER_S = 20_000_000
_PROMPT_BYTES_PER_S = 40
_S_PER_TOKEN = 2

# Upstream options that the module gives itself, by the module's option to use instead; None where there is no choice.
_OWNED: dict[str, str | None] = {
    "--model": "model",
    "--model-url": "model",
    "--docker-repo": "model",
    "--hf-repo": "model",
    "--hf-file": "model",
    "--prompt": "prompt",
    "--file": "prompt",
    "--binary-file": "prompt",
    "--rpc": "workers",
    "--device": "workers",
    "--n-predict": "n_predict",
    "--n-gpu-layers": "n_gpu_layers",
    "--tensor-split": "tensor_split",
    "--ctx-size": "ctx_size",
    "--seed": "seed",
    "--temp": "temperature",
    "--threads": "threads",
    # The proof of work and the figures are read from the log, the text from standard output.
    "--verbosity": None,
    "--verbose": None,
    "--log-disable": None,
    "--log-colors": None,
    "--log-jsonl": None,
    "--log-prefix": None,
    "--log-timestamps": None,
    "--no-perf": None,
    "--color": None,
    "--no-display-prompt": None,
    "--escape": None,
    "--no-escape": None,
    # These wait for a person, or end without inference.
    "--conversation": None,
    "--no-conversation": None,
    "--interactive": None,
    "--interactive-first": None,
    "--help": None,
    "--version": None,
    "--list-devices": None,
    "--cache-list": None,
    "--completion-bash": None,
}


class OptionError(ValueError):
    """What was asked for cannot be run; the message is one sentence that names the option."""


class ModelError(ValueError):
    """The model cannot be loaded; the message is one sentence."""


class Failure(NamedTuple):
    """Why there is no result, or none to trust."""

    kind: str
    endpoint: str | None
    message: str


class OutputLost(Failure):
    """A failure of a run whose last lines are missing; the same run again most likely has them.

    Upstream builds since 2026 write text and log from a thread that the end of the program does not wait for.
    (common/log.cpp, ggml-org/llama.cpp#22142) On a busy host it now and then has not written all by then.
    """


@dataclass(frozen=True)
class Options:
    """What to run.

    `tensor_split` has a share for each worker, or is empty; `threads` None leaves it to upstream; `timeout` is in
    seconds, None derives it.
    """

    model: str
    prompt: str
    workers: tuple[Endpoint, ...]
    n_predict: int
    n_gpu_layers: int
    tensor_split: tuple[float, ...]
    ctx_size: int
    seed: int
    temperature: float
    threads: int | None
    extra_args: tuple[str, ...]
    timeout: int | None

    @property
    def endpoints(self) -> list[str]:
        """The workers as upstream's log names them."""
        return [str(worker) for worker in self.workers]


# Before the run


def _check_number(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise OptionError(f"{name} is {value}; give a number from {low} to {high}.")


def check_options(options: Options) -> None:
    """Raise OptionError for the first value that no build can run."""
    count = len(options.workers)
    if not 1 <= count <= MAX_DEVICES:
        raise OptionError(f"workers has {count} entries; llama.cpp uses at least 1 and at most {MAX_DEVICES}.")
    _check_number("n_predict", options.n_predict, 1, 1_000_000)
    _check_number("n_gpu_layers", options.n_gpu_layers, 1, 1_000_000)
    _check_number("ctx_size", options.ctx_size, 0, 2**31 - 1)
    _check_number("seed", options.seed, -1, 2**32 - 1)
    _check_number("temperature", options.temperature, 0, 100)
    if options.threads is not None:
        _check_number("threads", options.threads, 1, 512)
    if options.timeout is not None:
        _check_number("timeout", options.timeout, 1, 30 * 24 * 3600)
    if options.n_gpu_layers < count:
        raise OptionError(
            f"n_gpu_layers is {options.n_gpu_layers} for {count} workers; "
            "each worker needs at least one layer, so raise it or name fewer workers."
        )
    if 0 < options.ctx_size <= options.n_predict:
        raise OptionError(
            f"n_predict is {options.n_predict}, which leaves no room for the prompt in ctx_size "
            f"({options.ctx_size}); raise ctx_size or lower n_predict."
        )
    _check_tensor_split(options)
    for name, text in [("prompt", options.prompt), *(("extra_args", text) for text in options.extra_args)]:
        if "\0" in text:
            raise OptionError(f"{name} holds a NUL character, which no program can be given; take it out.")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise OptionError(f"{name} is not valid UTF-8 text; mend its encoding.") from None


def _check_tensor_split(options: Options) -> None:
    split = options.tensor_split
    if not split:
        return
    if len(split) != len(options.workers):
        raise OptionError(
            f"tensor_split has {len(split)} entries for {len(options.workers)} workers; give one share for each worker."
        )
    for endpoint, share in zip(options.endpoints, split):
        if not (share > 0 and math.isfinite(share)):
            raise OptionError(
                f"tensor_split gives worker {endpoint} the share {share:g}; "
                "give it a number above 0, or take the worker out of workers."
            )


def check_extra_args(extra_args: Iterable[str], capabilities: Capabilities) -> None:
    """Raise OptionError for an option that the module gives itself, in any of its spellings."""
    owned = {name: option for known, option in _OWNED.items() for name in capabilities.spellings(known)}
    for text in extra_args:
        # Upstream takes --top_k for --top-k.
        name = text.replace("_", "-") if text.startswith("--") else text
        if name not in owned:
            continue
        option = owned[name]
        remedy = f"use the option {option} instead" if option else "take it out, the result depends on it"
        raise OptionError(f"extra_args may not hold {text}; {remedy}.")


_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def check_model(path: str) -> int:
    """Return the size in bytes of a model, all parts of a split one together; raises ModelError."""
    model = Path(path)
    parts = [model]
    split = _SPLIT_NAME.fullmatch(model.name)
    if split:
        if int(split["number"]) != 1:
            first = f"{split['stem']}-00001-of-{split['count']}.gguf"
            raise ModelError(f"The model {path} is not the first part of a split model; give {first}.")
        names = [f"{split['stem']}-{n:05}-of-{split['count']}.gguf" for n in range(1, int(split["count"]) + 1)]
        parts = [model.with_name(name) for name in names]
    return sum(_part_bytes(part) for part in parts)


def _part_bytes(path: Path) -> int:
    try:
        if path.is_dir():
            raise ModelError(f"The model {path} is a folder; give the path of a GGUF file.")
        if not path.is_file():
            raise ModelError(f"There is no model {path} on this host; put it there, or mend the path.")
        with path.open("rb") as file:
            magic = file.read(4)
        size = path.stat().st_size
    except OSError as error:
        raise ModelError(f"The model {path} cannot be read: {error.strerror}.") from error
    if size == 0:
        raise ModelError(f"The model {path} is empty; fetch it again.")
    if magic != b"GGUF":
        raise ModelError(f"The model {path} is not a GGUF file; convert it, or give another.")
    return size


def time_limit(options: Options, model_bytes: int) -> int:
    """Return the time limit of the run in seconds: as asked for, or one that even slow hosts stay under.

    The latter is 120 s, the model at 20 MB/s, the prompt at 40 bytes (10 tokens) a second, and 2 s for each token.
    """
    if options.timeout is not None:
        return options.timeout
    load = model_bytes / _LOAD_BYTES_PER_S
    prompt = len(options.prompt.encode()) / _PROMPT_BYTES_PER_S
    return math.ceil(_BASE_S + load + prompt + options.n_predict * _S_PER_TOKEN)


_KIND_BY_STATE = {
    "busy": "worker_busy",
    "incompatible": "protocol_mismatch",
    "refused": "worker_unreachable",
    "unreachable": "worker_unreachable",
    "unresolved": "worker_unreachable",
    "not_rpc": "worker_unreachable",
}


def worker_failure(statuses: Sequence[WorkerStatus], protocol: str | None) -> Failure | None:
    """Return why these workers cannot be used by a master of this protocol, naming every bad one, or None."""
    bad = [Failure(_KIND_BY_STATE[s.state], s.endpoint, s.message) for s in statuses if s.state in _KIND_BY_STATE]
    bad += _mismatches(statuses, protocol)
    if bad:
        return bad[0]._replace(message=" ".join(failure.message for failure in bad))
    by_address: dict[tuple[str | None, int], str] = {}
    for status in statuses:
        other = by_address.setdefault((status.address, status.port), status.endpoint)
        # The second connection would wait for the end of the first.
        if status.address and other != status.endpoint:
            message = f"{other} and {status.endpoint} are one worker ({status.address}); name it once in workers."
            return Failure("option_rejected", status.endpoint, message)
    devices = sum(len(status.devices) for status in statuses)
    if devices > MAX_DEVICES:
        message = f"The workers have {devices} devices and llama.cpp uses at most {MAX_DEVICES}; name fewer workers."
        return Failure("option_rejected", None, message)
    return None


def _mismatches(statuses: Sequence[WorkerStatus], protocol: str | None) -> list[Failure]:
    """Return the workers that this master refuses: another major version, or a newer minor one."""
    spoken = [status for status in statuses if status.protocol]
    if not spoken:
        return []
    # Where the master's own protocol is not known, its workers must at least agree with each other.
    reference = protocol or str((spoken[0].protocol or {})["version"])
    whose = "this master" if protocol else f"worker {spoken[0].endpoint}"
    major, minor = (int(part) for part in reference.split(".")[:2])
    return [
        Failure(
            "protocol_mismatch",
            status.endpoint,
            f"Worker {status.endpoint} speaks RPC protocol {version['version']} and {whose} {reference}; "
            "install the same llama.cpp release on all hosts.",
        )
        for status in spoken
        for version in [status.protocol or {}]
        if version["major"] != major or (protocol and version["minor"] > minor)
    ]


def device_counts(statuses: Sequence[WorkerStatus]) -> list[int]:
    """Return how many devices each worker has."""
    return [len(status.devices) for status in statuses]


def _shares(split: Sequence[float], statuses: Sequence[WorkerStatus]) -> list[float]:
    """Divide each worker's share among its devices by their free memory, as upstream does without shares."""
    shares = []
    for share, status in zip(split, statuses):
        free = [device["memory_free_bytes"] for device in status.devices]
        whole = sum(free)
        shares += [share * part / whole if whole else share / len(free) for part in free]
    return shares


def build_command(
    capabilities: Capabilities, options: Options, statuses: Sequence[WorkerStatus], prompt_file: str | None
) -> list[str]:
    """Return the command line; `statuses` are those of the verified workers, empty if nobody asked them."""
    names = capabilities.rpc_device_names(options.endpoints, device_counts(statuses) if statuses else None)
    split = _shares(options.tensor_split, statuses) if statuses else options.tensor_split
    return [
        capabilities.program,
        *("-m", options.model),
        *(("-bf", prompt_file) if prompt_file else ("-p", options.prompt)),
        *("-n", str(options.n_predict)),
        *("-c", str(options.ctx_size)),
        *("-s", str(options.seed)),
        *("--temp", f"{options.temperature:.10g}"),
        *(("-t", str(options.threads)) if options.threads is not None else ()),
        # Devices have names only after --rpc.
        *("--rpc", ",".join(options.endpoints)),
        # All or none: upstream then refuses to go on without a worker, and leaves devices of the master out.
        *(("--device", ",".join(names)) if names else ()),
        *("-ngl", str(options.n_gpu_layers)),
        *(("-ts", ",".join(f"{share:g}" for share in split)) if split else ()),
        *capabilities.no_fit,
        *capabilities.no_conversation,
        *capabilities.no_display_prompt,
        *capabilities.no_escape,
        *capabilities.no_colors,
        *capabilities.verbosity,
        *options.extra_args,
    ]


# After the run


def generated_text(stdout: str) -> str:
    """Return the text alone, exactly: without the mark and the two line feeds that upstream prints after it."""
    if not stdout.endswith("\n\n"):
        return stdout
    text = stdout[:-2]
    mark = " [end of text]\n"
    return text[: -len(mark)] if text.endswith(mark) else text


@dataclass(frozen=True)
class Ending:
    """How a run ended: its status as a shell gives it, its log, and the workers as they were afterwards."""

    program: str
    exit_status: int
    timed_out: bool
    timeout: int
    stderr: str
    log: PerfLog
    workers_after: Sequence[WorkerStatus]


_ABORTED, _SEGMENTATION_FAULT, _BROKEN_PIPE = 134, 139, 141
_KILLED, _ILLEGAL_INSTRUCTION = 137, 132
_CANNOT_START = (126, 127)

# What upstream prints; with its source files.
# common/log.cpp: the time and the level of a line
_LEVEL = re.compile(r"^\d+\.\d\d\.\d{3}\.\d{3} ([IWED]) ", re.MULTILINE)
# common/arg.cpp
_BAD_ARGUMENT = re.compile(r'^error while handling argument "([^"]*)": (.*)', re.MULTILINE)
_UNKNOWN_ARGUMENT = re.compile(r"^error: invalid argument: (.*)", re.MULTILINE)
_OTHER_ARGUMENT = re.compile(r"^error: (.*)", re.MULTILINE)
# tools/completion/completion.cpp
_LONG_PROMPT = re.compile(r"prompt is too long \((?P<tokens>\d+) tokens, max (?P<room>\d+)\)")
_EMPTY_PROMPT = re.compile(r"\binput is empty\b")
# common/common.cpp, where the context is rounded up and the batch is not
_LONG_BATCH = re.compile(r"failed to add token \d+ at index (?P<room>\d+) \(error -?\d+, n = (?P<tokens>\d+)\)")
# ggml/src/ggml-rpc/ggml-rpc.cpp and transport.cpp
_NOT_CONNECTED = re.compile(r"Failed to connect to ([^\s:]+:\d+)")
_NOT_RESOLVED = re.compile(r"Cannot resolve host '([^']*)'")
_OTHER_VERSION = re.compile(r"(?<!WARNING: )RPC server version mismatch: (\S+)")
_HANDSHAKE_FAILED = re.compile(r"RPC handshake failed for ([^\s:]+:\d+)")
_CUT_OFF = re.compile(r"Remote RPC server crashed or returned malformed response|(?:recv|send) failed \(bytes_")
# src/llama-model.cpp, src/llama-context.cpp, src/llama-kv-cache.cpp, ggml/src/ggml-alloc.c
_NO_MEMORY = re.compile(
    r"(?:unable|failed) to allocate (?P<buffer>\S+) buffer"
    r"|failed to allocate (?:compute|buffer|output)|failed to reserve (?:memory|initial output buffer)"
    r"|std::bad_alloc|Cannot allocate memory"
)
_RETRIED = "retrying without pipeline parallelism"
# src/llama-model.cpp
_BAD_MODEL = re.compile(r"error loading model: (.*)")
_NO_MODEL = re.compile(r"failed to load model")
# src/llama.cpp: in split mode "tensor" the devices act as one, whose buffers name none of them. This line has the
# endpoint unless --device was given, which takes all devices or none.
_JOINT_DEVICE = re.compile(r"\bllama_\w+: - device \d+: RPC\d+(?: \((\S+)\))?$", re.MULTILINE)


def classify(options: Options, ending: Ending, protocol: str | None) -> Failure | None:
    """Return why the run failed, or None if it ended well and every worker took part."""
    if ending.timed_out:
        return _timed_out(options, ending)
    if ending.exit_status == 0:
        return _incomplete(ending) or _dropped(options, ending)
    return (
        _cannot_run(ending)
        or _option_rejected(ending, protocol)
        or _not_connected(options, ending)
        or _other_version(options, ending, protocol)
        or _out_of_memory(ending)
        or _cut_off(options, ending, protocol)
        or _model_invalid(options, ending)
        or _unknown(ending)
    )


def _working(options: Options, log: PerfLog, stderr: str) -> set[str]:
    """Return the endpoints that hold a part of the model, as the log proves."""
    joint = _JOINT_DEVICE.findall(stderr)
    if len(joint) >= len(options.workers) and not any(joint):
        return set(options.endpoints)
    return {endpoint for endpoint in joint if endpoint} | {
        device["endpoint"] for device in log["devices"] if device["endpoint"] and device["model_buffer_mib"]
    }


def _timed_out(options: Options, ending: Ending) -> Failure:
    started = _working(options, ending.log, ending.stderr)
    suspects = [s for s in ending.workers_after if s.state != "ready" and s.endpoint not in started]
    # Of those that had started, one that cannot be reached explains the wait. The end of the master has other signs:
    # a worker is busy until it notices, or has died of its answer to a master that was gone.
    suspects = suspects or [s for s in ending.workers_after if s.state == "unreachable"]
    found = " ".join(status.message for status in suspects) or "Nothing hinders it; raise timeout, or ask for less."
    stopped = [s.endpoint for s in ending.workers_after if s.state == "refused" and s.endpoint in started]
    if stopped:
        found += f" {', '.join(stopped)} stopped as its master was ended; start it again unless systemd does."
    endpoint = suspects[0].endpoint if suspects else None
    return Failure("timed_out", endpoint, f"The run did not end within {ending.timeout} s and was ended. {found}")


def _dropped(options: Options, ending: Ending) -> Failure | None:
    idle = [e for e in options.endpoints if e not in _working(options, ending.log, ending.stderr)]
    if not idle:
        return None
    total = (ending.log["offload"] or {"layers_total": len(options.workers)})["layers_total"]
    if total < len(options.workers):
        why = f"the model has only {total} layers for {len(options.workers)} workers; name at most {total} workers."
    else:
        why = "llama.cpp gave it no layer; give it a share with tensor_split, or take it out of workers."
    return Failure("worker_dropped", idle[0], f"No part of the model was on {', '.join(idle)}: {why}")


def _incomplete(ending: Ending) -> Failure | None:
    # The figures come after the text and through the same queue: where there is one of them, the text is whole.
    if ending.log["perf"]:
        return None
    program = Path(ending.program).name
    message = f"{program} ended without its figures, so that the text may be cut off; run again."
    return OutputLost("unknown", None, message)


def output_lost(failure: Failure | None, perf: Perf | None) -> bool:
    """Whether a run lost its last lines: what it had to say, the text, or, after the text, figures."""
    if failure:
        return isinstance(failure, OutputLost)
    # Of the figures of all generations, the last that every build prints.
    return perf is None or perf["total"]["time_ms"] is None


def _unknown(ending: Ending) -> Failure:
    program = Path(ending.program).name
    message = f"{program} ended with status {ending.exit_status} and no message that is known; see log_tail."
    return (OutputLost if _message_lost(ending) else Failure)("unknown", None, message)


def _message_lost(ending: Ending) -> bool:
    """Whether a program that gave up, and then says why, did not get to say it."""
    levels = _LEVEL.findall(ending.stderr)
    return ending.exit_status == 1 and "E" not in levels and (bool(levels) or not ending.stderr.strip())


def _cannot_run(ending: Ending) -> Failure | None:
    if ending.exit_status in _CANNOT_START:
        why = "cannot be started on this host; install llama.cpp again"
    elif ending.exit_status == _ILLEGAL_INSTRUCTION:
        why = "uses instructions that this host's CPU does not have; build it for this host"
    else:
        return None
    return Failure("binary_missing", None, f"{ending.program} {why}.")


def _option_rejected(ending: Ending, protocol: str | None) -> Failure | None:
    text = ending.stderr
    bad = _BAD_ARGUMENT.search(text)
    if bad and bad[1] in ("--rpc", "--device"):
        # Some builds skip a worker that they cannot reach; then its device has no name.
        message = f"llama.cpp did not take all workers: {bad[2]}; look at the workers' logs."
        return worker_failure(ending.workers_after, protocol) or Failure("worker_dropped", None, message)
    if bad:
        return Failure("option_rejected", None, f"llama.cpp does not take this value of {bad[1]}: {bad[2]}.")
    unknown = _UNKNOWN_ARGUMENT.search(text)
    if unknown:
        return Failure("option_rejected", None, f"llama.cpp has no option {unknown[1]}; take it out of extra_args.")
    other = _OTHER_ARGUMENT.search(text)
    if other:
        return Failure("option_rejected", None, f"llama.cpp rejects the options: {other[1]}.")
    long = _LONG_PROMPT.search(text) or _LONG_BATCH.search(text)
    if long:
        tokens, room = long["tokens"], long["room"]
        message = f"The prompt has {tokens} tokens and there is room for {room}; raise ctx_size or shorten it."
        return Failure("option_rejected", None, message)
    if _EMPTY_PROMPT.search(text):
        return Failure("option_rejected", None, "The prompt is empty, and this model needs one; set prompt.")
    return None


def _not_connected(options: Options, ending: Ending) -> Failure | None:
    connect = _NOT_CONNECTED.search(ending.stderr)
    resolve = _NOT_RESOLVED.search(ending.stderr)
    if connect:
        endpoint: str | None = connect[1]
    elif resolve:
        endpoint = next((str(worker) for worker in options.workers if worker.host == resolve[1]), None)
    else:
        return None
    if endpoint in _working(options, ending.log, ending.stderr):
        return _lost([status for status in ending.workers_after if status.endpoint == endpoint])
    now = [status.message for status in ending.workers_after if status.endpoint == endpoint and status.state != "ready"]
    message = now[0] if now else "It answers now; run again."
    return Failure("worker_unreachable", endpoint, f"The master could not connect to worker {endpoint}. {message}")


def _other_version(options: Options, ending: Ending, protocol: str | None) -> Failure | None:
    version = _OTHER_VERSION.search(ending.stderr)
    handshake = _HANDSHAKE_FAILED.search(ending.stderr)
    if not version and not handshake:
        return None
    known = worker_failure(ending.workers_after, protocol)
    if known and known.kind == "protocol_mismatch":
        return known
    only = options.endpoints[0] if len(options.workers) == 1 else None
    endpoint = handshake[1] if handshake else only
    theirs = f"RPC protocol {version[1]}" if version else "another RPC protocol"
    return Failure(
        "protocol_mismatch",
        endpoint,
        f"{endpoint or 'A worker'} speaks {theirs}, which this master does not; "
        "install the same llama.cpp release on all hosts.",
    )


def _out_of_memory(ending: Ending) -> Failure | None:
    # What comes before a retry was not the end.
    found = _NO_MEMORY.search(ending.stderr.rpartition(_RETRIED)[2])
    if found:
        buffer = re.fullmatch(r"RPC\d*\[(.+)\]", found["buffer"] or "")
        endpoint = buffer[1] if buffer else None
        who = f"Worker {endpoint}" if endpoint else "The master, or a worker that it does not name,"
    elif ending.exit_status == _KILLED:
        endpoint, who = None, "The program was killed by the system, most likely because the master"
    else:
        return None
    remedy = "lower ctx_size, use a smaller model or quantization, or give it less with tensor_split"
    return Failure("out_of_memory", endpoint, f"{who} has too little memory for its part; {remedy}.")


def _lost(gone: Sequence[WorkerStatus]) -> Failure:
    if not gone:
        message = "A worker broke the connection during the run and all answer again; look for a restart in their logs."
        return Failure("worker_lost", None, message)
    names = ", ".join(status.endpoint for status in gone)
    now = " ".join(status.message for status in gone if status.state != "ready")
    return Failure("worker_lost", gone[0].endpoint, f"Worker {names} was lost during the run. {now}".rstrip())


def _cut_off(options: Options, ending: Ending, protocol: str | None) -> Failure | None:
    gone = [status for status in ending.workers_after if status.state not in ("ready", "busy", "incompatible")]
    cut_off = _CUT_OFF.search(ending.stderr)
    crashed = ending.exit_status in (_ABORTED, _SEGMENTATION_FAULT, _BROKEN_PIPE)
    if not cut_off and not (crashed and gone):
        return None
    if _working(options, ending.log, ending.stderr):
        return _lost(gone)
    # All connections are made before a buffer is.
    known = worker_failure(ending.workers_after, protocol)
    if known:
        return known
    only = options.endpoints[0] if len(options.workers) == 1 else None
    return Failure(
        "protocol_mismatch",
        only,
        f"{only or 'A worker'} broke the connection at the first message, as workers of another RPC protocol do; "
        "install the same llama.cpp release on all hosts.",
    )


def _model_invalid(options: Options, ending: Ending) -> Failure | None:
    reasons = _BAD_MODEL.findall(ending.stderr)
    remedy = "fetch it again, or use another"
    if reasons:
        message = f"llama.cpp cannot load {options.model}: {reasons[-1].rstrip('.')}; {remedy}."
    elif _NO_MODEL.search(ending.stderr):
        message = f"llama.cpp cannot load {options.model}; {remedy}."
    elif ending.exit_status == 1 and not _working(options, ending.log, ending.stderr):
        # What ends a program that early and is not above is the model.
        message = f"llama.cpp ended while it opened {options.model} and its message is lost; {remedy}."
        return OutputLost("model_invalid", None, message)
    else:
        return None
    return Failure("model_invalid", None, message)
