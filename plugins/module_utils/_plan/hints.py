# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the changes with which a model would fit. Each is found by trying it, and named as its user types it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import Any, Callable, Iterator, NamedTuple, Sequence

from .._gguf.ggml_types import CACHE_TYPES
from .._status.limits import MAX_WORKERS
from .choice import choose, could_hold, holds
from .inputs import Cluster, Load, SplitError, Worker
from .options import DRAFT_MTP, PROJECTOR, SPECULATION, number_of, value_of, without
from .sizes import Asker, Sizes

# The cache types to propose, and the fewest bits per weight, in tenths, with which a model still gives text.
_SMALLER_CACHES = ("q8_0", "q4_0")
_FEWEST_TENTHS_OF_BITS = 20
# A cache consists of blocks of so many tokens.
_BLOCK = 256
_MIB = 1 << 20
# If no single change is enough, so many pairs of changes are proposed. After this time, no further change is tried.
_PAIRS, _LIMIT_S = 3, 60

# How a change is typed, by what a plan is made for: the module, a role, or the playbook size.
_TYPED = {
    "tensor_split": "with tensor_split=[]",
    "prompts": "with master_other_bytes={other}",
    "context": "with --ctx-size {ctx_size} in options",
    "parallel": "with --parallel {parallel} --ctx-size {ctx_size} in options",
    "cache_type": "with --cache-type-k {cache} --cache-type-v {cache} in options",
    "speculation": "without --spec-type in options",
    "projector": "without --mmproj in options",
    "workers": "with {more} more worker{s} of {each} available",
    "quantisation": "with a model of at most {bits:g} bits per weight instead of {bits_now:.1f}",
    "fewer_workers": "with the first {fewer} of these workers alone",
    "n_gpu_layers": "with --n-gpu-layers {n_gpu_layers} in options",
}
_INFERENCE = {
    **_TYPED,
    "tensor_split": "with inference_tensor_split=[]",
    "context": "with inference_ctx_size={ctx_size}",
    "cache_type": "with --cache-type-k {cache} --cache-type-v {cache} in inference_extra_args",
    "n_gpu_layers": "with inference_n_gpu_layers={n_gpu_layers}",
}
_SERVER = {
    **_INFERENCE,
    "prompts": "with llama_server_cache_ram={other_mib}",
    "context": "with llama_server_ctx_size={slot}",
    "parallel": "with llama_server_parallel={parallel}",
    "cache_type": "with --cache-type-k {cache} --cache-type-v {cache} in llama_server_extra_args",
    "speculation": "with llama_server_spec_type=none",
    "projector": "without llama_server_mmproj",
}
TYPED = {
    "module": _TYPED,
    "inference": _INFERENCE,
    "llama_server": _SERVER,
    # A group of pods is a leader and its workers.
    "kubernetes": {**_SERVER, "workers": "with kubernetes_size={pods}", "fewer_workers": "with kubernetes_size={pods}"},
    "size": {
        **_SERVER,
        "cache_type": "with size_cache_type={cache}",
        "workers": "with size_hosts={workers}",
        "fewer_workers": "with size_hosts={workers}",
    },
}
# A kind of change in general.
_TRIED = {
    "tensor_split": "another division",
    "prompts": "less memory for prompts",
    "context": "a shorter context",
    "parallel": "fewer slots",
    "cache_type": "a smaller cache type",
    "speculation": "no speculation",
    "projector": "no projector",
    "workers": "more workers",
    "quantisation": "a smaller quantisation",
}


