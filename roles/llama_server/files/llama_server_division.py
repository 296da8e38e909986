# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the workers that serve while others are lost, and remember losses over restarts of the service.

llama_server_service.py imports this. It starts anew after each loss, so what it has to remember is in a file in its
runtime folder, which systemd keeps over restarts. A stop by a person or a playbook removes the file.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Collection, Mapping, Sequence

# A worker that is lost so many times within this time stays out.
MOST_LOSSES, WITHIN_S = 3, 3600
# Workers with which so many loads in a row fail stay out, if the others have served without them.
MOST_FAILED_LOADS = 2
# The planner's names of the changes that llama_server_degrade allows.
KINDS = {"slots": "parallel", "context": "context"}

# Plans the model over these endpoints, with a division that is given or none, with options that differ from those of
# the last plan, and with the kinds of changes to try if it does not fit. Returns a plan of module_utils._plan.
Plan = Callable[[Sequence[str], Sequence[float], Mapping[str, str], Sequence[str]], "dict[str, Any]"]


@dataclass(frozen=True)
class Wanted:
    """The division of the last `serve`, and what may take its place."""

    workers: tuple[str, ...]
    spares: tuple[str, ...] = ()
    degrade: tuple[str, ...] = ()
    tensor_split: tuple[float, ...] = ()


@dataclass(frozen=True)
class Division:
    """The workers that serve, in the order of --rpc, and the options of llama-server that differ from the settings."""

    workers: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)

    def described(self, wanted: Wanted) -> str:
        """Return over which workers it is, as a part of a sentence."""
        count = len(self.workers)
        missing = [worker for worker in wanted.workers if worker not in self.workers]
        spares = [worker for worker in self.workers if worker not in wanted.workers]
        if not missing:
            return f"over {count} worker{'s' if count != 1 else ''}"
        if count == len(wanted.workers):
            text = f"over {count} workers, with {' and '.join(spares)} in place of {' and '.join(missing)}"
        else:
            text = f"over {count} of {len(wanted.workers)} workers, without {' and '.join(missing)}"
            text += f" and with the spare {' and '.join(spares)}" if spares else ""
        if "--ctx-size" in self.options:
            text += f", with {self.options['--ctx-size']} tokens of context"
        if "--parallel" in self.options:
            text += f" in {self.options['--parallel']} slot{'s' if self.options['--parallel'] != '1' else ''}"
        return text


def line_up(wanted: Wanted, usable: Collection[str]) -> tuple[str, ...]:
    """Return the usable workers in their order; a spare takes the place of a missing one, so that the others stay."""
    spares = [spare for spare in wanted.spares if spare in usable]
    places = [worker if worker in usable else spares.pop(0) if spares else "" for worker in wanted.workers]
    return tuple(worker for worker in places if worker)


def _options(plan: Mapping[str, Any]) -> dict[str, str]:
    return {"--tensor-split": ",".join(f"{share:g}" for share in plan["tensor_split"])}


def _over(workers: tuple[str, ...], wanted: Wanted, plan: Plan) -> tuple[Division | None, str]:
    """Return a division over these workers, with the fewest changes, or why there is none."""
    # With the same shares, only the part of the lost worker is sent: the others have theirs in their caches.
    same = len(workers) == len(wanted.workers) and wanted.tensor_split
    if same and plan(workers, wanted.tensor_split, {}, ())["fits"]:
        return Division(workers), ""
    kinds = [KINDS[name] for name in wanted.degrade if name in KINDS]
    found = plan(workers, (), {}, kinds)
    if found["fits"]:
        return Division(workers, _options(found)), ""
    changes = {change["kind"]: change for change in found["suggestions"]}
    for change in [changes[kind] for kind in [*kinds, "pair"] if kind in changes]:
        options = {"--ctx-size": str(change["ctx_size"])}
        if change["kind"] != "context":
            options["--parallel"] = str(change["parallel"])
        smaller = plan(workers, (), options, ())
        if smaller["fits"]:
            return Division(workers, {**options, **_options(smaller)}), ""
    return None, str(found["message"])


