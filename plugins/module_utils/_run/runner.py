# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: run a program to its end or to its time limit, through AnsibleModule; knows nothing of llama.cpp."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import IO, Any, Callable, Mapping, NamedTuple, Sequence

from .watch import Watch

# Seconds between SIGTERM and SIGKILL.
KILL_AFTER_S = 5
# The exit statuses of coreutils' timeout when it has ended the program.
_TIMEOUT_STATUSES = (124, 137)
# The shell closes standard input and then becomes the program, so no shell is left when the program is ended.
_WITHOUT_STDIN = ("/bin/sh", "-c", 'exec "$@" </dev/null', "sh")


Module = Any  # AnsibleModule, of which Ansible ships no types


class RunnerError(Exception):
    """A program cannot be started; the message is one sentence."""


class Listeners(NamedTuple):
    """The receivers of a program's output as it comes."""

    stdout: Callable[[bytes], None]
    stderr: Callable[[bytes], None]


class _Tee:
    """A pipe that run_command reads; a listener gets the data, too."""

    def __init__(self, pipe: IO[bytes], listener: Callable[[bytes], None]) -> None:
        self._pipe = pipe
        self._listener = listener
        self.fileno = pipe.fileno
        self.close = pipe.close

    def read(self, size: int) -> bytes | None:
        data: bytes | None = self._pipe.read(size)
        self._listener(data or b"")
        return data


def _begun(listeners: Listeners | None, watch: Watch | None) -> Callable[[Any], None]:
    def begin(process: Any) -> None:  # noqa: ANN401 (a Popen, whose pipes are of a type of their own)
        if listeners:
            process.stdout = _Tee(process.stdout, watch.heard(listeners.stdout) if watch else listeners.stdout)
            process.stderr = _Tee(process.stderr, watch.heard(listeners.stderr) if watch else listeners.stderr)
        if watch:
            watch.begin(process)

    return begin


@dataclass(frozen=True)
class Run:
    """The result of a run of a program."""

    # As a shell gives it: 128 + n if signal n ended the program.
    exit_status: int
    stdout: str
    stderr: str
    wall_time_ms: float
    timed_out: bool


def run(
    module: Module,
    command: Sequence[str],
    timeout: int,
    environment: Mapping[str, str] | None = None,
    without: tuple[str, ...] = (),
    listeners: Listeners | None = None,
    watch: Watch | None = None,
) -> Run:
    """Run a command with standard input closed; end it after `timeout` seconds, or if `watch` gives it up.

    coreutils' `timeout` enforces the time limit, so the limit holds even if this process is killed. Variables that
    begin with one of `without` are removed from the environment. Raises RunnerError.
    """
    limiter = module.get_bin_path("timeout")
    if limiter is None:
        raise RunnerError("There is no program timeout on this host; install GNU coreutils.")
    for name in [name for name in os.environ if name.startswith(without)] if without else ():
        del os.environ[name]
    limited = [limiter, "-s", "TERM", "-k", str(KILL_AFTER_S), str(timeout), *command]
    started = time.monotonic()
    try:
        status, stdout, stderr = module.run_command(
            [*_WITHOUT_STDIN, *limited],
            encoding=None,
            expand_user_and_vars=False,
            handle_exceptions=False,
            environ_update=dict(environment or {}),
            before_communicate_callback=_begun(listeners, watch) if listeners or watch else None,
        )
    except OSError as error:
        raise RunnerError(f"{command[0]} cannot be started: {error.strerror}.") from error
    finally:
        if watch:
            watch.end()
    seconds = time.monotonic() - started
    exit_status = 128 - status if status < 0 else status
    return Run(
        exit_status=exit_status,
        stdout=stdout.decode("utf-8", errors="replace"),
        stderr=stderr.decode("utf-8", errors="replace"),
        wall_time_ms=round(seconds * 1000, 3),
        timed_out=exit_status in _TIMEOUT_STATUSES and seconds >= timeout,
    )
