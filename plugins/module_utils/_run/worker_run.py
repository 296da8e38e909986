# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the common steps before and after any run of a llama.cpp program over RPC workers.

Knows neither Ansible nor processes, nor the purpose of the program.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Mapping, NamedTuple, Sequence

from .._gguf.ggml_types import LAST_PLAUSIBLE_TYPE, is_of_fork
from .._gguf.header import GgufError, check_piece, model_parts, read_header
from .._plan.options import planned_options, value_of
from .._rpc.endpoint import Endpoint
from .._rpc.keepalive import GONE_AFTER_S
from .._rpc.worker_status import WorkerStatus
from .._status.limits import MAX_WORKERS
from .perf_log import Figures

# Start no debugger that prints a trace at an abort (ggml/src/ggml.c). Print messages in English and numbers in C form.
# From protocol 8 on, a master has two workers listen for each other, on all addresses and without authentication.
ENVIRONMENT = {"GGML_NO_BACKTRACE": "1", "LC_ALL": "C"}
# Upstream takes option defaults from the environment, but only the command may define a run. (common/arg.cpp)
WITHOUT_ENVIRONMENT = ("LLAMA_ARG_", "LLAMA_LOG_")

# The default time limit allows for a slow disk (the card of a Raspberry Pi), a slow network and a slow processor.
BASE_S = 120
# A run is ended if nothing moves for this long plus the time for the prompt.
STALL_S = 120
# In split mode "tensor", llama.cpp divides the states of these among devices (src/llama-model.cpp), and points views
# without elements (src/llama-graph.cpp, build_rs) beyond a device's part, up to this RPC protocol. RPC servers refuse
# these views, or end.
UNDIVIDED, UNDIVIDED_UP_TO = frozenset(("qwen35", "qwen35moe", "qwen3next")), 7
# A link of 100 Mbit/s: every byte of the model may have to pass through the master's link.
LOAD_BYTES_PER_S = 10_000_000
PROMPT_TOKENS_PER_S = 10
S_PER_TOKEN = 2


class OptionError(ValueError):
    """The options cannot be run; the message is one sentence that names the option."""


class SplitModeError(OptionError):
    """llama.cpp cannot divide the model among the workers in this split mode; the message is one sentence."""


class ModelError(ValueError):
    """The model cannot be loaded; the message is one sentence."""


class Failure(NamedTuple):
    """The reason why a run has no result, or none to trust."""

    kind: str
    endpoint: str | None
    message: str


@dataclass(frozen=True)
class RunOptions:
    """The options of every run. None leaves one to upstream; for `timeout`, in seconds, None means the default."""

    model: str
    # In the order in which they get their layers.
    workers: tuple[Endpoint, ...]
    n_gpu_layers: int
    # A share for each worker, or empty.
    tensor_split: tuple[float, ...]
    threads: int | None
    timeout: int | None
    # Whether two workers add up partial results by themselves.
    worker_link: bool

    @property
    def environment(self) -> dict[str, str]:
        """What a program gets besides the module's environment."""
        return {**ENVIRONMENT, "GGML_RPC_LINK" if self.worker_link else "GGML_RPC_NO_COMM": "1"}

    @property
    def endpoints(self) -> list[str]:
        """The workers as upstream's log names them."""
        return [str(worker) for worker in self.workers]


# Before the run


