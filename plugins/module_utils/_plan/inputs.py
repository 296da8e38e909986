# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the inputs of a plan, and the checks that refuse inputs without a plan."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Sequence

from .._gguf.ggml_types import CACHE_TYPES
from .._gguf.model import describe
from .._status.limits import MAX_WORKERS

if TYPE_CHECKING:
    from .._gguf.described import Model
    from .._gguf.header import Header, Tensor


# LLAMA_MAX_EXPERTS (src/llama-hparams.h)
MAX_EXPERTS = 1024
QUANTISED_CACHES = tuple(name for name in CACHE_TYPES if CACHE_TYPES[name].block > 1)
# A C float holds such shares, and sums of them.
SMALLEST_SHARE, LARGEST_SHARE = 1e-30, 1e30
# common/speculative.cpp: layers that predict further tokens draft. They are of the model, or in a file of their own.
DRAFT_MTP = "draft-mtp"
_LAYER = re.compile(r"^blk\.(\d{1,3})\.(.+?)(?:\.weight)?$")


class SplitError(ValueError):
    """The inputs cannot be planned; the message is one sentence that says what to do."""


@dataclass(frozen=True)
class Worker:
    """A worker; workers of one `host` share its memory, and `memory_max_bytes` limits this worker.

    `weight` is its speed relative to the others.
    """

    endpoint: str
    memory_available_bytes: int
    weight: float | None = None
    host: str | None = None
    memory_max_bytes: int | None = None


@dataclass(frozen=True)
class Load:
    """The options with which llama.cpp loads the model."""

    ctx_size: int = 0
    batch_size: int = 2048
    ubatch_size: int = 512
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: str = "auto"
    n_gpu_layers: int = 999
    # The slots of llama-server. 0 means a program with one sequence, which may want the output of each of its tokens.
    parallel: int = 0
    outputs_per_slot: int = 1
    kv_unified: bool = False
    master_other_bytes: int = 0
    # The type of speculation, of which only DRAFT_MTP loads something else than a draft model on the master.
    spec_type: str = "none"


@dataclass(frozen=True)
class Cluster:
    """The workers and the master. A given `tensor_split` is judged; `master_host` is the worker host of the master."""

    workers: tuple[Worker, ...]
    reserve_bytes: int = 0
    reserve_percent: float = 0.0
    tensor_split: tuple[float, ...] = ()
    master_memory_available_bytes: int | None = None
    master_host: str | None = None


class Source(NamedTuple):
    """A model and the tensors of its layers.

    `draft` is a model that drafts tokens for it, and `projector` a file with which it takes pictures, on the master.
    """

    model: Model
    layers: list[dict[str, Tensor]]  # by the name without `blk.N.` and `.weight`
    draft: Source | None = None
    projector: Header | None = None


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
    """Raise SplitError for the first option that llama.cpp does not take."""
    for name, value, low in (
        ("ctx_size", load.ctx_size, 0),
        ("batch_size", load.batch_size, 1),
        ("ubatch_size", load.ubatch_size, 1),
        ("n_gpu_layers", load.n_gpu_layers, 1),
        ("parallel", load.parallel, 0),
        ("outputs_per_slot", load.outputs_per_slot, 1),
    ):
        if not low <= value < 1 << 31:
            raise SplitError(f"{name} is {value}; give a number from {low} to {(1 << 31) - 1}.")
    if load.master_other_bytes < 0:
        raise SplitError(f"master_other_bytes is {load.master_other_bytes}; give a number from 0.")
    if load.flash_attn == "off" and load.cache_type_v in QUANTISED_CACHES:
        raise SplitError(
            f"cache_type_v is {load.cache_type_v} and flash_attn is off, which llama.cpp refuses; "
            "take f16, or leave flash_attn on."
        )


def _check_experts(experts: int, used: int) -> None:
    """Raise SplitError for experts that src/llama-model.cpp (load_hparams) refuses; each used one is a graph node."""
    if experts > MAX_EXPERTS:
        raise SplitError(
            f"The model says that it has {experts} experts, and llama.cpp takes {MAX_EXPERTS}; take a file of another "
            "model, or fetch this one again."
        )
    # For some architectures, upstream ignores a single expert.
    if used > max(experts, 1):
        raise SplitError(
            f"The model says that it uses {used} of {experts} experts, which llama.cpp refuses; take a file of another "
            "model, or fetch this one again."
        )


def _with_adapters(model: Model, adapters: Sequence[Header]) -> Model:
    """Return the model with LoRA adapters, whose tensors lie beside those that they change (src/llama-adapter.cpp)."""
    layers, outside = [layer.bytes or 0 for layer in model.layers], {"input": 0, "output": 0}
    for tensor in (tensor for header in adapters for tensor in header.tensors):
        match = _LAYER.match(tensor.name)
        if match and int(match.group(1)) < len(layers):
            layers[int(match.group(1))] += tensor.bytes or 0
        else:
            outside["input" if tensor.name.startswith("token_embd") else "output"] += tensor.bytes or 0
    return replace(
        model,
        layers=[replace(layer, bytes=size) for layer, size in zip(model.layers, layers)],
        weights=replace(
            model.weights,
            input_bytes=(model.weights.input_bytes or 0) + outside["input"],
            output_bytes=(model.weights.output_bytes or 0) + outside["output"],
        ),
    )


def source(
    headers: Sequence[Header],
    *,
    adapters: Sequence[Header] = (),
    draft: Sequence[Header] | None = None,
    projector: Header | None = None,
) -> Source:
    """Return the source of a plan; raises SplitError for a model that cannot be divided."""
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
    if adapters:
        model = _with_adapters(model, adapters)
    return Source(model, tensors, source(draft) if draft else None, projector)
