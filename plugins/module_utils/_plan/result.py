# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the plan, as a result and as a sentence, and the changes with which a model would fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Sequence

from .assignment import Part, parts_of
from .choice import Room, choose, fits, master_room, rooms_of
from .hints import Hints, enumerated, in_words
from .inputs import Cluster, Load, check_cluster, source
from .need import Need, Planned

if TYPE_CHECKING:
    from .._gguf.header import Header


ONE_HOST = (
    "Each token goes through the layers one after another, so that while one worker computes it the others wait: "
    "dividing the model does not make generation faster (two equal workers generated 0.99 times as fast as one where "
    "that was measured, see docs/explanation/performance.md)"
)


def _one_host(planned: Planned, cluster: Cluster, workers: Sequence[dict[str, Any]]) -> str | None:
    """Return the host that could hold the whole model: the master, or the worker with the most memory."""
    room = master_room(cluster)
    whole = planned.need(Part(planned.local, planned.count + 1), 1).total + planned.master(1).total
    if room is not None and whole <= room.usable:
        return "the master"
    if len(cluster.workers) < 2:
        return None
    largest = max(range(len(workers)), key=lambda index: cluster.workers[index].memory_available_bytes)
    return str(workers[largest]["endpoint"]) if workers[largest]["fits_alone"] else None


def _message(result: dict[str, Any], idle: Sequence[str], hints: Hints | None) -> str:
    if hints:
        proposals = [it["message"] for it in result["suggestions"]]
        helps = (
            hints.with_which_it_fits(proposals)
            if proposals
            else f"; these changes were tried, alone and in pairs, and none is enough: {hints.tried()}"
        )
        if idle:
            whom = f"worker{'s' if len(idle) > 1 else ''} {enumerated(idle)}"
            return f"The tensor_split leaves {whom} without a layer{helps}."
        lacks = [f"{it['host']} lacks {in_words(it['bytes'])}" for it in result["shortfall"]]
        by = "" if result["compute_known"] else " by an upper estimate of the compute buffers"
        return f"It does not fit{by}, {enumerated(lacks)}{helps}."
    if result["fits"] is None:
        return "Without the cache, whose size is not known for this architecture, it fits."
    fullest = min(result["workers"], key=lambda it: it["headroom_bytes"])
    room = f"It fits; the least room is left on {fullest['endpoint']}, {in_words(fullest['headroom_bytes'])}"
    alone = result["fits_on_one"]
    return f"{room}. {alone['message']}" if alone else f"{room}."


def _too_many(planned: Planned, cluster: Cluster, variables_of: str) -> str | None:
    count, layers = len(cluster.workers), planned.count - planned.local
    # If no layers are left for workers, the output alone still goes to one worker.
    most = max(layers - planned.tail + 1, 1)
    if count <= most:
        return None
    hints = Hints(planned, cluster, variables_of)
    base = hints.base
    trials = {"fewer_workers": base._replace(cluster=replace(cluster, workers=cluster.workers[:most]))}
    if not layers and count <= planned.count:
        trials["n_gpu_layers"] = base._replace(load=replace(base.load, n_gpu_layers=count + 1))
    proposals = [hints.typed_as(name, trial) for name, trial in trials.items() if hints.fits(trial)]
    helps = hints.with_which_it_fits(proposals) if proposals else f", and it does not fit on the first {most} either"
    if not layers:
        given = f"n_gpu_layers ({planned.load.n_gpu_layers}) leaves them only the output"
        return f"There are {count} workers, and {given}{helps}."
    given = "the model has" if not planned.local else f"n_gpu_layers ({planned.load.n_gpu_layers}) leaves them"
    return f"There are more workers ({count}) than layers ({given} {layers}){helps}."


