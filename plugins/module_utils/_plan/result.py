# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the plan, as a result and as a sentence, and the changes with which a model would fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Sequence

from .choice import Room, choose, holds, idle, master_room, needs_of, on_one, rooms_of
from .hints import Hints, enumerated, in_words
from .inputs import Cluster, Load, SplitError, check_cluster
from .options import value_of
from .sizes import Asker, Need, Sizes

ONE_HOST = (
    "Each token goes through the layers one after another, so that while one worker computes it the others wait: "
    "dividing the model does not make generation faster (two equal workers generated 0.99 times as fast as one where "
    "that was measured, see docs/explanation/performance.md)"
)


def _one_host(asker: Asker, load: Load, cluster: Cluster) -> str | None:
    """Return the host that could hold the whole model: the master, or the worker with the most memory."""
    room = master_room(cluster)
    alone = on_one(asker, load)
    if alone is None:
        return None
    if room is not None and alone.held[0].total + alone.master.total <= room.usable:
        return "the master"
    largest = max(cluster.workers, key=lambda worker: worker.memory_available_bytes)
    by_itself = replace(cluster, workers=(replace(largest, devices=1),))
    return largest.endpoint if len(cluster.workers) > 1 and holds(alone, by_itself) else None


def _fits(result: dict[str, Any], alone: str | None) -> str:
    """Return the sentence about a model that fits, and the one about the host that could hold it alone."""
    fullest = min(result["workers"], key=lambda it: it["headroom_bytes"])
    fits = "It fits" if result["exact"] else "It fits by an estimate"
    room = f"{fits}; the least room is left on {fullest['endpoint']}, {in_words(fullest['headroom_bytes'])}"
    return f"{room}. It would fit on {alone} alone. {ONE_HOST}." if alone else f"{room}."


def _fits_not(result: dict[str, Any], lacks: Sequence[str], idle_workers: Sequence[str], hints: Hints) -> str:
    proposals = [it["message"] for it in result["suggestions"]]
    helps = (
        hints.with_which_it_fits(proposals)
        if proposals
        else f"; these changes were tried, alone and in pairs, and none is enough: {hints.tried()}"
        if hints.kinds
        else ""
    )
    if idle_workers:
        whom = f"worker{'s' if len(idle_workers) > 1 else ''} {enumerated(idle_workers)}"
        return f"The tensor_split leaves {whom} without a layer{helps}."
    by = "" if result["exact"] else " by an estimate"
    return f"It does not fit{by}, {enumerated(lacks)}{helps}."


def _too_many(asker: Asker, load: Load, cluster: Cluster, sizes: Sizes, variables_of: str) -> str | None:
    count, layers = len(cluster.owners), sizes.count - sizes.local
    # If no layers are left for workers, the output alone still goes to one worker.
    most = max(layers - asker.tail + 1, 1)
    if count <= most:
        return None
    hints = Hints(asker, load, cluster, sizes, variables_of)
    base = hints.base
    fewer = next(
        number
        for number in range(len(cluster.workers), -1, -1)
        if sum(1 for it in cluster.owners if it < number) <= most
    )
    trials = (
        {"fewer_workers": base._replace(cluster=replace(cluster, workers=cluster.workers[:fewer]))} if fewer else {}
    )
    if not layers and count <= sizes.count:
        trials["n_gpu_layers"] = base._replace(load=base.load.with_options("-ngl", count + 1))
    proposals = [hints.typed_as(name, trial) for name, trial in trials.items() if hints.fits(trial)]
    what = "workers" if count == len(cluster.workers) else "devices of workers"
    either = f", and it does not fit on the first {fewer} either" if fewer else ""
    helps = hints.with_which_it_fits(proposals) if proposals else either
    offloaded = f"n_gpu_layers ({value_of(load.options, '-ngl')})"
    if not layers:
        return f"There are {count} {what}, and {offloaded} leaves them only the output{helps}."
    given = "the model has" if not sizes.local else f"{offloaded} leaves them"
    return f"There are more {what} ({count}) than layers ({given} {layers}){helps}."


