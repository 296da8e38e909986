# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: what the engine itself says that a model takes, from the program llama-plan of a release.

The program asks no worker. It starts servers of its own on loopback in their place, and all of them end with it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Sequence

if TYPE_CHECKING:
    # Runs a command; returns its exit status, output and error output, as AnsibleModule.run_command does.
    Run = Callable[[Sequence[str]], "tuple[int, str, str]"]

# Beside the programs of a release, in the folder that holds bin.
PROGRAM = "libexec/llama-plan"
# Many times what a plan takes on a busy host.
LIMIT_S = 120


class EngineError(Exception):
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
    buffer_type: str
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
    n_ctx_slot: int
    slots: int
    model_bytes: int
    input_bytes: int
    layers: tuple[Layer, ...]
    held: tuple[Held, ...]

    def on(self, device: str, part: str | None = None) -> Bytes:
        """Return what a device holds, or the master if the name is empty: in all, or of one part."""
        found = [it.bytes for it in self.held if it.device == device and part in (None, it.part)]
        return Bytes(*(sum(numbers) for numbers in zip(*found))) if found else Bytes(0, 0, 0)


def _read(document: dict[str, Any]) -> EnginePlan:
    if "error" in document:
        raise EngineError(f"llama.cpp cannot load it: {document['error']}.")
    numbers = ("weights", "context", "compute")
    return EnginePlan(
        n_ctx=document["n_ctx"],
        n_ctx_slot=document["n_ctx_slot"],
        slots=document["slots"],
        model_bytes=document["file"],
        input_bytes=document["input"],
        layers=tuple(Layer(it["device"], it["weights"], it["elsewhere"], it["context"]) for it in document["layers"]),
        held=tuple(
            Held(it["part"], it["device"], it["buffer_type"], Bytes(*(it[name] for name in numbers)))
            for it in document["held"]
        ),
    )


def ask(
    run: Run,
    program: str,
    options: Sequence[str],
    *,
    workers: Sequence[int] = (),
    variants: Sequence[Sequence[str]] = ((),),
    limit_s: int = LIMIT_S,
) -> list[EnginePlan]:
    """Return the engine's plan with these options of llama-server and, for each variant, its further ones.

    Each number of workers is how many devices a worker has. Raise EngineError if a variant has no plan.
    """
    command = ["env", "-i", "LC_ALL=C", program, "--seconds", str(limit_s)]
    command += ["--stand-ins", ",".join(str(devices) for devices in workers)] if workers else []
    for variant in variants:
        command += ["--variant", " ".join(variant)]
    status, output, errors = run([*command, *options])
    plans = []
    for line in output.splitlines():
        try:
            plans.append(_read(json.loads(line)))
        except (ValueError, KeyError) as error:
            raise EngineError(f"{program} said what nobody understands: {line[:200]}.") from error
    if status or len(plans) != len(variants):
        said = [line.strip() for line in errors.splitlines() if line.strip()]
        reason = said[-1].rstrip(".") if said else f"{program} ended with status {status} and said nothing"
        raise EngineError(f"llama.cpp cannot load it: {reason}.")
    return plans
