# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the part of a model that each device of the workers gets, and whether the hosts have the memory for it."""

from __future__ import annotations

import math
from typing import Callable, NamedTuple, Sequence

from .assignment import Part
from .inputs import Cluster, Load, SplitError
from .sizes import Asker, Need, Sizes

# A division is asked for at most so many times: each answer may move a layer.
_ROUNDS = 3


class Room(NamedTuple):
    """The available memory of a worker or of the master, and the reserve to keep free, in bytes."""

    available: int
    reserve: int

    @property
    def usable(self) -> int:
        """The bytes that a model may use."""
        return max(0, self.available - self.reserve)


def rooms_of(cluster: Cluster, master: Need) -> list[Room]:
    """Return each worker's equal share of its host's memory, after the master's need if the master is there too."""
    workers = cluster.workers
    rooms = []
    for worker in workers:
        host = worker.host or worker.endpoint
        on_host = [other for other in workers if (other.host or other.endpoint) == host]
        available = min(other.memory_available_bytes for other in on_host)
        reserve = max(cluster.reserve_bytes, math.ceil(available * cluster.reserve_percent / 100))
        if worker.host is not None and worker.host == cluster.master_host:
            available = max(0, available - master.total)
        share = available // len(on_host)
        if worker.memory_max_bytes is not None:
            share = min(share, worker.memory_max_bytes)
        rooms.append(Room(share, reserve // len(on_host)))
    return rooms


def master_room(cluster: Cluster) -> Room | None:
    """Return the memory of the master; None if it is not known."""
    available = cluster.master_memory_available_bytes
    if available is None:
        return None
    # If the master shares a host with a worker, the worker already keeps the reserve.
    shared = any(worker.host is not None and worker.host == cluster.master_host for worker in cluster.workers)
    reserve = max(cluster.reserve_bytes, math.ceil(available * cluster.reserve_percent / 100))
    return Room(available, 0 if shared else reserve)


def needs_of(sizes: Sizes, cluster: Cluster) -> list[Need]:
    """Return what each worker holds on all of its devices."""
    needs = [Need()] * len(cluster.workers)
    for owner, held in zip(cluster.owners, sizes.held):
        needs[owner] = needs[owner].plus(held)
    return needs


def idle(sizes: Sizes, cluster: Cluster) -> list[int]:
    """Return the workers that have a device without a layer."""
    return sorted({owner for owner, part in zip(cluster.owners, sizes.parts) if part.end <= part.first})


def holds(sizes: Sizes, cluster: Cluster) -> bool:
    """Return whether each host has the memory for what it gets, and each device gets something."""
    room = master_room(cluster)
    return (
        (room is None or sizes.master.total <= room.usable)
        and not idle(sizes, cluster)
        and all(
            need.total <= room.usable for need, room in zip(needs_of(sizes, cluster), rooms_of(cluster, sizes.master))
        )
    )


def _usable(sizes: Sizes, cluster: Cluster) -> list[float]:
    """Return what a model may use of each device: workers with several have equal parts of their memory."""
    rooms = rooms_of(cluster, sizes.master)
    return [rooms[owner].usable / cluster.workers[owner].devices for owner in cluster.owners]


def _equal(cluster: Cluster) -> list[float]:
    """Return equal shares of workers, each divided among its devices."""
    return [1.0 / cluster.workers[owner].devices for owner in cluster.owners]


def _reach(sizes: Sizes, tail: int, within: Callable[[int, Need], bool]) -> list[Part] | None:
    """Return parts with as many layers as each device in turn takes; None if layers are left or a device gets none."""
    count, beyond = len(sizes.held), sizes.count + 1
    at, parts = sizes.local, []
    for device in range(count):
        # Leave a layer for each later device, and the last layers for the last one, which gets the output too.
        left = count - device - 1
        furthest = beyond if not left else sizes.count - tail - left + 1
        end = at
        while end < furthest:
            if not within(device, sizes.need(device, Part(at, end + 1))):
                break
            end += 1
        if end == at:
            return None
        parts.append(Part(at, end))
        at = end
    return parts if at == beyond else None


def _least(levels: Callable[[float], list[Part] | None], high: float) -> list[Part] | None:
    """Return the parts for the lowest level that has a solution; None if `high` has none."""
    best = levels(high)
    if best is None:
        return None
    low = 0.0
    for _step in range(64):
        middle = (low + high) / 2
        found = levels(middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
        if high - low < 1e-6 * high:
            break
    return best


def _divide(sizes: Sizes, cluster: Cluster, tail: int) -> list[float]:
    """Return the layers of each device, with the lowest maximum of the use of memory."""
    usable = _usable(sizes, cluster)

    def by_memory(level: float) -> list[Part] | None:
        return _reach(sizes, tail, lambda device, need: need.total <= level * max(usable[device], 1))

    everything = 2.0 * (sum(need.total for need in sizes.held) + 1) * len(sizes.held)
    # At this level even the device with the least memory may take the whole model.
    chosen = _least(by_memory, everything / max(1, min(usable)))
    if chosen is None:
        raise AssertionError("each device takes a layer if it may be as full as it likes")
    # With whole numbers, upstream's division by their sum gives exactly these counts.
    return [float(part.end - part.first) for part in chosen]


def _spread(sizes: Sizes, cluster: Cluster, shares: Sequence[float]) -> list[float]:
    """Return shares of each tensor: equal ones, or by memory if these do not fit."""
    if holds(sizes, cluster):
        return list(shares)
    left = [max(1.0, usable - held.compute) for usable, held in zip(_usable(sizes, cluster), sizes.held)]
    return [round(1000 * part / sum(left)) or 1.0 for part in left]


def _fullest(sizes: Sizes, cluster: Cluster) -> float:
    """Return the part of its memory that the fullest worker uses."""
    rooms = rooms_of(cluster, sizes.master)
    return max(need.total / max(1, room.usable) for need, room in zip(needs_of(sizes, cluster), rooms))


def choose(asker: Asker, load: Load, cluster: Cluster) -> tuple[list[float], Sizes]:
    """Return the division that leaves the most room, and what it takes."""
    owners = cluster.owners
    shares = _equal(cluster) if load.spread else [1.0] * len(owners)
    sizes = asker.sizes(load, len(owners), shares)
    tried: list[tuple[list[float], Sizes]] = []
    for _round in range(_ROUNDS):
        again = _spread(sizes, cluster, shares) if load.spread else _divide(sizes, cluster, asker.tail)
        if tried and again == shares:
            break
        shares, sizes = again, asker.sizes(load, len(owners), again)
        tried.append((shares, sizes))
    fitting = [it for it in reversed(tried) if holds(it[1], cluster)] or tried[-1:]
    if load.spread:
        return fitting[0]
    return min(fitting, key=lambda it: _fullest(it[1], cluster))


def could_hold(asker: Asker, load: Load, cluster: Cluster) -> bool:
    """Return whether the given division fits or, without one, whether one with the sizes of equal parts seems to."""
    owners = cluster.owners
    shares = list(cluster.tensor_split) or (_equal(cluster) if load.spread else [1.0] * len(owners))
    sizes = asker.sizes(load, len(owners), shares)
    if cluster.tensor_split or load.spread:
        return holds(sizes, cluster)
    room, usable = master_room(cluster), _usable(sizes, cluster)
    if room is not None and sizes.master.total > room.usable:
        return False
    return _reach(sizes, asker.tail, lambda device, need: need.total <= usable[device]) is not None


def on_one(asker: Asker, load: Load) -> Sizes | None:
    """Return the sizes of the whole model on one device; None if its options name another."""
    try:
        return asker.sizes(load, 1, [1.0])
    except SplitError:
        return None
