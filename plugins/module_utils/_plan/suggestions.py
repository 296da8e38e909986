# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: with what change a model would fit that does not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from .._gguf.ggml_types import CACHE_TYPES
from .choice import fits
from .inputs import MAX_WORKERS, Cluster, Worker
from .need import Planned

# The cache types that are proposed, and the fewest bits that a quantisation has that still gives text.
_SMALLER_CACHES = ("q8_0", "q4_0")
_FEWEST_BITS = 2.0
_SMALLEST_CONTEXT = 256


def in_words(count: float) -> str:
    """Return bytes for a person."""
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
    return {"kind": "context", "ctx_size": size, "message": f"a ctx_size of {size} instead of {planned.context} fits"}


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
    return {"kind": "tensor_split", "message": "without tensor_split, a division that fits is found"}


def suggestions(planned: Planned, cluster: Cluster) -> list[dict[str, Any]]:
    """Return the smallest change of each kind with which it would fit."""
    kinds = (_suggest_split, _suggest_context, _suggest_cache, _suggest_workers, _suggest_quantisation)
    found = (kind(planned, cluster) for kind in kinds)
    return [suggestion for suggestion in found if suggestion]
