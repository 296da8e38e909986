# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: one run of llama-server over RPC workers under a load: its options, its command line, and its figures.

This file knows nothing of Ansible.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any, Sequence

from .._rpc.worker_status import WorkerStatus
from .._run import worker_run
from .._run.capabilities import Program
from .._run.watch import Watch
from .._run.worker_run import Ending, Failure, OptionError, RunOptions
from .._serve import options as server_options
from .._serve.load import Load, LoadError, Server, Stream, figures, run, warm_up
from .bench import spread_of

ADDRESS = "127.0.0.1"
MAX_TOKENS = 1_000_000
LOOK_EVERY_S = 0.2
_BOUNDS = {
    "clients": (1, 256),
    "n_prompt": (1, MAX_TOKENS),
    "n_gen": (1, MAX_TOKENS),
    "repetitions": (1, 1000),
    "parallel": (1, 256),
    "ctx_size": (64, 100_000_000),
}
# Options of llama-server that the module sets itself, and the option of the module to use instead.
_SETS = {
    **dict.fromkeys(("--host", "--port", "--n-gpu-layers", "--fit", "--no-ui", "--api-key", "--api-key-file"), ""),
    "--model": "model",
    "--parallel": "parallel",
    "--ctx-size": "ctx_size",
    "--rpc": "workers",
    "--device": "workers",
    "--tensor-split": "tensor_split",
    "--threads": "threads",
    "--cache-ram": "",
}
_OWN = {names: _SETS[name] for names in server_options.OWN for name in names.split() if name in _SETS}
_KNOWN = server_options.endings(_OWN, "the module")


@dataclass(frozen=True)
class Options(RunOptions):
    """The options of a run; `ctx_size` is the context of each slot, `n_prompt` the words of a synthetic prompt."""

    clients: int
    n_prompt: int
    n_gen: int
    prompts: tuple[str, ...]
    repetitions: int
    parallel: int
    ctx_size: int
    extra_args: tuple[str, ...]


def check_options(options: Options) -> None:
    """Raise OptionError for the first value that no build can run."""
    worker_run.check_numbers(options, _BOUNDS)
    if any("\0" in word for word in (options.model, *options.extra_args)):
        raise OptionError("model or extra_args contains a NUL character, which no program accepts; remove it.")
    refused = server_options.refusals(options.extra_args, "extra_args", _KNOWN)
    if refused:
        raise OptionError(" ".join(refused))


def time_limit(options: Options, model_bytes: int) -> int:
    """Return the time limit of the run in seconds: the given one, or one that even slow hosts stay under."""
    if options.timeout is not None:
        return options.timeout
    once = options.n_prompt / worker_run.PROMPT_TOKENS_PER_S + options.n_gen * worker_run.S_PER_TOKEN
    load = model_bytes / worker_run.LOAD_BYTES_PER_S
    return math.ceil(worker_run.BASE_S + load + once * options.clients * options.repetitions)


def free_port() -> int:
    """Return a free TCP port of the loopback address."""
    with socket.socket() as sock:
        sock.bind((ADDRESS, 0))
        return int(sock.getsockname()[1])


def build_command(server: Program, options: Options, statuses: Sequence[WorkerStatus], port: int) -> list[str]:
    """Return the command line; `statuses` are those of the verified workers, or empty if nothing verified them."""
    names = worker_run.device_names(statuses)
    split = worker_run.shares(options.tensor_split, statuses) if statuses else options.tensor_split
    drafts = "--spec-draft-model" in options.extra_args and "--spec-draft-device" not in options.extra_args
    return [
        server.program,
        *("--model", options.model),
        *("--host", ADDRESS, "--port", str(port)),
        *("--parallel", str(options.parallel)),
        *("--ctx-size", str(options.parallel * options.ctx_size)),
        # --device must follow --rpc, because the devices have names only then.
        *("--rpc", ",".join(options.endpoints)),
        # Name all devices or none. With names, upstream fails if a worker is missing, and ignores the master's devices.
        *(("--device", ",".join(names)) if names else ()),
        # As role llama_server does: layers that predict further tokens may use the caches of the model's last layers.
        *(("--spec-draft-device", names[-1]) if names and drafts else ()),
        *("--n-gpu-layers", str(options.n_gpu_layers)),
        *(("--tensor-split", ",".join(f"{share:g}" for share in split)) if split else ()),
        *(("--threads", str(options.threads)) if options.threads is not None else ()),
        *("--fit", "off"),
        # As of the role, in MiB; no request takes anything from it.
        *("--cache-ram", "1024"),
        *(("--no-ui",) if server.has("--no-ui") else ()),
        *options.extra_args,
    ]


class Client(Watch):
    """A thread that sends a load to a llama-server as soon as it serves, and then ends the server."""

    def __init__(self, server: Server, options: Options, limit_s: float) -> None:
        super().__init__()
        self.server, self.options = server, options
        # The requests of each repetition, and the reason if repetitions are missing.
        self.repetitions: list[list[Stream]] = []
        self.problem = ""
        self._deadline = time.monotonic() + limit_s
        self._asking: threading.Thread | None = None

    def begin(self, process: Any) -> None:  # noqa: ANN401 (a Popen, of whatever pipes)
        """Watch the child of this process, and send it the load."""
        super().begin(process)
        self._asking = threading.Thread(target=self._ask, args=(process,), daemon=True)
        self._asking.start()

    def end(self) -> None:
        """Stop watching, and wait for the end of the load."""
        super().end()
        if self._asking:
            self._asking.join()

    def _ask(self, process: Any) -> None:  # noqa: ANN401
        try:
            while not self.server.serves():
                if process.poll() is not None:
                    return
                time.sleep(LOOK_EVERY_S)
            warm_up(self.server, self._left_s())
            for number in range(self.options.repetitions):
                given = self.options
                first = number * given.clients
                load = Load(given.clients, given.n_prompt, given.n_gen, given.prompts, self._left_s(), first)
                self.repetitions.append(run(self.server, load))
        except LoadError as error:
            self.problem = str(error)
        finally:
            process.terminate()

    def _left_s(self) -> float:
        return max(1.0, self._deadline - time.monotonic())

    @property
    def is_whole(self) -> bool:
        """Whether all repetitions were measured."""
        return len(self.repetitions) == self.options.repetitions


def classify(options: Options, ending: Ending, client: Client, protocol: str | None) -> Failure | None:
    """Return the failure of the run, or None if all was measured, whatever the exit status of the ended server is."""
    if client.is_whole:
        return None
    failure = worker_run.given_up(options, ending) or worker_run.failed(
        options, ending, protocol, worker_run.argument_rejected, "lower ctx_size, parallel or the physical batch"
    )
    if failure:
        return failure
    if client.problem:
        return Failure("unknown", None, f"llama-server did not answer its clients: {client.problem.rstrip('.')}.")
    return worker_run.unknown(ending)


def figures_of(options: Options, repetitions: Sequence[Sequence[Stream]]) -> dict[str, Any]:
    """Return the figures of all repetitions: the rate of each, and the times over all requests."""
    together = figures([stream for streams in repetitions for stream in streams])
    rates = [figures(streams)["tokens_per_second"] for streams in repetitions]
    return {
        "kind": "serving",
        "clients": options.clients,
        "tokens_per_second": spread_of(rates),
        "first_token_ms": together["first_token_ms"],
        "between_tokens_ms": together["between_tokens_ms"],
    }
