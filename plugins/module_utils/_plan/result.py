# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the plan, as a result and as a sentence, and the changes with which a model would fit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Sequence

from .._gguf.ggml_types import CACHE_TYPES
from .._status.limits import MAX_WORKERS
from .assignment import Part, parts_of
from .choice import Room, choose, fits, master_room, rooms_of
from .inputs import Cluster, Load, Worker, check_cluster, source
from .need import Need, Planned

if TYPE_CHECKING:
    from .._gguf.header import Header


# The cache types to propose, and the fewest bits per weight with which a model still gives text.
_SMALLER_CACHES = ("q8_0", "q4_0")
_FEWEST_BITS = 2.0
_SMALLEST_CONTEXT = 256


def in_words(count: float) -> str:
    """Return a number of bytes in a readable unit."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1024:.0f} KiB"


def _suggest_context(planned: Planned, cluster: Cluster) -> dict[str, Any] | None:
    low, high = 0, (planned.context - 1) // _SMALLEST_CONTEXT
    while low < high:
        middle = (low + high + 1) // 2
        if fits(planned.of, replace(planned.load, ctx_size=middle * _SMALLEST_CONTEXT), cluster):
            low = middle
        else:
            high = middle - 1
    if not low:
        return None
    size = low * _SMALLEST_CONTEXT
    whose = " for all slots together" if planned.load.parallel > 1 else ""
    words = f"a ctx_size of {size} instead of {planned.context}{whose} fits"
    return {"kind": "context", "ctx_size": size, "message": words}


def _suggest_parallel(planned: Planned, cluster: Cluster) -> dict[str, Any] | None:
    parallel = planned.load.parallel
    each = planned.context // max(1, parallel)
    low, high = 0, parallel - 1
    while low < high:
        middle = (low + high + 1) // 2
        if fits(planned.of, replace(planned.load, parallel=middle, ctx_size=middle * each), cluster):
            low = middle
        else:
            high = middle - 1
    if low < 1:
        return None
    words = f"{low} slot{'s' if low > 1 else ''} instead of {parallel}, of the same context each"
    return {"kind": "parallel", "parallel": low, "message": f"{words}, fit{'' if low > 1 else 's'}"}


def _suggest_cache(planned: Planned, cluster: Cluster) -> dict[str, Any] | None:
    load = planned.load
    if load.flash_attn == "off":
        return None
    for kind in _SMALLER_CACHES:
        smaller = CACHE_TYPES[kind].block_bytes / CACHE_TYPES[kind].block
        now = CACHE_TYPES[load.cache_type_k].block_bytes / CACHE_TYPES[load.cache_type_k].block
        if smaller < now and fits(planned.of, replace(load, cache_type_k=kind, cache_type_v=kind), cluster):
            return {
                "kind": "cache_type",
                "cache_type_k": kind,
                "cache_type_v": kind,
                "message": f"cache_type_k and cache_type_v {kind} fit",
            }
    return None


def _suggest_workers(planned: Planned, cluster: Cluster) -> dict[str, Any] | None:
    size = max(worker.memory_available_bytes for worker in cluster.workers)
    open_cluster = replace(cluster, tensor_split=())
    for more in range(1, MAX_WORKERS - len(cluster.workers) + 1):
        added = tuple(Worker(f"more {number}", size) for number in range(more))
        if fits(planned.of, planned.load, replace(open_cluster, workers=(*cluster.workers, *added))):
            words = f"{more} more worker{'s' if more > 1 else ''} with {in_words(size)} available"
            return {
                "kind": "workers",
                "workers": more,
                "memory_available_bytes": size,
                "message": f"{words} would do",
            }
    return None


def _suggest_quantisation(planned: Planned, cluster: Cluster) -> dict[str, Any] | None:
    model = planned.model
    if not model.parameters:
        return None
    bits = 8 * (model.weights.bytes or 0) / model.parameters
    low, high = 0.0, 1.0
    for _step in range(12):
        middle = (low + high) / 2
        if fits(planned.of, planned.load, cluster, middle):
            low = middle
        else:
            high = middle
    fitting = math.floor(low * bits * 10) / 10
    if fitting < _FEWEST_BITS:
        return None
    return {
        "kind": "quantisation",
        "bits_per_weight": fitting,
        "message": f"a quantisation of at most {fitting:g} bits per weight instead of {bits:.1f} fits",
    }


def _suggest_split(planned: Planned, cluster: Cluster) -> dict[str, Any] | None:
    if not cluster.tensor_split or not fits(planned.of, planned.load, replace(cluster, tensor_split=())):
        return None
    return {"kind": "tensor_split", "message": "without tensor_split, the plan finds a division that fits"}


def suggestions(planned: Planned, cluster: Cluster) -> list[dict[str, Any]]:
    """Return the smallest change of each kind with which the model would fit."""
    kinds = (
        _suggest_split,
        _suggest_context,
        _suggest_parallel,
        _suggest_cache,
        _suggest_workers,
        _suggest_quantisation,
    )
    found = (kind(planned, cluster) for kind in kinds)
    return [suggestion for suggestion in found if suggestion]


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


def _ended(words: Sequence[str]) -> str:
    """Return the words as one enumeration."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _message(result: dict[str, Any], idle: Sequence[str]) -> str:
    if idle:
        whom = f"worker{'s' if len(idle) > 1 else ''} {_ended(idle)}"
        return f"The tensor_split leaves {whom} without a layer; give larger shares there, or leave tensor_split out."
    if result["shortfall"]:
        lacks = [f"{it['host']} lacks {in_words(it['bytes'])}" for it in result["shortfall"]]
        proposals = [it["message"] for it in result["suggestions"]]
        more = f": {'; or '.join(proposals)}" if proposals else ", whatever is changed"
        by = "" if result["compute_known"] else " by an upper estimate of the compute buffers"
        return f"It does not fit{by}, {_ended(lacks)}{more}."
    if result["fits"] is None:
        return "Without the cache, whose size is not known for this architecture, it fits."
    fullest = min(result["workers"], key=lambda it: it["headroom_bytes"])
    room = f"It fits; the least room is left on {fullest['endpoint']}, {in_words(fullest['headroom_bytes'])}"
    alone = result["fits_on_one"]
    return f"{room}. {alone['message']}" if alone else f"{room}."


