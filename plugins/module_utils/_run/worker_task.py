# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the steps of a module around a run of a llama.cpp program over RPC workers, through AnsibleModule."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, NoReturn, Sequence, TypeVar

from .._rpc.endpoint import Endpoint, EndpointError, parse_endpoints
from .._rpc.prober import probe
from .._rpc.worker_status import WorkerStatus
from .._status.report import safe_text
from .capabilities import BinaryError, find_program, read_manifest
from .perf_log import parse_log
from .progress import Progress
from .runner import Listeners, Module, Run, RunnerError, run
from .watch import Watch
from .worker_run import (
    ENVIRONMENT,
    WITHOUT_ENVIRONMENT,
    Ending,
    Failure,
    ModelError,
    OptionError,
    RunOptions,
    SplitModeError,
    worker_failure,
)

PROBE_TIMEOUT_S = 5.0
# A build takes milliseconds to print its version and its help.
DESCRIBE_TIMEOUT_S = 30
LOG_TAIL_LINES = 20
LOG_TAIL_COLUMNS = 500
# The options of the documentation fragment of this name, and the time limit.
WORKER_RUN: dict[str, dict[str, Any]] = {
    "model": {"type": "path", "required": True},
    "workers": {"type": "list", "elements": "str", "required": True},
    "n_gpu_layers": {"type": "int", "default": 999},
    "tensor_split": {"type": "list", "elements": "float", "default": []},
    "threads": {"type": "int"},
    "bin_folder": {"type": "path", "default": "/opt/llama_cpp/current/bin"},
    "verify": {"type": "bool", "default": True},
    "timeout": {"type": "int"},
    "worker_link": {"type": "bool", "default": False},
}


Chosen = TypeVar("Chosen", bound=RunOptions)


class WorkerTask:
    """One call of a module. Its result so far is returned, however the call ends."""

    def __init__(self, module: Module, result: dict[str, Any], progress: Progress | None = None) -> None:
        self.module = module
        self.result = result
        self.progress = progress or Progress()
        # By which llama.cpp divides the layers among the workers' devices; empty if they are not known.
        self.shares: list[float] = []
        self.environment: Mapping[str, str] = ENVIRONMENT

    def fail(self, failure: Failure) -> NoReturn:
        """End the module with a failure and the result so far."""
        self.result["failure"] = failure._asdict()
        self.module.fail_json(msg=failure.message, **self.result)
        raise AssertionError

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """End the module with a failure if options, model or program cannot be run."""
        try:
            yield
        except EndpointError as error:
            self.fail(Failure("option_rejected", None, f"workers: {error}."))
        except SplitModeError as error:
            self.fail(Failure("split_mode_unsupported", None, str(error)))
        except OptionError as error:
            self.fail(Failure("option_rejected", None, str(error)))
        except ModelError as error:
            self.fail(Failure("model_invalid", None, str(error)))
        except (BinaryError, RunnerError) as error:
            self.fail(Failure("binary_missing", None, str(error)))

    def chosen(self, kind: type[Chosen], check: Callable[[Chosen], None]) -> Chosen:
        """Return the options of the run, or fail with the first invalid value."""
        given = {field.name: self.module.params[field.name] for field in fields(kind)}
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        with self.refusing():
            workers = tuple(parse_endpoints(given["workers"]))
            options = kind(**{**given, "model": str(Path(given["model"]).absolute()), "workers": workers})
            check(options)
        self.environment = options.environment
        return options

    def asked(self, name: str) -> tuple[str, str, str, Mapping[str, object]]:
        """Return the path of this program in `bin_folder`, its version text, its help, and the manifest."""
        bin_folder = str(Path(self.module.params["bin_folder"]).absolute())
        program = find_program(bin_folder, name)
        # Upstream writes its version to standard error and its help to standard output.
        version = self.run([program, "--version"], DESCRIBE_TIMEOUT_S)
        usage = self.run([program, "--help"], DESCRIBE_TIMEOUT_S)
        return program, version.stderr + version.stdout, usage.stdout, read_manifest(bin_folder)

    def run(
        self, command: Sequence[str], timeout: int, listeners: Listeners | None = None, watch: Watch | None = None
    ) -> Run:
        """Run a program of llama.cpp. Raises RunnerError."""
        return run(self.module, command, timeout, self.environment, WITHOUT_ENVIRONMENT, listeners, watch)

    def verify(self, workers: Sequence[Endpoint], protocol: str | None) -> list[WorkerStatus]:
        """Return the state of the workers, all of them ready."""
        statuses = probe(workers, PROBE_TIMEOUT_S)
        failure = worker_failure(statuses, protocol)
        if failure:
            self.fail(failure)
        return statuses

    def ended(
        self,
        command: Sequence[str],
        timeout: int,
        workers: Sequence[Endpoint],
        still_s: int | None = None,
        watch: Watch | None = None,
    ) -> tuple[Run, Ending]:
        """Run a program over workers, and return how it ended. It is ended if nothing moves for `still_s` seconds."""
        watch = watch or Watch(still_s)
        try:
            ended = self.run(command, timeout, Listeners(self.progress.text, self.progress.log), watch)
        except RunnerError as error:
            self.fail(Failure("binary_missing", None, str(error)))
        log = parse_log(ended.stderr, require_perf=False, shares=self.shares)
        used = {device["endpoint"] for device in log["devices"]}
        well = ended.exit_status == 0 and not ended.timed_out and used.issuperset(map(str, workers))
        ending = Ending(
            program=command[0],
            exit_status=ended.exit_status,
            timed_out=ended.timed_out,
            timeout=timeout,
            # Messages quote it, and it may quote the model's file.
            stderr=safe_text(ended.stderr),
            log=log,
            # Upstream does not name a worker that it lost or did not use; a probe of the workers does.
            workers_after=[] if well else probe(workers, PROBE_TIMEOUT_S),
            gone=watch.gone,
            still_s=still_s if watch.stood_still else None,
        )
        return ended, ending

    def keep_log_tail(self, ending: Ending, failure: Failure | None) -> None:
        """Put the end of the log into the result if the run failed; otherwise remove it from there."""
        self.result.pop("log_tail", None)
        if failure:
            tail = ending.stderr.splitlines()[-LOG_TAIL_LINES:]
            self.result["log_tail"] = [line[:LOG_TAIL_COLUMNS] for line in tail]
