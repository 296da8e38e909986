# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: one run of distributed inference: its command line before it and its result after it.

Knows neither Ansible nor processes: it checks the options, builds the command, and judges the end of the run.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

from .._rpc.worker_status import WorkerStatus
from .capabilities import Program
from .worker_run import (
    BASE_S,
    LOAD_BYTES_PER_S,
    S_PER_TOKEN,
    STALL_S,
    Ending,
    Failure,
    OptionError,
    RunOptions,
    argument_rejected,
    check_numbers,
    device_names,
    dropped,
    errors,
    failed,
    given_up,
    installed,
    shares,
    unknown,
    working,
)

# Linux takes at most 128 KiB as one argument (MAX_ARG_STRLEN); a longer prompt goes through a file.
MAX_PROMPT_ARGUMENT_BYTES = 100_000
# For the default time limit: 10 tokens of 4 bytes.
_PROMPT_BYTES_PER_S = 40
# The most of a prompt that is computed without a message to the master: a batch of 2048 tokens of 4 bytes.
_BATCH_BYTES = 2048 * 4
# Slow hosts read 10 tokens a second with models of up to this size.
_QUICK_MODEL_BYTES = 4e9

_BOUNDS = {
    "n_predict": (1, 1_000_000),
    "ctx_size": (0, 2**31 - 1),
    "seed": (-1, 2**32 - 1),
    "temperature": (0, 100),
    "stall_timeout": (1, 30 * 24 * 3600),
}
# Upstream options that the module sets itself, with the module's option to use instead; None if there is none.
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
    # These change the log, which has the proof of work and the figures, or the text on standard output.
    **dict.fromkeys(
        """
        --verbosity --verbose --log-disable --log-colors --log-jsonl --log-prefix --log-timestamps --no-perf --color
        --no-display-prompt --escape --no-escape
        """.split()
    ),
    # These wait for a person, or end without inference.
    **dict.fromkeys(
        """
        --conversation --no-conversation --interactive --interactive-first --help --version --list-devices --cache-list
        --completion-bash
        """.split()
    ),
}


class OutputLost(Failure):
    """The failure of a run whose last lines are missing; a second run most likely has them.

    Upstream builds since 2026 write text and log from a thread, and the program ends without waiting for it.
    (common/log.cpp, ggml-org/llama.cpp#22142) On a busy host that thread sometimes has not written everything by then.
    """


@dataclass(frozen=True)
class Options(RunOptions):
    prompt: str
    n_predict: int
    ctx_size: int
    seed: int
    temperature: float
    extra_args: tuple[str, ...]
    stall_timeout: int | None


# Before the run


def check_options(options: Options) -> None:
    """Raise OptionError for the first value that no build can run."""
    check_numbers(options, _BOUNDS)
    if 0 < options.ctx_size <= options.n_predict:
        raise OptionError(
            f"n_predict is {options.n_predict}, which leaves no room for the prompt in ctx_size "
            f"({options.ctx_size}); raise ctx_size or lower n_predict."
        )
    for name, text in [("prompt", options.prompt), *(("extra_args", text) for text in options.extra_args)]:
        if "\0" in text:
            raise OptionError(f"{name} contains a NUL character, which no program accepts; remove it.")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise OptionError(f"{name} is not valid UTF-8 text; correct its encoding.") from None


def check_extra_args(extra_args: Iterable[str], capabilities: Program) -> None:
    """Raise OptionError for an option that the module sets itself, in any of its spellings."""
    owned = {name: option for known, option in _OWNED.items() for name in capabilities.spellings(known)}
    for text in extra_args:
        # Upstream accepts --top_k as --top-k.
        name = text.replace("_", "-") if text.startswith("--") else text
        if name not in owned:
            continue
        option = owned[name]
        remedy = f"use the option {option} instead" if option else "take it out, the result depends on it"
        raise OptionError(f"extra_args must not contain {text}; {remedy}.")


def time_limit(options: Options, model_bytes: int) -> int:
    """Return the time limit of the run in seconds: the requested one, or a default that even slow hosts meet."""
    if options.timeout is not None:
        return options.timeout
    load = model_bytes / LOAD_BYTES_PER_S
    prompt = len(options.prompt.encode()) / _PROMPT_BYTES_PER_S
    return math.ceil(BASE_S + load + prompt + options.n_predict * S_PER_TOKEN)


def stall_limit(options: Options, model_bytes: int) -> int:
    """Return how many seconds a run may stand still: the requested limit, or a default that even slow hosts meet.

    While a worker computes a batch of the prompt, no progress can be seen.
    """
    if options.stall_timeout is not None:
        return options.stall_timeout
    batch = min(len(options.prompt.encode()), _BATCH_BYTES) / _PROMPT_BYTES_PER_S
    return math.ceil(STALL_S + batch * max(1.0, model_bytes / _QUICK_MODEL_BYTES))