def _too_many(planned: Planned, cluster: Cluster) -> str | None:
    count, layers = len(cluster.workers), planned.count - planned.local
    # If no layers are left for workers, the output alone still goes to one worker.
    if count <= max(layers, 1):
        return None
    if not layers:
        more = f", or give n_gpu_layers from {count + 1} on" if count <= planned.count else ""
        return (
            f"There are {count} workers, and n_gpu_layers ({planned.load.n_gpu_layers}) leaves them only the output; "
            f"name one worker{more}."
        )
    given = "the model has" if not planned.local else f"n_gpu_layers ({planned.load.n_gpu_layers}) leaves them"
    return f"There are more workers ({count}) than layers ({given} {layers}); name fewer workers."


def _notes(planned: Planned) -> list[str]:
    notes = []
    if not planned.compute_known:
        notes.append(
            "The compute buffers are an upper estimate: the plan does not know what llama.cpp computes for this model."
        )
    if planned.model.shape.predict_layers:
        notes.append(
            "The layers that only predict further tokens are counted in full; llama.cpp leaves most of it out."
        )
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
                "fits_alone": planned.kv_known and fits(planned.of, planned.load, alone),
            }
        )
    return found


def _judge(result: dict[str, Any], planned: Planned, cluster: Cluster) -> None:
    """Write into the result whether the model fits, what is missing, and what would help."""
    idle = [it["endpoint"] for it in result["workers"] if not it["layers"] and not it["has_output"]]
    result["shortfall"] = [
        {"host": host, "bytes": -it["headroom_bytes"]}
        for host, it in [("the master", result["master"]), *((it["endpoint"], it) for it in result["workers"])]
        if it["headroom_bytes"] is not None and it["headroom_bytes"] < 0
    ]
    if result["shortfall"]:
        result["suggestions"] = suggestions(planned, cluster)
    elif not idle:
        result["fits"] = True if planned.kv_known else None
        alone = _one_host(planned, cluster, result["workers"])
        if alone and planned.kv_known:
            result["fits_on_one"] = {"endpoint": alone, "message": f"It would fit on {alone} alone. {ONE_HOST}."}
    result["message"] = _message(result, idle)


def plan(
    headers: Sequence[Header],
    load: Load,
    cluster: Cluster,
    *,
    adapters: Sequence[Header] = (),
    draft: Sequence[Header] | None = None,
) -> dict[str, Any]:
    """Return the division of the model and the memory that it needs; raises SplitError for a wrong input.

    `adapters` are LoRA adapters, and `draft` is a model that drafts tokens for the main model on the master.
    """
    check_cluster(cluster)
    planned = Planned(source(headers, adapters=adapters, draft=draft), load)
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
    too_many = _too_many(planned, cluster)
    if too_many and not cluster.tensor_split:
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
    _judge(result, planned, cluster)
    return result