def _notes(planned: Planned) -> list[str]:
    notes = []
    if not planned.compute_known:
        notes.append(
            "The compute buffers are an upper estimate: the plan does not know what llama.cpp computes for this model."
        )
    if planned.model.shape.predict_layers and planned.head is None:
        notes.append(
            "The layers that only predict further tokens are counted in full; llama.cpp leaves most of it out."
        )
    if planned.projector:
        notes.append("The projector's compute buffer is an estimate for the largest picture that a slot can take.")
    return notes


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


def _workers(planned: Planned, cluster: Cluster, rooms: Sequence[Room], parts: Sequence[Part]) -> list[dict[str, Any]]:
    found = []
    for worker, room, part in zip(cluster.workers, rooms, parts):
        layers = min(part.end, planned.count) - part.first
        alone = replace(cluster, workers=(worker,), tensor_split=())
        found.append(
            {
                "endpoint": worker.endpoint,
                "first_layer": part.first if layers else None,
                "layers": layers,
                "has_output": part.end > planned.count,
                **_memory(planned.need(part, len(rooms)), room),
                "fits_alone": planned.kv_known and fits(planned, alone),
            }
        )
    return found


def _judge(result: dict[str, Any], planned: Planned, cluster: Cluster, variables_of: str) -> None:
    """Write into the result whether the model fits, what is missing, and what would help."""
    idle = [it["endpoint"] for it in result["workers"] if not it["layers"] and not it["has_output"]]
    result["shortfall"] = [
        {"host": host, "bytes": -it["headroom_bytes"]}
        for host, it in [("the master", result["master"]), *((it["endpoint"], it) for it in result["workers"])]
        if it["headroom_bytes"] is not None and it["headroom_bytes"] < 0
    ]
    hints = None
    if result["shortfall"] or idle:
        hints = Hints(planned, cluster, variables_of)
        result["suggestions"] = hints.found()
    else:
        result["fits"] = True if planned.kv_known else None
        alone = _one_host(planned, cluster, result["workers"])
        if alone and planned.kv_known:
            result["fits_on_one"] = {"endpoint": alone, "message": f"It would fit on {alone} alone. {ONE_HOST}."}
    result["message"] = _message(result, idle, hints)


def plan(
    headers: Sequence[Header],
    load: Load,
    cluster: Cluster,
    *,
    adapters: Sequence[Header] = (),
    draft: Sequence[Header] | None = None,
    projector: Header | None = None,
    variables_of: str = "module",
) -> dict[str, Any]:
    """Return the division of the model and the memory that it needs; raises SplitError for a wrong input.

    `adapters` are LoRA adapters. `draft` is a model that drafts tokens for the main model, and `projector` is a file
    with which that model takes pictures, on the master. `variables_of` is the key of hints.TYPED whose variables the
    messages name.
    """
    check_cluster(cluster)
    planned = Planned(source(headers, adapters=adapters, draft=draft, projector=projector), load)
    rooms = rooms_of(planned, cluster)
    result: dict[str, Any] = {
        "fits": False,
        "message": "",
        "tensor_split": [],
        "ctx_size": planned.context,
        "layers": planned.count,
        "workers": [],
        "master": None,
        "kv_known": planned.kv_known,
        "compute_known": planned.compute_known,
        "shortfall": [],
        "suggestions": [],
        "fits_on_one": None,
        "notes": [*planned.model.notes, *_notes(planned)],
    }
    too_many = None if cluster.tensor_split else _too_many(planned, cluster, variables_of)
    if too_many:
        return {**result, "message": too_many}
    if cluster.tensor_split:
        parts = parts_of(planned.count, load.n_gpu_layers, cluster.tensor_split)
        result["tensor_split"] = list(cluster.tensor_split)
    else:
        parts = choose(planned, cluster, rooms)
        # With whole numbers, upstream's division by their sum gives exactly these counts.
        result["tensor_split"] = [part.end - part.first for part in parts]
    result["workers"] = _workers(planned, cluster, rooms, parts)
    own = planned.master(len(cluster.workers))
    result["master"] = {"layers": planned.local, **_memory(own, master_room(cluster)), "other_bytes": own.other}
    _judge(result, planned, cluster, variables_of)
    return result