def _check_number(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise OptionError(f"{name} is {value}; give a number from {low} to {high}.")


def check_numbers(options: RunOptions, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Raise OptionError for the first number that is not within its bounds, or if workers cannot share these layers."""
    _check_workers(options)
    for name, (low, high) in {**bounds, "threads": (1, 512), "timeout": (1, 30 * 24 * 3600)}.items():
        given = getattr(options, name)
        for value in given if isinstance(given, tuple) else () if given is None else (given,):
            _check_number(name, value, low, high)


def _check_workers(options: RunOptions) -> None:
    count = len(options.workers)
    if not 1 <= count <= MAX_WORKERS:
        raise OptionError(f"workers has {count} entries; llama.cpp uses at least 1 and at most {MAX_WORKERS}.")
    _check_number("n_gpu_layers", options.n_gpu_layers, 1, 1_000_000)
    if options.n_gpu_layers < count:
        raise OptionError(
            f"n_gpu_layers is {options.n_gpu_layers} for {count} workers; "
            "each worker needs at least one layer, so raise it or name fewer workers."
        )
    _check_tensor_split(options)


def _check_tensor_split(options: RunOptions) -> None:
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


def check_model(path: str) -> int:
    """Return the size of a model in bytes, all parts of a split model together. Raises ModelError."""
    try:
        parts = model_parts(Path(path))
    except GgufError as error:
        raise ModelError(str(error)) from None
    return sum(_part_bytes(part) for part in parts)


def _part_bytes(path: Path) -> int:
    try:
        if path.is_dir():
            raise ModelError(f"The model {path} is a folder; give the path of a GGUF file.")
        if not path.is_file():
            raise ModelError(f"There is no model {path} on this host; put it there, or correct the path.")
        check_piece(path)
        with path.open("rb") as file:
            magic = file.read(4)
        size = path.stat().st_size
    except GgufError as error:
        raise ModelError(f"The model {path} cannot be loaded: {error}.") from None
    except OSError as error:
        raise ModelError(f"The model {path} cannot be read: {error.strerror}.") from error
    if size == 0:
        raise ModelError(f"The model {path} is empty; fetch it again.")
    if magic != b"GGUF":
        raise ModelError(f"The model {path} is not a GGUF file; convert it, or give another.")
    return size


def check_split_mode(options: RunOptions, words: Sequence[str], protocol: str | None) -> None:
    """Raise SplitModeError if these options ask for split mode "tensor", in which llama.cpp cannot divide the model."""
    newer = protocol is not None and int(protocol.partition(".")[0]) > UNDIVIDED_UP_TO
    if newer or len(options.workers) < 2 or value_of(planned_options(words), "-sm") != "tensor":
        return
    try:
        architecture = read_header(Path(options.model)).metadata.get("general.architecture")
    except (GgufError, OSError):
        return  # llama.cpp itself says what is wrong with the file.
    if architecture in UNDIVIDED:
        raise SplitModeError(_cannot_divide(f"a model of architecture {architecture}", options, "tensor"))


def _cannot_divide(model: str, options: RunOptions, mode: str) -> str:
    return f"llama.cpp cannot divide {model} among {len(options.workers)} workers in split mode {mode}; use layer."


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
    if devices > MAX_WORKERS:
        message = f"The workers have {devices} devices and llama.cpp uses at most {MAX_WORKERS}; name fewer workers."
        return Failure("option_rejected", None, message)
    return None


def _mismatches(statuses: Sequence[WorkerStatus], protocol: str | None) -> list[Failure]:
    """Return the workers that this master refuses: another major version, or a newer minor one."""
    spoken = [status for status in statuses if status.protocol]
    if not spoken:
        return []
    # If the master's own protocol is unknown, its workers must at least agree with each other.
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


def device_names(statuses: Sequence[WorkerStatus]) -> list[str]:
    """Return the names of all devices of the workers, which llama.cpp counts over all workers."""
    return [f"RPC{number}" for number in range(sum(len(status.devices) for status in statuses))]


def shares(split: Sequence[float], statuses: Sequence[WorkerStatus]) -> list[float]:
    """Divide each worker's share among its devices by their free memory, as upstream does without shares."""
    shares = []
    for share, status in zip(split, statuses):
        free = [device["memory_free_bytes"] for device in status.devices]
        whole = sum(free)
        shares += [share * part / whole if whole else share / len(free) for part in free]
    return shares


def divided_by(options: RunOptions, statuses: Sequence[WorkerStatus]) -> list[float]:
    """Return the shares by which llama.cpp divides the layers among the workers' devices, empty if they are not known.

    Without a tensor_split, it divides them by the free memory that the workers report.
    """
    if options.tensor_split:
        given = shares(options.tensor_split, statuses) if statuses else options.tensor_split
        # As the command line has them.
        return [float(f"{share:g}") for share in given]
    free = [float(device["memory_free_bytes"]) for status in statuses for device in status.devices]
    return free if all(free) else []


# After the run


@dataclass(frozen=True)
class Ending:
    """The end of a run: its status as a shell gives it, its log, and the state of the workers afterwards."""

    program: str
    exit_status: int
    timed_out: bool
    timeout: int
    stderr: str
    log: Figures
    workers_after: Sequence[WorkerStatus]
    # If the run was ended because a worker's host no longer answered: the worker, as address and port.
    gone: tuple[str, int] | None = None
    # If the run was ended because nothing moved: for how many seconds.
    still_s: int | None = None


_ABORTED, _SEGMENTATION_FAULT, _BROKEN_PIPE = 134, 139, 141
_KILLED, _ILLEGAL_INSTRUCTION = 137, 132
_CANNOT_START = (126, 127)

# Messages of upstream, with their source files.
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
# common/arg.cpp
_BAD_ARGUMENT = re.compile(r'^error while handling argument "([^"]*)": (.*)', re.MULTILINE)
_UNKNOWN_ARGUMENT = re.compile(r"^error: invalid argument: (.*)", re.MULTILINE)
_OTHER_ARGUMENT = re.compile(r"^error: (.*)", re.MULTILINE)
# src/llama-model.cpp, and tools/mtmd/clip.cpp for a projector
_BAD_MODEL = re.compile(r"(?:error loading model|failed to load model '[^']{1,4096}'): (.*)")
# src/llama.cpp. llama-server says "failed to load model, '...'" after whatever went wrong.
_NO_MODEL = re.compile(r"failed to load model(?!, ')")
# tools/server/server-context.cpp, common/speculative.cpp: a file beside the model
_OTHER_FILE = re.compile(r"failed to load (?:draft|multimodal) model, '([^']{1,4096})'")
# common/common.cpp and tools/llama-bench/llama-bench.cpp; src/llama-context.cpp
_NO_CONTEXT = re.compile(r"failed to create context with model")
_CONTEXT_REASON = re.compile(r"\bllama_init_from_model: (.*)")
# common/log.cpp: a line of level E. Programs without these levels write `error:`.
_ERROR = re.compile(r"^(?:\d+\.\d\d\.\d{3}\.\d{3} E |(?:\w{1,60} ?: )?error: )(\S.{0,300})", re.MULTILINE)
# ggml/src/gguf.cpp: the first line has the reason, the others its effects. A header that is cut off has only effects.
_BAD_HEADER = re.compile(r"\bgguf_\w{1,60}: (.*)")
_EFFECT = re.compile(r"failed to read (?:tensor info|key-value pairs|header)$")
# What a damaged or incomplete copy can cause, and what a llama.cpp that knows more kinds of files can mend.
_DAMAGE = re.compile(
    r"failed to (?:read|seek|open|load GGUF split)|invalid magic|bad GGUF version|extremely large|exceeds|overflow"
    r"|not within the file|corrupted|duplicate|must be in \[|has offset|invalid data|length_error|bad_alloc|is empty"
    r"|invalid (?:number|GGUF type|split)"
)
_NOT_KNOWN = re.compile(
    r"unknown (?:model architecture|pre-tokenizer|tokenizer|projector)|invalid ggml type|only supports up to version"
    r"|missing tensor|key not found|wrong (?:shape|type|array)|tensor '[^']*' not found"
)
_TYPE = re.compile(r"invalid ggml type (-?\d{1,10})\b")
# ggml/src/ggml.c (ggml_abort): file, line, and the condition or the text
_ASSERTION = re.compile(
    r"^(?:.{0,300}[\s/])?([\w.+-]{1,100}\.(?:cc?|cpp|cuh?|h|hpp|inc|mm?):\d{1,7}: \S.{0,500})$", re.MULTILINE
)
# An exception that nothing caught, as the C++ library reports it
_EXCEPTION = re.compile(r"^ {0,2}what\(\): {1,2}(\S.{0,500})$", re.MULTILINE)
# ggml/src/ggml-backend-meta.cpp divides the tensors in split mode "tensor" alone.
_NOT_DIVIDED = re.compile(
    r"ggml-backend-meta\.cpp:\d+: \S|LLAMA_SPLIT_MODE_TENSOR not implemented for architecture '(?P<architecture>[^']*)'"
)
# src/llama.cpp: in split mode "tensor" the devices act as one, and the names of its buffers contain none of them. This
# line has the endpoint unless --device was given; --device names all devices or is not given.
_JOINT_DEVICE = re.compile(r"\bllama_\w+: - device \d+: RPC\d+(?: \((\S+)\))?$", re.MULTILINE)


def working(options: RunOptions, ending: Ending) -> set[str]:
    """Return the endpoints that hold a part of the model, as the log proves."""
    joint = _JOINT_DEVICE.findall(ending.stderr)
    if len(joint) >= len(options.workers) and not any(joint):
        return set(options.endpoints)
    return {endpoint for endpoint in joint if endpoint} | {
        device["endpoint"] for device in ending.log["devices"] if device["endpoint"] and device["model_buffer_mib"]
    }


def given_up(options: RunOptions, ending: Ending) -> Failure | None:
    """Return the failure of a run that was ended because it took too long, stood still, or had lost a host."""
    if ending.timed_out:
        return _timed_out(options, ending)
    # The run may have succeeded at the very moment in which it was given up.
    if ending.exit_status == 0:
        return None
    if ending.gone:
        return _gone(options, ending.gone, ending)
    return None if ending.still_s is None else _timed_out(options, ending)


def _gone(options: RunOptions, peer: tuple[str, int], ending: Ending) -> Failure:
    addresses = {status.endpoint: status.address for status in ending.workers_after}
    lost = [w for w in options.workers if w.port == peer[1] and peer[0] in (w.host, addresses.get(str(w)))]
    endpoint = str(lost[0]) if lost else f"{peer[0]}:{peer[1]}"
    now = " ".join(s.message for s in ending.workers_after if s.endpoint == endpoint and s.state != "ready")
    return Failure(
        "worker_lost",
        endpoint,
        f"Worker {endpoint} was lost during the run: its host acknowledged nothing for {GONE_AFTER_S} s. "
        f"{now or 'It answers now; run again.'}",
    )


def _timed_out(options: RunOptions, ending: Ending) -> Failure:
    limit = "timeout" if ending.still_s is None else "stall_timeout"
    started = working(options, ending)
    suspects = [s for s in ending.workers_after if s.state != "ready" and s.endpoint not in started]
    # Among the workers that had started, an unreachable one explains the wait, or else one that is still silent. One
    # that refuses is no suspect: it died when it answered a master that was gone.
    suspects = suspects or [s for s in ending.workers_after if s.state == "unreachable"]
    silent = [] if suspects else [s for s in ending.workers_after if s.state == "busy"]
    found = " ".join(status.message for status in suspects) or f"Nothing blocks it; raise {limit}, or ask for less."
    if silent:
        names = ", ".join(status.endpoint for status in silent)
        found = (
            f"{names} has answered nothing since: it computes its last batch to the end, or it hangs; look at the "
            f"processes of that host, start the RPC server again if it hangs, and raise {limit} if it is slow."
        )
    stopped = [s.endpoint for s in ending.workers_after if s.state == "refused" and s.endpoint in started]
    if stopped:
        found += f" {', '.join(stopped)} stopped as its master was ended; start it again unless systemd does."
    endpoint = next((status.endpoint for status in [*suspects, *silent]), None)
    why = (
        f"The run did not end within {ending.timeout} s"
        if ending.still_s is None
        else f"The run stood still for {ending.still_s} s"
    )
    return Failure("timed_out", endpoint, f"{why} and was ended. {found}")


def dropped(options: RunOptions, ending: Ending, protocol: str | None) -> Failure | None:
    """Return the failure of a run that ended well without one of its workers."""
    idle = [e for e in options.endpoints if e not in working(options, ending)]
    if not idle:
        return None
    # Some builds go on without a worker that they cannot use.
    known = worker_failure([status for status in ending.workers_after if status.endpoint in idle], protocol)
    if known:
        return known
    total = (ending.log["offload"] or {"layers_total": len(options.workers)})["layers_total"]
    if total < len(options.workers):
        why = f"the model has only {total} layers for {len(options.workers)} workers; name at most {total} workers."
    else:
        why = "llama.cpp gave it no layer; give it a share with tensor_split, or take it out of workers."
    return Failure("worker_dropped", idle[0], f"No part of the model was on {', '.join(idle)}: {why}")


def _cannot_run(ending: Ending) -> Failure | None:
    """Return the failure of a program that this host cannot run."""
    if ending.exit_status in _CANNOT_START:
        why = "cannot be started on this host; install llama.cpp again"
    elif ending.exit_status == _ILLEGAL_INSTRUCTION:
        why = "uses instructions that this host's CPU does not have; build it for this host"
    else:
        return None
    return Failure("binary_missing", None, f"{ending.program} {why}.")


def _mismatched(ending: Ending, protocol: str | None) -> Failure | None:
    """Return the failure of a run over a worker of another protocol, whatever the build printed.

    Not every generation reports it: some print that they could not connect, or nothing.
    """
    known = worker_failure(ending.workers_after, protocol)
    return known if known and known.kind == "protocol_mismatch" else None


def _not_connected(options: RunOptions, ending: Ending) -> Failure | None:
    """Return the failure of a run that could not connect to a worker."""
    connect = _NOT_CONNECTED.search(ending.stderr)
    resolve = _NOT_RESOLVED.search(ending.stderr)
    if connect:
        endpoint: str | None = connect[1]
    elif resolve:
        endpoint = next((str(worker) for worker in options.workers if worker.host == resolve[1]), None)
    else:
        return None
    if endpoint in working(options, ending):
        return _lost([status for status in ending.workers_after if status.endpoint == endpoint])
    now = [status.message for status in ending.workers_after if status.endpoint == endpoint and status.state != "ready"]
    message = now[0] if now else "It answers now; run again."
    return Failure("worker_unreachable", endpoint, f"The master could not connect to worker {endpoint}. {message}")


def _other_version(options: RunOptions, ending: Ending, protocol: str | None) -> Failure | None:
    """Return the failure of a run with a worker of another RPC protocol."""
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


def _out_of_memory(ending: Ending, smaller: str) -> Failure | None:
    """Return the failure of a run that was short of memory; `smaller` is the first part of the remedy."""
    # A message before a retry was not the end.
    found = _NO_MEMORY.search(ending.stderr.rpartition(_RETRIED)[2])
    if found:
        buffer = re.fullmatch(r"RPC\d*\[(.+)\]", found["buffer"] or "")
        endpoint = buffer[1] if buffer else None
        who = f"Worker {endpoint}" if endpoint else "The master, or a worker that it does not name,"
    elif ending.exit_status == _KILLED:
        endpoint, who = None, "The program was killed by the system, most likely because the master"
    else:
        return None
    remedy = f"{smaller}, use a smaller model or quantization, or give it less with tensor_split"
    return Failure("out_of_memory", endpoint, f"{who} has too little memory for its part; {remedy}.")


def _not_divided(options: RunOptions, ending: Ending) -> Failure | None:
    """Return the failure of a run in split mode "tensor" of a model that llama.cpp cannot divide among the workers."""
    found = _NOT_DIVIDED.search(ending.stderr)
    if not found:
        return None
    kind = f"a model of architecture {found['architecture']}" if found["architecture"] else "this model"
    where = "" if found["architecture"] else f" ({_assertion(ending.stderr)})"
    return Failure("split_mode_unsupported", None, _cannot_divide(kind, options, f"tensor{where}"))


def _assertion(log: str) -> str:
    """Return the last line with which the engine ended itself, such as `ggml.c:20: GGML_ASSERT(x) failed`, or none."""
    found = _ASSERTION.findall(log) or [f"an exception: {it}" for it in _EXCEPTION.findall(log)]
    return found[-1].rstrip(" .") if found else ""


def _ended_itself(ending: Ending) -> Failure | None:
    """Return the failure of a program that ended itself because a condition of the engine does not hold."""
    assertion = _assertion(ending.stderr) if ending.exit_status == _ABORTED else ""
    if not assertion:
        return None
    message = (
        f"llama.cpp ended itself at {assertion}: a limit or a mistake of this llama.cpp with this model and these "
        "options; leave out options that are not needed, or use another release."
    )
    return Failure("engine_assertion", None, message)


def _lost(gone: Sequence[WorkerStatus]) -> Failure:
    if not gone:
        message = (
            "A worker broke the connection during the run and all answer again; their journals say whether one started "
            "again or refused a request ([rpc_check] refused)."
        )
        return Failure("worker_lost", None, message)
    names = ", ".join(status.endpoint for status in gone)
    now = " ".join(status.message for status in gone if status.state != "ready")
    return Failure("worker_lost", gone[0].endpoint, f"Worker {names} was lost during the run. {now}".rstrip())


def _cut_off(options: RunOptions, ending: Ending, protocol: str | None) -> Failure | None:
    """Return the failure of a run whose connection a worker broke."""
    gone = [status for status in ending.workers_after if status.state not in ("ready", "busy", "incompatible")]
    cut_off = _CUT_OFF.search(ending.stderr)
    crashed = ending.exit_status in (_ABORTED, _SEGMENTATION_FAULT)
    # Only a worker can have closed a pipe or socket of the program: this host reads its output to the end.
    broke = ending.exit_status == _BROKEN_PIPE
    if not cut_off and not broke and not (crashed and gone):
        return None
    # A worker that accepted the connection and now accepts none was there.
    left = [status for status in gone if status.state in ("refused", "unreachable")]
    if working(options, ending) or broke or (cut_off and left):
        return _lost(gone)
    # All connections are made before the first buffer.
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


def failed(
    options: RunOptions,
    ending: Ending,
    protocol: str | None,
    option_rejected: Callable[[Ending, str | None], Failure | None],
    smaller: str,
) -> Failure | None:
    """Return the failure of a run, None if its cause is not known."""
    return (
        _cannot_run(ending)
        or option_rejected(ending, protocol)
        or _mismatched(ending, protocol)
        or _not_connected(options, ending)
        or _other_version(options, ending, protocol)
        or _out_of_memory(ending, smaller)
        or _not_divided(options, ending)
        or _cut_off(options, ending, protocol)
        or _ended_itself(ending)
        or _context_rejected(ending)
        or _model_invalid(options, ending)
    )


def argument_rejected(ending: Ending, protocol: str | None) -> Failure | None:
    """Return the failure of a program that llama.cpp's own argument parser ended."""
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
    return None


def _context_rejected(ending: Ending) -> Failure | None:
    """Return the failure of a run if llama.cpp loads the model, and refuses to make a context with these options."""
    if not _NO_CONTEXT.search(ending.stderr):
        return None
    reasons = _CONTEXT_REASON.findall(ending.stderr)
    why = f": {reasons[-1].rstrip('.')}" if reasons else ""
    message = f"llama.cpp cannot create a context with these options{why}; change flash_attn, cache types or sizes."
    return Failure("option_rejected", None, message)


def _not_loaded(log: str) -> str:
    """Return why llama.cpp cannot load a model, as it says itself; empty if it does not."""
    header = sorted(_BAD_HEADER.findall(log), key=lambda line: bool(_EFFECT.match(line)))
    return str([*header, *reversed(_BAD_MODEL.findall(log)), ""][0])


def _model_invalid(options: RunOptions, ending: Ending) -> Failure | None:
    """Return the failure of a run if llama.cpp reports that it cannot load the model, or a file beside it."""
    reason = _not_loaded(ending.stderr)
    if not reason and not _NO_MODEL.search(ending.stderr):
        return None
    why = f": {reason.rstrip('. ')}" if reason else ""
    if "does not support split buffers" in reason:
        return Failure(
            "split_mode_unsupported", None, f"llama.cpp cannot divide the model in this split mode{why}; use layer."
        )
    other = _OTHER_FILE.search(ending.stderr)
    path = other[1] if other else options.model
    return Failure("model_invalid", None, f"llama.cpp cannot load {path}{why}; {_remedy(reason, ending)}.")


def _remedy(reason: str, ending: Ending) -> str:
    """Return what can help if llama.cpp cannot load a model for this reason."""
    found = _TYPE.search(reason)
    kind = int(found[1]) if found else 0
    if is_of_fork(kind):
        return f"type {kind} is of ik_llama.cpp, a fork: use a file with types of llama.cpp"
    if "endianness" in reason:
        return "if it is for machines of another byte order, convert it for this one; else fetch it again"
    if "has offset" in reason:
        return (
            "the copy may be damaged, or from a fork whose types have other sizes: compare its digest with the source, "
            "and fetch it again, or use another file"
        )
    if "Permission denied" in reason:
        return "let this account read it"
    if "compatible buffer type" in reason:
        return "leave out options that say where tensors are, such as --override-tensor"
    if _DAMAGE.search(reason) or not 0 <= kind <= LAST_PLAUSIBLE_TYPE:
        return "the copy may be damaged: compare its digest with the source, and fetch it again"
    if "wrong number of tensors" in reason:
        return (
            "the file has tensors that this llama.cpp does not use, as files of Ollama have for pictures: use another "
            "file of the model, from a hub that has the projector (mmproj) apart, or a newer llama.cpp"
        )
    if _NOT_KNOWN.search(reason):
        return f"{installed(ending)} does not know such a file: use a newer llama.cpp, or another file of the model"
    return "use another file of the model, or another llama.cpp"


def installed(ending: Ending) -> str:
    """Return the llama.cpp that ran, as it names itself in its log."""
    build = ending.log["build"] or {}
    number = f"b{build['number']}" if build.get("number") and not build.get("commit") else ""
    name = number or build.get("version") or build.get("commit")
    return f"this llama.cpp ({name})" if name else "this llama.cpp"


def errors(log: str) -> list[str]:
    """Return what a program logged as errors, each once; the first ones have the cause."""
    return list(dict.fromkeys(line.rstrip(" .") for line in _ERROR.findall(log)))


def cause(log: str) -> str:
    """Return in upstream's words why a program has ended, from the log of that run; empty if the log does not say."""
    return (_assertion(log) or _not_loaded(log) or "; ".join(errors(log)[:2])).rstrip(" .")


def unknown(ending: Ending) -> Failure:
    """Return the failure of a program that printed no known message."""
    said = "; ".join(errors(ending.stderr)[:2])
    how = f": {said}" if said else " and without a known message"
    message = f"{Path(ending.program).name} ended with status {ending.exit_status}{how}; see log_tail."
    return Failure("unknown", None, message)
