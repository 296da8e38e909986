# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Private: how a model is divided among workers, what each of them needs, and whether it has that.

Layers go to devices as in src/llama-model.cpp (load_tensors), in its arithmetic of 32 bits. Weights and cache are those
of `_gguf`, compute buffers those of `compute_buffers`. Nothing is read and nobody is asked.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Sequence

from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.ggml_types import CACHE_TYPES
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.model import describe, kv_cells, row_bytes
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.compute_buffers import (
    FOLLOWED,
    PIPELINE_COPIES,
    Batch,
    Head,
    LayerShape,
    device_bytes,
    input_bytes,
    layer_shape,
    margin_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import Header, Tensor
    from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.model import Layer, Model

# GGML_SCHED_MAX_BACKENDS is 16, and the master's CPU is one of them. (ggml/src/ggml-backend.cpp)
MAX_WORKERS = 15
# LLAMA_MAX_EXPERTS (src/llama-hparams.h)
MAX_EXPERTS = 1024
QUANTISED_CACHES = tuple(name for name in CACHE_TYPES if CACHE_TYPES[name].block > 1)
# The cache types that are proposed, and the fewest bits that a quantisation has that still gives text.
_SMALLER_CACHES = ("q8_0", "q4_0")
_FEWEST_BITS = 2.0
_SMALLEST_CONTEXT = 256
# Such as a C float holds, and sums of them.
SMALLEST_SHARE, LARGEST_SHARE = 1e-30, 1e30
# llama.cpp rotates what goes into a quantised cache with a matrix of this size or, for keys, a larger one.
_ROTATION = 64
_LAYER = re.compile(r"^blk\.(\d{1,3})\.(.+?)(?:\.weight)?$")

ONE_HOST = (
    "Each token goes through the layers one after another, so that while one worker computes it the others wait: "
    "dividing the model does not make generation faster (two equal workers generated 0.92 times as fast as one where "
    "that was measured, see docs/performance.md)"
)


class SplitError(ValueError):
    """What was asked for cannot be planned; the message is one sentence that says what to do."""


@dataclass(frozen=True)
class Worker:
    """A worker; workers of one `host` share its memory, `memory_max_bytes` is a limit of its own.

    `weight` is its speed next to the others'.
    """

    endpoint: str
    memory_available_bytes: int
    weight: float | None = None
    host: str | None = None
    memory_max_bytes: int | None = None


@dataclass(frozen=True)
class Load:
    """What is to be loaded, in llama.cpp's terms."""

    ctx_size: int = 0
    batch_size: int = 2048
    ubatch_size: int = 512
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: str = "auto"
    n_gpu_layers: int = 999


@dataclass(frozen=True)
class Cluster:
    """Where to. `tensor_split` is judged if there is one; `master_host` is the host of a worker, if it is one."""

    workers: tuple[Worker, ...]
    reserve_bytes: int = 0
    reserve_percent: float = 0.0
    tensor_split: tuple[float, ...] = ()
    master_memory_available_bytes: int | None = None
    master_host: str | None = None


class Need(NamedTuple):
    """What a host holds, in bytes."""

    weights: int
    kv: int
    compute: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv + self.compute


class _Part(NamedTuple):
    """What a device gets: layers from `first` to before `end`; `end` beyond the last layer stands for the output."""

    first: int
    end: int


def check_cluster(cluster: Cluster) -> None:
    """Raise SplitError for the first thing that no plan can be made of."""
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
        if worker.memory_max_bytes is not None and worker.memory_max_bytes < 0:
            raise SplitError(
                f"memory_max_bytes of worker {worker.endpoint} is {worker.memory_max_bytes}; give its limit."
            )
        if worker.weight is not None and not (worker.weight > 0 and math.isfinite(worker.weight)):
            raise SplitError(f"weight of worker {worker.endpoint} is {worker.weight:g}; give a number above 0.")
    if cluster.reserve_bytes < 0:
        raise SplitError(f"reserve_bytes is {cluster.reserve_bytes}; give a number from 0.")
    if not 0 <= cluster.reserve_percent <= 100:
        raise SplitError(f"reserve_percent is {cluster.reserve_percent:g}; give a number from 0 to 100.")
    memory = cluster.master_memory_available_bytes
    if memory is not None and memory < 0:
        raise SplitError(f"master_memory_available_bytes is {memory}; give the bytes that the master has free.")
    _check_tensor_split(cluster)


def _check_tensor_split(cluster: Cluster) -> None:
    split, count = cluster.tensor_split, len(cluster.workers)
    if split and len(split) != count:
        raise SplitError(f"tensor_split has {len(split)} entries for {count} workers; give one share for each worker.")
    for worker, share in zip(cluster.workers, split):
        if share != 0 and not SMALLEST_SHARE <= share <= LARGEST_SHARE:
            raise SplitError(
                f"tensor_split gives worker {worker.endpoint} the share {share:g}; give a number above 0, from "
                f"{SMALLEST_SHARE:g} to {LARGEST_SHARE:g}."
            )
    if split and not any(split):
        raise SplitError("tensor_split has no share above 0; give each worker one, or leave it out.")


def check_load(load: Load) -> None:
    """Raise SplitError for the first thing that llama.cpp does not take."""
    for name, value, low in (
        ("ctx_size", load.ctx_size, 0),
        ("batch_size", load.batch_size, 1),
        ("ubatch_size", load.ubatch_size, 1),
        ("n_gpu_layers", load.n_gpu_layers, 1),
    ):
        if not low <= value < 1 << 31:
            raise SplitError(f"{name} is {value}; give a number from {low} to {(1 << 31) - 1}.")
    if load.flash_attn == "off" and load.cache_type_v in QUANTISED_CACHES:
        raise SplitError(
            f"cache_type_v is {load.cache_type_v} and flash_attn is off, which llama.cpp refuses; "
            "take f16, or leave flash_attn on."
        )


def _float(number: float) -> float:
    """Round as C does to a float."""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def assign(layers: int, n_gpu_layers: int, shares: Sequence[float]) -> list[int | None]:
    """Return which device each layer goes to, and last the output; None for the master's memory.

    src/llama-model.cpp (load_tensors): shares are summed and normalised as floats, and the first device whose sum is
    beyond the layer's own share gets it.
    """
    total = 0.0
    sums = []
    for share in shares:
        total = _float(total + _float(share))
        sums.append(total)
    points = [_float(point / total) for point in sums]
    active = min(n_gpu_layers, layers + 1)
    start = layers + 1 - active
    devices: list[int | None] = [None] * start
    for index in range(active):
        at = _float(index / active)
        devices.append(next((device for device, point in enumerate(points) if point > at), len(shares) - 1))
    return devices


def in_words(count: float) -> str:
    """Return bytes for a person."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1024:.0f} KiB"


def _check_experts(experts: int, used: int) -> None:
    """Refuse what src/llama-model.cpp (load_hparams) refuses: each expert that is used is a node of the graph."""
    if experts > MAX_EXPERTS:
        raise SplitError(
            f"The model says that it has {experts} experts, and llama.cpp takes {MAX_EXPERTS}; take a file of another "
            "model, or fetch this one again."
        )
    # For some of one expert alone upstream takes no notice.
    if used > max(experts, 1):
        raise SplitError(
            f"The model says that it uses {used} of {experts} experts, which llama.cpp refuses; take a file of another "
            "model, or fetch this one again."
        )


class Source(NamedTuple):
    """A model's headers, and what they say."""

    model: Model
    layers: list[dict[str, Tensor]]  # by the name without `blk.N.` and `.weight`


def source(headers: Sequence[Header]) -> Source:
    """Return what is planned with; raises SplitError for a model that cannot be divided."""
    model = describe(headers)
    notes = " ".join(model.notes)
    if not model.layers:
        raise SplitError(f"The model has no layers that could be divided. {notes}".rstrip())
    if model.weights.bytes is None or any(layer.bytes is None for layer in model.layers):
        raise SplitError(f"The bytes of the model's weights are not known. {notes}".rstrip())
    _check_experts(model.shape.experts, model.shape.experts_used)
    tensors: list[dict[str, Tensor]] = [{} for _layer in model.layers]
    for header in headers:
        for tensor in header.tensors:
            match = _LAYER.match(tensor.name)
            if match and int(match.group(1)) < len(tensors):
                tensors[int(match.group(1))][match.group(2)] = tensor
    return Source(model, tensors)


class Planned:
    """A model, as it would be loaded: what each part of it needs."""

    def __init__(self, of: Source, load: Load, *, shrink: float = 1.0) -> None:
        """Take the model; `shrink` makes its weights smaller, as another quantisation would."""
        check_load(load)
        self.of = of
        self.load = load
        self.shrink = shrink
        self.model = model = of.model
        shape, weights = model.shape, model.weights
        self.context = self._context()
        padded = -(-self.context // 256) * 256
        self.cells = padded
        batch = min(padded, load.batch_size)
        self.tokens = min(batch, load.ubatch_size)
        self.outputs = min(self.tokens, batch)
        self.flash_attention = load.flash_attn != "off" and model.architecture != "grok"
        self.kv_known = model.cache.known
        self.compute_known = model.architecture in FOLLOWED and not shape.predict_layers
        self.vocabulary = shape.vocabulary or 0
        self.width = shape.embedding_length or 0
        self.count = len(model.layers)
        self.active = min(load.n_gpu_layers, self.count + 1)
        self.local = self.count + 1 - self.active
        layer_weights = [round((layer.bytes or 0) * shrink) for layer in model.layers]
        self.output_weights = round(
            (weights.output_bytes or 0) * shrink
            + ((weights.embedding_bytes or 0) * shrink if weights.tied_embeddings else 0)
        )
        self.weight_sums = [0, *accumulate(layer_weights)]
        self.kv_sums = [0, *accumulate(self._kv())]
        self.shapes = self._shapes()
        self._known: dict[tuple[object, ...], int] = {}

    def _context(self) -> int:
        trained = self.model.shape.context_length
        context = self.load.ctx_size or trained
        if not context:
            raise SplitError("The model does not say its context length; give ctx_size.")
        return context

    def _kv(self) -> list[int]:
        load, model = self.load, self.model
        latent = any(layer.key_width and layer.value_width == 0 for layer in model.layers)
        if latent and load.cache_type_k != load.cache_type_v:
            raise SplitError(
                f"cache_type_k is {load.cache_type_k} and cache_type_v {load.cache_type_v}, which llama.cpp refuses "
                "for a model with latent attention; give both the same."
            )
        # src/llama-kv-cache.cpp: values of different widths are padded where they are kept transposed.
        widest = max((layer.value_width or 0 for layer in model.layers), default=0)
        sizes = []
        for layer in model.layers:
            cells = kv_cells(layer, self.context, model.cache.window_tokens, self.tokens)
            size = layer.state_bytes or 0
            if cells and layer.key_width is not None and layer.value_width is not None:
                for name, kind in (("cache_type_k", load.cache_type_k), ("cache_type_v", load.cache_type_v)):
                    if layer.kv_bytes_per_token.get(kind) is None:
                        raise SplitError(
                            f"{name} is {kind}, whose blocks do not fit the heads of this model, "
                            "which llama.cpp refuses; take f16."
                        )
                value = layer.value_width if self.flash_attention or not layer.value_width else widest
                keys = row_bytes(layer.key_width, layer.key_width or 1, load.cache_type_k) or 0
                values = row_bytes(value, value or 1, load.cache_type_v) or 0
                size += cells * (keys + values)
            sizes.append(size)
        return sizes

    def _shapes(self) -> list[LayerShape]:
        model = self.model

        def cells(layer: Layer, found: dict[str, Tensor]) -> int:
            own = kv_cells(layer, self.context, model.cache.window_tokens, self.tokens)
            # One that attends without a cache of its own uses another layer's.
            return own or (self.cells if "attn_q" in found and not self.compute_known else 0)

        return [
            layer_shape(
                found,
                width=self.width,
                heads=layer.heads or 0,
                cells=cells(layer, found),
                window=layer.cache == "window",
                experts_used=model.shape.experts_used,
            )
            for layer, found in zip(model.layers, self.of.layers)
        ]

    def batch(self, devices: int) -> Batch:
        """Return what is computed at a time with so many workers."""
        shape, load = self.model.shape, self.load
        rotated_keys = rotated_values = 0
        if load.cache_type_k in QUANTISED_CACHES and shape.key_length and shape.key_length % _ROTATION == 0:
            rotated_keys = _ROTATION
            while shape.key_length % (rotated_keys * 2) == 0:
                rotated_keys *= 2
        if load.cache_type_v in QUANTISED_CACHES and shape.value_length and shape.value_length % _ROTATION == 0:
            rotated_values = _ROTATION
        return Batch(
            tokens=self.tokens,
            outputs=self.outputs,
            flash_attention=self.flash_attention,
            # src/llama-context.cpp: prompt batches go through workers side by side if all layers are on workers.
            copies=PIPELINE_COPIES if devices > 1 and not self.local else 1,
            local_layers=self.local > 0,
            rotated_keys=rotated_keys,
            rotated_values=rotated_values,
            value_rows=max((layer.value_width or 0 for layer in self.model.layers), default=0),
        )

    def _few(self, layers: Sequence[LayerShape]) -> list[LayerShape]:
        """Leave out layers that only repeat others: the buffers are used again."""
        kept: list[LayerShape] = []
        for layer in layers:
            if kept.count(layer) < 2:
                kept.append(layer)
        return kept

    def need(self, part: _Part, devices: int) -> Need:
        """Return what a worker with this part needs, one of so many."""
        end = min(part.end, self.count)
        has_output = part.end > self.count
        weights = self.weight_sums[end] - self.weight_sums[part.first]
        if has_output:
            weights += self.output_weights
        if end > part.first:
            weights += self.model.weights.shared_bytes or 0
        if part.end == part.first:
            return Need(0, 0, 0)
        key = (part, devices > 1)
        if key not in self._known:
            layers = self._few(self.shapes[part.first : end])
            self._known[key] = self._compute(
                tuple(layers), devices, part.first == self.local, end == self.count and end > part.first, has_output
            )
        return Need(weights, self.kv_sums[end] - self.kv_sums[part.first], self._known[key])

    def _compute(self, layers: tuple[LayerShape, ...], devices: int, first: bool, last: bool, output: bool) -> int:
        key = (layers, devices > 1, first, last, output)
        if key not in self._known:
            self._known[key] = device_bytes(
                self.model.architecture or "",
                layers,
                self.batch(devices),
                first=first,
                last=last,
                head=Head(self.width, self.vocabulary) if output else None,
                before=self.shapes[-1] if first and not layers else None,
            )
            if not self.compute_known:
                self._known[key] += margin_bytes(self.shapes, self.batch(devices), self.width)
        return self._known[key]

    def master(self, devices: int) -> Need:
        """Return what the master's own memory holds: the input, its own layers, and the buffers of both."""
        weights = round((self.model.weights.input_bytes or 0) * self.shrink) + self.weight_sums[self.local]
        batch = self.batch(devices)
        compute = input_bytes(self.shapes, batch, self.width) + 4 * self.vocabulary
        if self.local:
            weights += self.model.weights.shared_bytes or 0
            compute += self._compute(tuple(self._few(self.shapes[: self.local])), devices, True, False, False)
        return Need(weights, self.kv_sums[self.local], compute)

    def parts(self, shares: Sequence[float]) -> list[_Part]:
        """Return what llama.cpp gives to each worker by these shares."""
        devices = assign(self.count, self.load.n_gpu_layers, shares)
        parts = []
        for device in range(len(shares)):
            mine = [index for index, owner in enumerate(devices) if owner == device]
            parts.append(_Part(mine[0], mine[-1] + 1) if mine else _Part(self.local, self.local))
        return parts


class _Room(NamedTuple):
    """What a worker has."""

    available: int
    reserve: int

    @property
    def usable(self) -> int:
        return max(0, self.available - self.reserve)


def _rooms(planned: Planned, cluster: Cluster) -> list[_Room]:
    """Divide a host's memory among its workers, without what the master takes of it if that is there too."""
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
        rooms.append(_Room(share, reserve // len(on_host)))
    return rooms


def _reach(planned: Planned, rooms: Sequence[_Room], within: Callable[[int, _Part, Need], bool]) -> list[_Part] | None:
    """Give each worker in turn as many layers as it takes; None if some are left over."""
    count = len(rooms)
    beyond = planned.count + 1
    at = planned.local
    parts = []
    for index in range(count):
        # Each of the others gets a layer, and the last one does not get the output alone.
        left = count - index - 1
        furthest = beyond if not left else planned.count - left
        end = at
        while end < furthest:
            # The last layer and the output stay together.
            longer = beyond if end + 1 >= planned.count else end + 1
            part = _Part(at, longer)
            if not within(index, part, planned.need(part, count)):
                break
            end = longer
        if end == at:
            return None
        parts.append(_Part(at, end))
        at = end
    return parts if at == beyond else None


def _least(levels: Callable[[float], list[_Part] | None], high: float) -> list[_Part] | None:
    """Return what the lowest level gives that gives anything."""
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


def _choose(planned: Planned, cluster: Cluster, rooms: Sequence[_Room]) -> list[_Part]:
    """Return the parts that leave the fullest worker, or the one with the most to do for its speed, with the least."""

    def by_memory(level: float) -> list[_Part] | None:
        return _reach(planned, rooms, lambda index, _part, need: need.total <= level * max(rooms[index].usable, 1))

    def by_speed(level: float) -> list[_Part] | None:
        return _reach(
            planned,
            rooms,
            lambda index, _part, need: (
                need.total <= rooms[index].usable and need.weights <= level * (cluster.workers[index].weight or 1.0)
            ),
        )

    everything = planned.need(_Part(planned.local, planned.count + 1), len(rooms))
    chosen = None
    if any(worker.weight is not None for worker in cluster.workers):
        slowest = min(worker.weight or 1.0 for worker in cluster.workers)
        chosen = _least(by_speed, 2.0 * everything.weights / slowest + 1)
    if chosen is None:
        # Beyond what the smallest worker would be with all of it, times the workers, anything is within.
        chosen = _least(by_memory, 2.0 * (everything.total + 1) / max(1, min(room.usable for room in rooms)))
    if chosen is None:
        raise AssertionError("each worker takes a layer if it may be as full as it likes")
    return chosen


def _fits(planned: Planned, cluster: Cluster) -> bool:
    """Return whether any split fits, or the given one."""
    rooms = _rooms(planned, cluster)
    if not _master_fits(planned, cluster):
        return False
    if cluster.tensor_split:
        parts: list[_Part] | None = planned.parts(cluster.tensor_split)
        return all(
            part.end > part.first and planned.need(part, len(rooms)).total <= room.usable
            for part, room in zip(parts or [], rooms)
        )
    return _reach(planned, rooms, lambda index, _part, need: need.total <= rooms[index].usable) is not None


def _master_room(cluster: Cluster) -> _Room | None:
    available = cluster.master_memory_available_bytes
    if available is None:
        return None
    # On a worker's host the reserve is the worker's already.
    shared = any(worker.host is not None and worker.host == cluster.master_host for worker in cluster.workers)
    reserve = max(cluster.reserve_bytes, math.ceil(available * cluster.reserve_percent / 100))
    return _Room(available, 0 if shared else reserve)


def _master_fits(planned: Planned, cluster: Cluster) -> bool:
    room = _master_room(cluster)
    return room is None or planned.master(len(cluster.workers)).total <= room.usable


def _try(of: Source, load: Load, cluster: Cluster, shrink: float = 1.0) -> bool:
    try:
        return _fits(Planned(of, load, shrink=shrink), cluster)
    except SplitError:
        return False


def _suggest_context(planned: Planned, cluster: Cluster) -> dict[str, Any] | None:
    low, high = 0, (planned.context - 1) // _SMALLEST_CONTEXT
    while low < high:
        middle = (low + high + 1) // 2
        if _try(planned.of, replace(planned.load, ctx_size=middle * _SMALLEST_CONTEXT), cluster):
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
        if smaller < now and _try(planned.of, replace(load, cache_type_k=kind, cache_type_v=kind), cluster):
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
        if _try(planned.of, planned.load, replace(open_cluster, workers=(*cluster.workers, *added))):
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
        if _try(planned.of, planned.load, cluster, middle):
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
    if not cluster.tensor_split or not _try(planned.of, planned.load, replace(cluster, tensor_split=())):
        return None
    return {"kind": "tensor_split", "message": "without tensor_split, a division that fits is found"}


def suggestions(planned: Planned, cluster: Cluster) -> list[dict[str, Any]]:
    """Return the smallest change of each kind with which it would fit."""
    kinds = (_suggest_split, _suggest_context, _suggest_cache, _suggest_workers, _suggest_quantisation)
    found = (kind(planned, cluster) for kind in kinds)
    return [suggestion for suggestion in found if suggestion]


def _one_host(planned: Planned, cluster: Cluster) -> str | None:
    """Return who could hold all of it: the master, or the worker with the most memory."""
    room = _master_room(cluster)
    whole = planned.need(_Part(planned.local, planned.count + 1), 1).total + planned.master(1).total
    if room is not None and whole <= room.usable:
        return "the master"
    if len(cluster.workers) < 2:
        return None
    largest = max(cluster.workers, key=lambda worker: worker.memory_available_bytes)
    alone = replace(cluster, workers=(largest,), tensor_split=())
    return largest.endpoint if _try(planned.of, planned.load, alone) else None


def _ended(words: Sequence[str]) -> str:
    """Join to one enumeration."""
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
    # The output alone goes to one worker.
    if count <= max(layers, 1):
        return None
    if not layers:
        more = f", or give n_gpu_layers from {count + 1} on" if count <= planned.count else ""
        return (
            f"There are {count} workers, and n_gpu_layers ({planned.load.n_gpu_layers}) leaves them the output alone; "
            f"name one worker{more}."
        )
    given = "the model has" if not planned.local else f"n_gpu_layers ({planned.load.n_gpu_layers}) leaves them"
    return f"There are more workers ({count}) than layers ({given} {layers}); name fewer workers."


def _notes(planned: Planned) -> list[str]:
    notes = []
    if not planned.compute_known:
        notes.append(
            "The compute buffers are an upper estimate: what llama.cpp computes for this model is not followed."
        )
    if planned.model.shape.predict_layers:
        notes.append(
            "The layers that only predict further tokens are counted in full; llama.cpp leaves most of it out."
        )
    return notes


def plan(headers: Sequence[Header], load: Load, cluster: Cluster) -> dict[str, Any]:
    """Return how the model is divided and what comes of it; raises SplitError for what cannot be planned."""
    check_cluster(cluster)
    planned = Planned(source(headers), load)
    count = len(cluster.workers)
    rooms = _rooms(planned, cluster)
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
        parts = planned.parts(cluster.tensor_split)
        result["tensor_split"] = list(cluster.tensor_split)
    else:
        parts = _choose(planned, cluster, rooms)
        # Whole numbers: upstream's division by their sum then gives these very counts.
        result["tensor_split"] = [part.end - part.first for part in parts]
    for worker, room, part in zip(cluster.workers, rooms, parts):
        need = planned.need(part, count)
        layers = min(part.end, planned.count) - part.first
        result["workers"].append(
            {
                "endpoint": worker.endpoint,
                "first_layer": part.first if layers else None,
                "layers": layers,
                "has_output": part.end > planned.count,
                "weights_bytes": need.weights,
                "kv_bytes": need.kv,
                "compute_bytes": need.compute,
                "total_bytes": need.total,
                "memory_available_bytes": room.available,
                "reserve_bytes": room.reserve,
                "headroom_bytes": room.available - room.reserve - need.total,
            }
        )
    need = planned.master(count)
    own = _master_room(cluster)
    result["master"] = {
        "layers": planned.local,
        "weights_bytes": need.weights,
        "kv_bytes": need.kv,
        "compute_bytes": need.compute,
        "total_bytes": need.total,
        "memory_available_bytes": own.available if own else None,
        "reserve_bytes": own.reserve if own else None,
        "headroom_bytes": own.available - own.reserve - need.total if own else None,
    }
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
        alone = _one_host(planned, cluster)
        if alone and planned.kv_known:
            result["fits_on_one"] = {"endpoint": alone, "message": f"It would fit on {alone} alone. {ONE_HOST}."}
    result["message"] = _message(result, idle)
    return result
