# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the part of a model that each worker gets, and whether the worker has the memory for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Sequence

from .assignment import Part, parts_of
from .need import Need, Planned

if TYPE_CHECKING:
    from collections.abc import Callable

    from .inputs import Cluster


class Room(NamedTuple):
    """The available memory of a worker or of the master, and the reserve to keep free, in bytes."""

    available: int
    reserve: int

    @property
    def usable(self) -> int:
        """The bytes that a model may use."""
        return max(0, self.available - self.reserve)


def rooms_of(planned: Planned, cluster: Cluster) -> list[Room]:
    """Return each worker's equal share of its host's memory, after the master's need if the master is there too."""
    workers = cluster.workers
    rooms = []
    for worker in workers:
        host = worker.host or worker.endpoint
        on_host = [other for other in workers if (other.host or other.endpoint) == host]
        available = min(other.memory_available_bytes for other in on_host)
        reserve = max(cluster.reserve_bytes, math.ceil(available * cluster.reserve_percent / 100))
        if worker.host is not None and worker.host == cluster.master_host:
            available = max(0, available - planned.master(len(workers)).total)
        share = available // len(on_host)
        if worker.memory_max_bytes is not None:
            share = min(share, worker.memory_max_bytes)
        rooms.append(Room(share, reserve // len(on_host)))
    return rooms


def _reach(planned: Planned, rooms: Sequence[Room], within: Callable[[int, Part, Need], bool]) -> list[Part] | None:
    """Return parts with as many layers as each worker in turn takes; None if layers are left or a worker gets none."""
    count = len(rooms)
    beyond = planned.count + 1
    at = planned.local
    parts = []
    for index in range(count):
        # Leave a layer for each later worker, so that the last one does not get the output alone.
        left = count - index - 1
        furthest = beyond if not left else planned.count - planned.tail - left + 1
        end = at
        while end < furthest:
            # The last layers and the output stay together.
            longer = beyond if end + planned.tail >= planned.count else end + 1
            part = Part(at, longer)
            if not within(index, part, planned.need(part, count)):
                break
            end = longer
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


def choose(planned: Planned, cluster: Cluster, rooms: Sequence[Room]) -> list[Part]:
    """Return the parts with the lowest maximum of weights per speed or, without speeds or a fit, of memory use."""

    def by_memory(level: float) -> list[Part] | None:
        return _reach(planned, rooms, lambda index, _part, need: need.total <= level * max(rooms[index].usable, 1))

    def by_speed(level: float) -> list[Part] | None:
        return _reach(
            planned,
            rooms,
            lambda index, _part, need: (
                need.total <= rooms[index].usable and need.weights <= level * (cluster.workers[index].weight or 1.0)
            ),
        )

    everything = planned.need(Part(planned.local, planned.count + 1), len(rooms))
    chosen = None
    if any(worker.weight is not None for worker in cluster.workers):
        slowest = min(worker.weight or 1.0 for worker in cluster.workers)
        chosen = _least(by_speed, 2.0 * everything.weights / slowest + 1)
    if chosen is None:
        # At this level even the worker with the least memory may take the whole model.
        chosen = _least(by_memory, 2.0 * (everything.total + 1) / max(1, min(room.usable for room in rooms)))
    if chosen is None:
        raise AssertionError("each worker takes a layer if it may be as full as it likes")
    return chosen


def master_room(cluster: Cluster) -> Room | None:
    """Return the memory of the master; None if it is not known."""
    available = cluster.master_memory_available_bytes
    if available is None:
        return None
    # If the master shares a host with a worker, the worker already keeps the reserve.
    shared = any(worker.host is not None and worker.host == cluster.master_host for worker in cluster.workers)
    reserve = max(cluster.reserve_bytes, math.ceil(available * cluster.reserve_percent / 100))
    return Room(available, 0 if shared else reserve)


def _master_fits(planned: Planned, cluster: Cluster) -> bool:
    room = master_room(cluster)
    return room is None or planned.master(len(cluster.workers)).total <= room.usable


def fits(planned: Planned, cluster: Cluster) -> bool:
    """Return whether the given split fits or, without one, whether any split fits."""
    rooms = rooms_of(planned, cluster)
    if not _master_fits(planned, cluster):
        return False
    if cluster.tensor_split:
        parts = parts_of(planned.count, planned.load.n_gpu_layers, cluster.tensor_split)
        return all(
            part.end > part.first and planned.need(part, len(rooms)).total <= room.usable
            for part, room in zip(parts, rooms)
        )
    return _reach(planned, rooms, lambda index, _part, need: need.total <= rooms[index].usable) is not None