def in_words(count: float) -> str:
    """Return a number of bytes in a readable unit."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1024:.0f} KiB"


def enumerated(words: Sequence[str], last: str = "and") -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


class Trial(NamedTuple):
    """A model to be loaded in another way, on another cluster, or with weights of `shrink` times the size."""

    load: Load
    cluster: Cluster
    shrink: float = 1.0


class Shrunk:
    """An asker about the same model with smaller weights, as another quantisation has them."""

    def __init__(self, asker: Asker, factor: float) -> None:
        self.asker, self.factor = asker, factor
        self.tail, self.bits, self.notes = asker.tail, asker.bits * factor, asker.notes

    def sizes(self, load: Load, devices: int, shares: Sequence[float]) -> Sizes:
        """Return the sizes with smaller weights."""
        return self.asker.sizes(load, devices, shares).shrunk(self.factor)


@dataclass(frozen=True)
class Kind:
    """A kind of change: `count` values, from the smallest change to the largest, and what makes a trial of one."""

    name: str
    count: int
    change: Callable[[Trial, int], Trial]


class Hints:
    """The changes with which a model would fit on a cluster."""

    def __init__(
        self,
        asker: Asker,
        load: Load,
        cluster: Cluster,
        sizes: Sizes,
        typed: str,
        kinds: Sequence[str] | None = None,
    ) -> None:
        self.asker, self.typed, self.bits = asker, TYPED[typed], asker.bits
        self.ends = time.monotonic() + _LIMIT_S
        self.serves, self.slots = "-np" in load.options, sizes.slots
        self.base = Trial(load.with_options("-c", sizes.context), cluster)
        options = load.options
        self.each_bytes = max(worker.memory_available_bytes for worker in cluster.workers)
        self.other_mib = math.ceil(load.other_bytes / _MIB)
        # The contexts of all slots together, without those in which a slot has none.
        self.contexts = range((sizes.context - 1) // _BLOCK * _BLOCK, max(0, self.slots - 1), -_BLOCK)
        self.caches = [kind for kind in _SMALLER_CACHES if _bits(kind, kind) < _bits(*self._types(options))]
        self.tenths_of_bits = range(math.ceil(self.bits * 10) - 1, _FEWEST_TENTHS_OF_BITS - 1, -1)
        drafts = "-md" in options or value_of(options, "--spec-type") == DRAFT_MTP
        layers = sizes.count - sizes.local - asker.tail + 1
        more = min(MAX_WORKERS - len(cluster.workers), layers - len(cluster.owners))
        self.kinds = [
            Kind("tensor_split", 1 if cluster.tensor_split else 0, self._without_split),
            Kind("prompts", self.other_mib, self._fewer_prompts),
            Kind("context", len(self.contexts), self._shorter_context),
            Kind("parallel", self.slots - 1 if self.serves else 0, self._fewer_slots),
            Kind("cache_type", 0 if value_of(options, "-fa") == "off" else len(self.caches), self._smaller_cache),
            Kind("speculation", 1 if drafts else 0, self._without(*SPECULATION)),
            Kind("projector", 1 if "-mm" in options else 0, self._without(*PROJECTOR)),
            Kind("workers", more, self._more_workers),
            Kind("quantisation", len(self.tenths_of_bits), self._smaller_weights),
        ]
        self.kinds = [kind for kind in self.kinds if kinds is None or kind.name in kinds]

    @staticmethod
    def _types(options: Sequence[str]) -> tuple[str, str]:
        return value_of(options, "-ctk", "f16"), value_of(options, "-ctv", "f16")

    def _slot(self, load: Load) -> int:
        return number_of(load.options, "-c") // number_of(load.options, "-np", self.slots)

    @staticmethod
    def _without_split(trial: Trial, _index: int) -> Trial:
        return trial._replace(cluster=replace(trial.cluster, tensor_split=()))

    def _fewer_prompts(self, trial: Trial, index: int) -> Trial:
        return trial._replace(load=replace(trial.load, other_bytes=(self.other_mib - 1 - index) * _MIB))

    def _shorter_context(self, trial: Trial, index: int) -> Trial:
        slots = number_of(trial.load.options, "-np", self.slots)
        return trial._replace(load=trial.load.with_options("-c", self.contexts[index] // self.slots * slots))

    def _fewer_slots(self, trial: Trial, index: int) -> Trial:
        slots = self.slots - 1 - index
        return trial._replace(load=trial.load.with_options("-c", slots * self._slot(trial.load), "-np", slots))

    def _smaller_cache(self, trial: Trial, index: int) -> Trial:
        kind = self.caches[index]
        return trial._replace(load=trial.load.with_options("-ctk", kind, "-ctv", kind))

    @staticmethod
    def _without(*names: str) -> Callable[[Trial, int], Trial]:
        def change(trial: Trial, _index: int) -> Trial:
            return trial._replace(load=replace(trial.load, options=without(trial.load.options, names)))

        return change

    def _more_workers(self, trial: Trial, index: int) -> Trial:
        added = tuple(Worker(f"more {number}", self.each_bytes) for number in range(index + 1))
        workers = (*self.base.cluster.workers, *added)
        return trial._replace(cluster=replace(trial.cluster, workers=workers, tensor_split=()))

    def _smaller_weights(self, trial: Trial, index: int) -> Trial:
        return trial._replace(shrink=self.tenths_of_bits[index] / 10 / self.bits)

    def fits(self, trial: Trial, *, divided: bool = False) -> bool:
        """Return whether the model fits in a trial; if `divided`, with the division that would be chosen."""
        asker = self.asker if trial.shrink == 1.0 else Shrunk(self.asker, trial.shrink)
        try:
            if not divided or trial.cluster.tensor_split:
                return could_hold(asker, trial.load, trial.cluster)
            return holds(choose(asker, trial.load, trial.cluster)[1], trial.cluster)
        except SplitError:
            return False

    def _least(self, kind: Kind, trial: Trial) -> int | None:
        """Return the smallest change of a kind with which a trial fits; None if the largest does not fit."""
        if kind.count < 1 or time.monotonic() > self.ends or not self.fits(kind.change(trial, kind.count - 1)):
            return None
        low, high = 0, kind.count - 1
        while low < high:
            middle = (low + high) // 2
            if self.fits(kind.change(trial, middle)):
                high = middle
            else:
                low = middle + 1
        # The chosen division may take a little more than equal parts let expect.
        for index in range(high, min(high + 3, kind.count)):
            if self.fits(kind.change(trial, index), divided=True):
                return index
        return None

    def _alone(self) -> Iterator[dict[str, Any]]:
        for kind in self.kinds:
            least = self._least(kind, self.base)
            if least is not None:
                yield self._said(kind.change(self.base, least), kind)

    def _pairs(self) -> Iterator[dict[str, Any]]:
        """Yield the changes of two kinds: the smallest of the second one, then the smallest of the first one."""
        for one, other in combinations([kind for kind in self.kinds if kind.count > 0], 2):
            second = self._least(other, one.change(self.base, one.count - 1))
            if second is None:
                continue
            with_second = other.change(self.base, second)
            first = self._least(one, with_second)
            if first is not None:
                yield self._said(one.change(with_second, first), one, other)

    def found(self) -> list[dict[str, Any]]:
        """Return the smallest change of each kind with which the model fits; if there is none, pairs of changes."""
        alone = list(self._alone())
        if alone and alone[0]["kind"] == "tensor_split":
            return [it for it in alone if it["kind"] != "workers"]  # which the division that is given rules out
        return alone or list(islice(self._pairs(), _PAIRS))

    @staticmethod
    def with_which_it_fits(changes: Sequence[str]) -> str:
        """Return the end of a sentence that names changes with which the model fits."""
        pairs = any(" and with " in change for change in changes)
        return f": it fits {'; or '.join(changes) if pairs else enumerated(changes, 'or')}"

    def tried(self) -> str:
        """Return the kinds of changes that were tried, as the end of a sentence."""
        return enumerated([_TRIED[kind.name] for kind in self.kinds if kind.count > 0] or ["nothing"])

    def typed_as(self, name: str, trial: Trial) -> str:
        """Return a change of a trial as its user types it."""
        load, workers = trial.load, len(trial.cluster.workers)
        more = workers - len(self.base.cluster.workers)
        return self.typed[name].format(
            other=load.other_bytes,
            other_mib=load.other_bytes // _MIB,
            ctx_size=number_of(load.options, "-c"),
            slot=self._slot(load),
            parallel=number_of(load.options, "-np", self.slots),
            cache=value_of(load.options, "-ctk", "f16"),
            workers=workers,
            pods=workers + 1,
            fewer=workers,
            more=more,
            s="" if more == 1 else "s",
            each=in_words(self.each_bytes),
            bits=round(trial.shrink * self.bits, 1),
            bits_now=self.bits,
            n_gpu_layers=number_of(load.options, "-ngl"),
        )

    def _said(self, trial: Trial, *kinds: Kind) -> dict[str, Any]:
        return {
            "kind": kinds[0].name if len(kinds) == 1 else "pair",
            "message": " and ".join(self.typed_as(kind.name, trial) for kind in kinds),
            "ctx_size": number_of(trial.load.options, "-c"),
            "parallel": number_of(trial.load.options, "-np", self.slots),
            "workers": len(trial.cluster.workers) - len(self.base.cluster.workers),
        }


def _bits(*kinds: str) -> float:
    return sum(CACHE_TYPES[kind].block_bytes / CACHE_TYPES[kind].block for kind in kinds if kind in CACHE_TYPES)
