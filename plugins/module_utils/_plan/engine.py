# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: what the engine itself says that a model takes, from the program llama-plan of a release.

By default the program asks no worker. It starts servers of its own on loopback in their place, and all of them end with
it. A confined service, which may not listen, has it ask the workers themselves while nobody uses them.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Mapping, NamedTuple, Sequence

from .._gguf.numbers import printable
from .inputs import SplitError

# Beside the programs of a release, in the folder that holds bin.
PROGRAM = "libexec/llama-plan"
# Many times what a plan takes on a busy host.
LIMIT_S = 120
END_LIMIT_S = 2


class EngineError(SplitError):
    """The engine has no plan; the message is one sentence, with the engine's reason."""


class Bytes(NamedTuple):
    """What is held in one place."""

    weights: int
    context: int
    compute: int

    @property
    def total(self) -> int:
        return self.weights + self.context + self.compute


class Held(NamedTuple):
    """A buffer: of the model, its draft, its adapters or its projector. The device of the master is empty."""

    part: str
    device: str
    bytes: Bytes


class Layer(NamedTuple):
    """A layer, or the output after the last one, and what of its weights another device holds."""

    device: str
    weights: int
    elsewhere: int
    context: int


@dataclass(frozen=True)
class EnginePlan:
    """What the engine holds, and where."""

    n_ctx: int
    slots: int
    model_bytes: int
    input_bytes: int
    layers: tuple[Layer, ...]
    held: tuple[Held, ...]

    def on(self, device: str, part: str | None = None) -> Bytes:
        """Return what a device holds, or the master if the name is empty: in all, or of one part."""
        found = [it.bytes for it in self.held if it.device == device and part in (None, it.part)]
        return Bytes(*(sum(numbers) for numbers in zip(*found))) if found else Bytes(0, 0, 0)


def _numbers(document: dict[str, Any], *names: str) -> list[int]:
    for name in names:
        value = document[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(name)
    return [document[name] for name in names]


def _read(document: dict[str, Any]) -> EnginePlan:
    """Return a plan; raises EngineError with the engine's reason, or another error for what is no answer of it."""
    if "error" in document:
        raise EngineError(f"llama.cpp cannot load it: {printable(str(document['error']))}.")
    if not document["layers"]:
        raise ValueError("layers")
    n_ctx, slots, model_bytes, input_bytes = _numbers(document, "n_ctx", "slots", "file", "input")
    return EnginePlan(
        n_ctx,
        slots,
        model_bytes,
        input_bytes,
        tuple(Layer(str(it["device"]), *_numbers(it, "weights", "elsewhere", "context")) for it in document["layers"]),
        tuple(
            Held(str(it["part"]), str(it["device"]), Bytes(*_numbers(it, "weights", "context", "compute")))
            for it in document["held"]
        ),
    )


class Engine:
    """A llama-plan for a model over workers with so many devices each, or over the workers at `endpoints` themselves.

    It starts when it is asked, and ends with `close`, at its limit, and with this process.
    """

    def __init__(
        self,
        program: str,
        model: str,
        workers: Sequence[int] = (),
        *,
        one_run: bool = False,
        limit_s: int = LIMIT_S,
        endpoints: Sequence[str] = (),
    ) -> None:
        self.program = program
        self.command = [program, "--seconds", str(limit_s), *(["--one-run"] if one_run else [])]
        self.command += ["--stand-ins", ",".join(map(str, workers))] if workers and not endpoints else []
        self.command += ["-m", model, *(["--rpc", ",".join(endpoints)] if endpoints else [])]
        # Two workers themselves would listen for each other on all addresses (_run/worker_run.py).
        self.environment = {"LC_ALL": "C", **({"GGML_RPC_NO_COMM": "1"} if endpoints else {})}
        self._running: _Running | None = None

    def close(self) -> None:
        if self._running is not None:
            self._running.end()
            self._running = None

    def ask(self, options: Sequence[str]) -> EnginePlan:
        """Return the engine's plan with further options of llama-server; raises EngineError if it has none."""
        if any(set("\t\n") & set(word) for word in options):
            raise EngineError("An option has a tab or a line break, with which the engine cannot be asked.")
        try:
            if self._running is None:
                self._running = _Running(self.command, self.environment)
            line = self._running.answer("\t".join(options))
        except OSError as error:
            self.close()
            raise EngineError(f"{self.program} cannot be started: {error.strerror}.") from error
        if not line:
            reason = self._running.reason()
            self.close()
            raise EngineError(f"llama.cpp cannot load it: {reason}." if reason else f"{self.program} said nothing.")
        try:
            return _read(json.loads(line))
        except EngineError:
            self.close()  # after some errors it has ended
            raise
        except (ValueError, KeyError, TypeError) as error:
            self.close()
            raise EngineError(f"{self.program} said what nobody understands: {printable(line[:200])}.") from error


class _Running:
    """The program while it runs."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # A file in memory: a pod has no folder that it can write to.
        self.errors = open(os.memfd_create("llama-plan"), "w+", errors="replace")  # noqa: PTH123, SIM115 - closed by end
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(  # noqa: S603 - of a release
                command, stdin=pipe, stdout=pipe, stderr=self.errors, env=environment, errors="surrogateescape"
            )
        except OSError:
            self.errors.close()
            raise

    def answer(self, line: str) -> str:
        """Return the line that it says to this one; empty if it has ended."""
        ask, said = self.process.stdin, self.process.stdout
        if ask is None or said is None:
            return ""
        with suppress(BrokenPipeError):
            ask.write(line + "\n")
            ask.flush()
        return said.readline()

    def reason(self) -> str:
        """Return the last line of its error output, or what was wrong in its options, without the end of a sentence."""
        self.process.wait()
        self.errors.seek(0)
        said = [text.strip() for text in self.errors.read().splitlines() if text.strip()]
        # After an error in an option it explains its options.
        said = [text for text in said if text.startswith("error")] or said
        return printable(said[-1].rstrip(".")) if said else ""

    def end(self) -> None:
        """End it. At the end of its input it first ends its own servers, which a pod's first process would not do."""
        with self.errors, suppress(BrokenPipeError), self.process:
            if self.process.stdin is not None:
                self.process.stdin.close()
            try:
                self.process.wait(END_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