def _memory(need: Need, room: Room | None) -> dict[str, int | None]:
    """Return the memory that a host needs and the memory that it has, in bytes."""
    return {
        "weights_bytes": need.weights,
        "kv_bytes": need.kv,
        "compute_bytes": need.compute,
        "total_bytes": need.total,
        "memory_available_bytes": room.available if room else None,
        "reserve_bytes": room.reserve if room else None,
        "headroom_bytes": room.available - room.reserve - need.total if room else None,
    }


def _workers(cluster: Cluster, sizes: Sizes) -> list[dict[str, Any]]:
    found = []
    rooms = rooms_of(cluster, sizes.master)
    for index, (worker, need, room) in enumerate(zip(cluster.workers, needs_of(sizes, cluster), rooms)):
        parts = [part for owner, part in zip(cluster.owners, sizes.parts) if owner == index and part.end > part.first]
        first, end = (parts[0].first, parts[-1].end) if parts else (0, 0)
        layers = min(end, sizes.count) - first
        found.append(
            {
                "endpoint": worker.endpoint,
                "first_layer": first if layers > 0 else None,
                "layers": max(0, layers),
                "has_output": end > sizes.count,
                **_memory(need, room),
            }
        )
    return found


def _judge(
    result: dict[str, Any],
    asker: Asker,
    load: Load,
    cluster: Cluster,
    sizes: Sizes,
    variables_of: str,
    kinds: Sequence[str] | None,
) -> None:
    """Write into the result whether the model fits, what is missing, and what would help."""
    without_layer = [cluster.workers[index].endpoint for index in idle(sizes, cluster)]
    lacks = [
        f"{host} lacks {in_words(-it['headroom_bytes'])}"
        for host, it in [("the master", result["master"]), *((it["endpoint"], it) for it in result["workers"])]
        if it["headroom_bytes"] is not None and it["headroom_bytes"] < 0
    ]
    if lacks or without_layer:
        hints = Hints(asker, load, cluster, sizes, variables_of, kinds)
        result["suggestions"] = hints.found()
        result["message"] = _fits_not(result, lacks, without_layer, hints)
    else:
        result["fits"] = True
        result["message"] = _fits(result, _one_host(asker, load, cluster) if kinds is None else None)


def plan(
    asker: Asker, load: Load, cluster: Cluster, *, variables_of: str = "module", kinds: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the division of the model and the memory that it needs; raises SplitError for a wrong input.

    `variables_of` is the key of hints.TYPED whose variables the messages name. `kinds` are the changes to try if it
    does not fit, all by default.
    """
    check_cluster(cluster)
    if load.other_bytes < 0:
        raise SplitError(f"master_other_bytes is {load.other_bytes}; give a number from 0.")
    owners = cluster.owners
    if len(owners) > 1 and value_of(load.options, "-sm") == "none":
        raise SplitError(
            f"Split mode none uses one of the {len(owners)} devices; name one worker, or take another mode."
        )
    sizes = asker.sizes(load, len(owners), cluster.tensor_split or [1.0] * len(owners))
    if all(part.end <= part.first for part in sizes.parts):
        raise SplitError(f"n_gpu_layers is {value_of(load.options, '-ngl')}, which leaves the workers nothing.")
    result: dict[str, Any] = {
        "fits": False,
        "exact": sizes.exact,
        "message": "",
        "tensor_split": [],
        "ctx_size": sizes.context,
        "layers": sizes.count,
        "workers": [],
        "master": None,
        "spares": [],
        "suggestions": [],
        "notes": asker.notes,
    }
    if not cluster.tensor_split:
        too_many = None if load.spread else _too_many(asker, load, cluster, sizes, variables_of)
        if too_many:
            return {**result, "message": too_many}
        result["tensor_split"], sizes = choose(asker, load, cluster)
    else:
        result["tensor_split"] = list(cluster.tensor_split)
    result["workers"] = _workers(cluster, sizes)
    own = sizes.master
    result["master"] = {"layers": sizes.local, **_memory(own, master_room(cluster)), "other_bytes": own.other}
    _judge(result, asker, load, cluster, sizes, variables_of, kinds)
    return result
