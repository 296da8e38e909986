# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the inputs of a plan, and the checks that refuse inputs without a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .._status.limits import MAX_WORKERS
from .options import value_of

# A C float holds such shares, and sums of them.
SMALLEST_SHARE, LARGEST_SHARE = 1e-30, 1e30


class SplitError(ValueError):
    """The inputs cannot be planned; the message is one sentence that says what to do."""


@dataclass(frozen=True)
class Worker:
    """A worker; workers of one `host` share its memory, and `memory_max_bytes` limits this worker.

    llama.cpp divides the model among all `devices` of all workers.
    """

    endpoint: str
    memory_available_bytes: int
    host: str | None = None
    memory_max_bytes: int | None = None
    devices: int = 1


@dataclass(frozen=True)
class Load:
    """Options of llama.cpp in the form of options.planned_options, without a model and a division.

    `other_bytes` is further memory of the program on the master.
    """

    options: tuple[str, ...] = ()
    other_bytes: int = 0

    def with_options(self, *more: object) -> Load:
        """Return it with further options, which take precedence."""
        return replace(self, options=(*self.options, *map(str, more)))

    @property
    def spread(self) -> bool:
        """Whether each worker gets a part of each tensor."""
        return value_of(self.options, "-sm", "layer") == "tensor"


@dataclass(frozen=True)
class Cluster:
    """The workers and the master. A given `tensor_split` is judged; `master_host` is the worker host of the master."""

    workers: tuple[Worker, ...]
    reserve_bytes: int = 0
    reserve_percent: float = 0.0
    tensor_split: tuple[float, ...] = ()
    master_memory_available_bytes: int | None = None
    master_host: str | None = None

    @property
    def owners(self) -> tuple[int, ...]:
        """The worker of each device, as an index."""
        return tuple(index for index, worker in enumerate(self.workers) for _device in range(worker.devices))


def check_cluster(cluster: Cluster) -> None:
    """Raise SplitError for the first value that cannot be planned."""
    count = len(cluster.workers)
    if not 1 <= count <= MAX_WORKERS:
        raise SplitError(f"workers has {count} entries; llama.cpp uses at least 1 and at most {MAX_WORKERS}.")
    seen = set()
    for worker in cluster.workers:
        if worker.endpoint in seen:
            raise SplitError(f"Worker {worker.endpoint} is named twice in workers; name it once.")
        seen.add(worker.endpoint)
        if worker.memory_available_bytes < 0:
            raise SplitError(
                f"memory_available_bytes of worker {worker.endpoint} is {worker.memory_available_bytes}; "
                "give the bytes that it has free."
            )
        if worker.devices < 1:
            raise SplitError(f"devices of worker {worker.endpoint} is {worker.devices}; give a number from 1.")
        if worker.memory_max_bytes is not None and worker.memory_max_bytes < 0:
            raise SplitError(
                f"memory_max_bytes of worker {worker.endpoint} is {worker.memory_max_bytes}; give its limit."
            )
    if cluster.reserve_bytes < 0:
        raise SplitError(f"reserve_bytes is {cluster.reserve_bytes}; give a number from 0.")
    if not 0 <= cluster.reserve_percent <= 100:
        raise SplitError(f"reserve_percent is {cluster.reserve_percent:g}; give a number from 0 to 100.")
    memory = cluster.master_memory_available_bytes
    if memory is not None and memory < 0:
        raise SplitError(f"master_memory_available_bytes is {memory}; give the bytes that the master has free.")
    _check_tensor_split(cluster)


def _check_tensor_split(cluster: Cluster) -> None:
    split, owners = cluster.tensor_split, cluster.owners
    if split and len(split) != len(owners):
        what = "workers" if len(owners) == len(cluster.workers) else "devices of the workers"
        raise SplitError(f"tensor_split has {len(split)} entries for {len(owners)} {what}; give one share for each.")
    for worker, share in zip((cluster.workers[owner] for owner in owners), split):
        if share != 0 and not SMALLEST_SHARE <= share <= LARGEST_SHARE:
            raise SplitError(
                f"tensor_split gives worker {worker.endpoint} the share {share:g}; give a number above 0, from "
                f"{SMALLEST_SHARE:g} to {LARGEST_SHARE:g}."
            )
    if split and not any(split):
        raise SplitError("tensor_split has no share above 0; give each worker one, or leave it out.")