def build_command(
    capabilities: Program, options: Options, statuses: Sequence[WorkerStatus], prompt_file: str | None
) -> list[str]:
    """Return the command line; `statuses` are those of the verified workers, empty without verification."""
    names = device_names(statuses)
    split = shares(options.tensor_split, statuses) if statuses else options.tensor_split
    return [
        capabilities.program,
        *("-m", options.model),
        *(("-bf", prompt_file) if prompt_file else ("-p", options.prompt)),
        *("-n", str(options.n_predict)),
        *("-c", str(options.ctx_size)),
        *("-s", str(options.seed)),
        *("--temp", f"{options.temperature:.10g}"),
        *(("-t", str(options.threads)) if options.threads is not None else ()),
        # The devices of workers have names only after --rpc.
        *("--rpc", ",".join(options.endpoints)),
        # All or none. With all names, upstream refuses to run without a worker, and does not use the master's devices.
        *(("--device", ",".join(names)) if names else ()),
        *("-ngl", str(options.n_gpu_layers)),
        *(("-ts", ",".join(f"{share:g}" for share in split)) if split else ()),
        # Upstream would change the context to what it estimates to fit, and load twice for that.
        *("-fit", "off"),
        # A model with a chat template would make it a chat.
        "-no-cnv",
        "--no-display-prompt",
        # Keep the prompt as it is: upstream would turn `\n` in it into a line feed.
        "--no-escape",
        *("--log-colors", "off"),
        *capabilities.verbosity,
        *options.extra_args,
    ]


# After the run


def generated_text(stdout: str) -> str:
    """Return exactly the generated text, without the end mark and the two line feeds that upstream prints after it."""
    if not stdout.endswith("\n\n"):
        return stdout
    text = stdout[:-2]
    mark = " [end of text]\n"
    return text[: -len(mark)] if text.endswith(mark) else text


# Messages of upstream, with their source files.
# common/log.cpp: the time and the level of a line
_LEVEL = re.compile(r"^\d+\.\d\d\.\d{3}\.\d{3} ([IWED]) ", re.MULTILINE)
# tools/completion/completion.cpp
_LONG_PROMPT = re.compile(r"prompt is too long \((?P<tokens>\d+) tokens, max (?P<room>\d+)\)")
_EMPTY_PROMPT = re.compile(r"\binput is empty\b")
# common/common.cpp, where the context is rounded up and the batch is not
_LONG_BATCH = re.compile(r"failed to add token \d+ at index (?P<room>\d+) \(error -?\d+, n = (?P<tokens>\d+)\)")


def classify(options: Options, ending: Ending, protocol: str | None) -> Failure | None:
    """Return why the run failed, or None if it ended well and every worker took part."""
    failure = given_up(options, ending)
    if failure:
        return failure
    if ending.exit_status == 0:
        return _incomplete(ending) or dropped(options, ending, protocol)
    return (
        failed(options, ending, protocol, _option_rejected, "lower ctx_size")
        or _message_lost(options, ending)
        or unknown(ending)
    )


def _incomplete(ending: Ending) -> Failure | None:
    # The figures come after the text through the same queue, so if any figure is there, the text is complete.
    if ending.log["perf"]:
        return None
    program = Path(ending.program).name
    message = f"{program} ended without its figures, so that the text may be cut off; run again."
    return OutputLost("unknown", None, message)


def output_lost(failure: Failure | None, perf: Mapping[str, Any] | None) -> bool:
    """Return whether a run lost its last lines: its message, its text, or the figures after the text."""
    if failure:
        return isinstance(failure, OutputLost)
    # The last figure that builds of all generations print.
    return perf is None or perf["total"]["time_ms"] is None


def _message_lost(options: Options, ending: Ending) -> Failure | None:
    """Return the failure of a program that gave up and whose message was lost, or None."""
    if ending.exit_status != 1:
        return None
    if not working(options, ending):
        # What follows these errors may be lost.
        if errors(ending.stderr):
            return OutputLost("unknown", None, unknown(ending).message)
        # If a program ends that early and for no other known reason, the model is the cause.
        message = (
            f"llama.cpp ended while it opened {options.model} and its message is lost: {installed(ending)} may be "
            "too old for the model, or the copy is damaged; use a newer llama.cpp, or compare the copy with its source."
        )
        return OutputLost("model_invalid", None, message)
    levels = _LEVEL.findall(ending.stderr)
    if "E" not in levels and (levels or not ending.stderr.strip()):
        return OutputLost("unknown", None, unknown(ending).message)
    return None


def _option_rejected(ending: Ending, protocol: str | None) -> Failure | None:
    rejected = argument_rejected(ending, protocol)
    if rejected:
        return rejected
    text = ending.stderr
    long = _LONG_PROMPT.search(text) or _LONG_BATCH.search(text)
    if long:
        tokens, room = long["tokens"], long["room"]
        message = f"The prompt has {tokens} tokens and there is room for {room}; raise ctx_size or shorten the prompt."
        return Failure("option_rejected", None, message)
    if _EMPTY_PROMPT.search(text):
        return Failure("option_rejected", None, "The prompt is empty, and this model needs one; set prompt.")
    return None
