# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: what a model takes on the devices of workers and on the master, as the engine says it or as an estimate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Sequence

from .assignment import Part
from .engine import Engine, EngineError, EnginePlan
from .inputs import Load


class Need(NamedTuple):
    """The memory that a host needs, in bytes."""

    weights: int = 0
    kv: int = 0
    compute: int = 0
    other: int = 0  # only for the master: a draft model, a projector, and other memory of the program

    @property
    def total(self) -> int:
        """The sum of all bytes."""
        return sum(self)

    def plus(self, more: Need) -> Need:
        """Return the sum of two needs."""
        return Need(*(one + other for one, other in zip(self, more)))

    def less(self, part: Need) -> Need:
        """Return what is left of a need."""
        return Need(*(one - other for one, other in zip(self, part)))


@dataclass(frozen=True)
class Sizes:
    """A model over a number of devices. `layers` has what moves with each layer and, last, with the output."""

    context: int
    slots: int
    layers: tuple[Need, ...]
    local: int
    parts: tuple[Part, ...]
    held: tuple[Need, ...]
    master: Need
    exact: bool = True

    @property
    def count(self) -> int:
        """The number of layers, without the output."""
        return len(self.layers) - 1

    def of_layers(self, part: Part) -> Need:
        """Return what moves with the layers of a part."""
        return Need(*map(sum, zip(Need(), *self.layers[part.first : part.end])))

    def need(self, device: int, part: Part) -> Need:
        """Return the need of a device with another part: what it holds besides its layers stays as it is."""
        return self.held[device].less(self.of_layers(self.parts[device])).plus(self.of_layers(part))

    def shrunk(self, factor: float) -> Sizes:
        """Return the model with weights of another size."""

        def smaller(need: Need) -> Need:
            return need._replace(weights=round(need.weights * factor))

        return replace(
            self,
            layers=tuple(map(smaller, self.layers)),
            held=tuple(map(smaller, self.held)),
            master=smaller(self.master),
        )


class Asker(Protocol):
    """What says how a load takes a number of devices, divided by shares; raises SplitError if it cannot be loaded."""

    tail: int  # how many of the last layers stay with the output
    bits: float  # of a weight
    notes: list[str]

    def sizes(self, load: Load, devices: int, shares: Sequence[float]) -> Sizes:
        """Return the sizes."""


def _parts(plan: EnginePlan, names: Sequence[str], local: int) -> tuple[Part, ...]:
    owners = [layer.device for layer in plan.layers]
    parts, at = [], local
    for name in names:
        parts.append(Part(at, at + owners.count(name)))
        at = parts[-1].end
    return tuple(parts)


def sizes_of(plan: EnginePlan, load: Load, devices: int) -> Sizes:
    """Return the engine's figures for so many devices."""
    names = [f"RPC{number}" for number in range(devices)]
    local = sum(1 for layer in plan.layers[:-1] if not layer.device)
    whole = Part(local, len(plan.layers))
    beside = sum(plan.on("", part).total for part in ("draft", "projector"))
    own = Need(*map(sum, zip(*(plan.on("", part) for part in ("model", "adapters", "outputs")))))
    return Sizes(
        context=plan.n_ctx,
        slots=plan.slots,
        layers=tuple(Need(layer.weights, layer.context) for layer in plan.layers),
        local=local,
        parts=(whole,) * devices if load.spread else _parts(plan, names, local),
        held=tuple(Need(*plan.on(name)) for name in names),
        master=own._replace(other=beside + load.other_bytes),
    )


class ByEngine:
    """Asks the engine, over stand-ins or over the workers at `endpoints`. It keeps each answer."""

    def __init__(
        self,
        program: str,
        model: str,
        workers: Sequence[int],
        *,
        one_run: bool,
        tail: int,
        bits: float,
        endpoints: Sequence[str] = (),
    ) -> None:
        self.program, self.model, self.one_run = program, model, one_run
        self.workers, self.tail, self.bits = list(workers), tail, bits
        self.notes: list[str] = []
        self.endpoints = endpoints
        self._engines: dict[int, Engine] = {}
        self._known: dict[tuple[object, ...], EnginePlan | EngineError] = {}

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()

    def _engine(self, devices: int) -> Engine:
        """Return an engine with at least so many devices; each that the workers do not have is of a further worker."""
        workers = [*self.workers, *[1] * max(0, devices - sum(self.workers))]
        if len(workers) not in self._engines:
            self._engines[len(workers)] = Engine(
                self.program, self.model, workers, one_run=self.one_run, endpoints=self.endpoints
            )
        return self._engines[len(workers)]

    def sizes(self, load: Load, devices: int, shares: Sequence[float]) -> Sizes:
        """Return what the engine says; raises EngineError."""
        key = (load.options, devices, tuple(shares))
        if key not in self._known:
            names = ",".join(f"RPC{number}" for number in range(devices))
            words = [*load.options, "-dev", names, "-ts", ",".join(f"{share:g}" for share in shares)]
            try:
                self._known[key] = self._engine(devices).ask(words)
            except EngineError as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, EngineError):
            raise found
        return sizes_of(found, load, devices)