def choose(wanted: Wanted, usable: Collection[str], plan: Plan) -> tuple[Division | None, str]:
    """Return how the model is divided over the usable workers, or why it is not."""
    lined_up = line_up(wanted, usable)
    if lined_up == wanted.workers:
        return Division(wanted.workers), ""
    # A spare that is too small may not be in the way of another one, nor of the workers without it.
    own = tuple(worker for worker in wanted.workers if worker in usable)
    others = [
        line_up(replace(wanted, spares=(spare, *(it for it in wanted.spares if it != spare))), usable)
        for spare in wanted.spares
        if spare in usable
    ]
    why = ""
    for workers in dict.fromkeys((lined_up, *others, own)):
        if not workers:
            continue
        if len(workers) < len(wanted.workers) and "workers" not in wanted.degrade:
            why = "llama_server_degrade does not allow fewer workers, and no spare takes the place."
            continue
        division, why = _over(workers, wanted, plan)
        if division:
            return division, ""
    return None, why


def now_s() -> float:
    """Return the seconds since the host started: the runtime folder does not outlive that."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class Memory:
    """What the service remembers over its restarts, and shows to others."""

    path: Path | None = None
    # When each worker was lost while it served, in seconds since the host's start.
    losses: dict[str, list[float]] = field(default_factory=dict)
    excluded: list[str] = field(default_factory=list)
    # The workers that the last division left out because they did not answer.
    lost: list[str] = field(default_factory=list)
    serving: list[str] = field(default_factory=list)
    spare: list[str] = field(default_factory=list)
    # The workers that are left out, and answer now.
    ready: list[str] = field(default_factory=list)
    # The spares whose caches have the part of a worker, as `spare worker`.
    seeded: list[str] = field(default_factory=list)
    # The workers that have served last, and how many loads have failed since then though no worker was lost.
    served: list[str] = field(default_factory=list)
    failed_loads: int = 0
    degraded: bool = False

    def read(self) -> None:
        """Take over what the last process has written; a damaged file counts as none."""
        with suppress(OSError, LookupError, ValueError, TypeError, AttributeError):
            found = json.loads(self.path.read_text(encoding="utf-8")) if self.path else {}
            self.losses = {str(name): [float(at) for at in times] for name, times in found["losses"].items()}
            for name in ("excluded", "lost", "seeded", "served"):
                setattr(self, name, [str(it) for it in found[name]])
            self.failed_loads = int(found["failed_loads"])

    def text(self) -> str:
        """Return all of it as JSON."""
        return json.dumps({name: value for name, value in vars(self).items() if name != "path"}, indent=1)

    def write(self) -> None:
        """Write all of it; raises OSError."""
        if self.path:
            partial = self.path.with_name(f".{self.path.name}.partial")
            partial.write_text(self.text(), encoding="utf-8")
            partial.replace(self.path)

    def forget(self) -> None:
        """Remove the file."""
        if self.path:
            with suppress(OSError):
                self.path.unlink()

    def lose(self, workers: Collection[str], now: float) -> list[str]:
        """Count a loss of each worker; return those that stay out from now on."""
        for worker in workers:
            recent = [at for at in self.losses.get(worker, []) if now - at < WITHIN_S]
            self.losses[worker] = [*recent, now]
        out = [it for it in workers if len(self.losses[it]) >= MOST_LOSSES and it not in self.excluded]
        self.excluded += out
        return out

    def fail(self, workers: Sequence[str]) -> list[str]:
        """Count a load that failed though no worker was lost; return those that stay out from now on."""
        self.failed_loads += 1
        out = [it for it in workers if it not in self.served] if self.served else []
        if self.failed_loads < MOST_FAILED_LOADS or len(out) == len(workers):
            return []
        self.excluded += out
        return out

    def divide(self, wanted: Wanted, serving: Sequence[str], ready: Collection[str]) -> None:
        """Sort all workers by what they do: those that serve, and of the others the excluded, ready and lost ones."""
        others = [worker for worker in (*wanted.workers, *wanted.spares) if worker not in serving]
        self.serving = list(serving)
        self.ready = [worker for worker in others if worker in ready]
        self.spare = [worker for worker in self.ready if worker not in self.excluded]
        self.lost = [worker for worker in others if worker not in self.excluded and worker not in ready]
        self.degraded = bool(serving) and any(worker not in serving for worker in wanted.workers)
