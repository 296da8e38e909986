# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the memory that each part of a model needs.

Weights and cache come from `_gguf`, compute buffers from `compute_buffers`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Sequence

from .._gguf.architectures import ROLLBACK
from .._gguf.cache import kv_cells, row_bytes
from .._gguf.projector import projector_bytes
from .assignment import Part
from .compute_buffers import FOLLOWED, PIPELINE_COPIES, Head, device_bytes, input_bytes, margin_bytes
from .inputs import DRAFT_MTP, QUANTISED_CACHES, Load, Source, SplitError, check_load
from .layer_shape import Batch, LayerShape, layer_shape

if TYPE_CHECKING:
    from .._gguf.described import Layer, Model
    from .._gguf.header import Tensor


# llama.cpp rotates the entries of a quantised cache with a matrix of this size or, for keys, a larger one.
_ROTATION = 64


class Need(NamedTuple):
    """The memory that a host needs, in bytes."""

    weights: int
    kv: int
    compute: int
    other: int = 0  # only for the master: a draft model, a projector, and other memory of the program

    @property
    def total(self) -> int:
        """The sum of all bytes."""
        return self.weights + self.kv + self.compute + self.other

    def plus(self, more: Need) -> Need:
        """Return the sum of two needs."""
        return Need(*(one + other for one, other in zip(self, more)))


def _check_cache(load: Load, model: Model) -> None:
    """Raise SplitError for cache types that llama.cpp refuses for this model."""
    latent = any(layer.key_width and layer.value_width == 0 for layer in model.layers)
    if latent and load.cache_type_k != load.cache_type_v:
        raise SplitError(
            f"cache_type_k is {load.cache_type_k} and cache_type_v {load.cache_type_v}, which llama.cpp refuses "
            "for a model with latent attention; give both the same."
        )


def _cache_bytes(layer: Layer, load: Load, cells: int, value_width: int | None) -> int:
    """Return the bytes of a layer's cache with this number of cells."""
    if not cells or layer.key_width is None or layer.value_width is None:
        return 0
    for name, kind in (("cache_type_k", load.cache_type_k), ("cache_type_v", load.cache_type_v)):
        if layer.kv_bytes_per_token.get(kind) is None:
            raise SplitError(
                f"{name} is {kind}, whose blocks do not fit the heads of this model, which llama.cpp refuses; take f16."
            )
    keys = row_bytes(layer.key_width, layer.key_width or 1, load.cache_type_k) or 0
    values = row_bytes(value_width or 0, value_width or 1, load.cache_type_v) or 0
    return cells * (keys + values)


def _rotations(load: Load, model: Model) -> tuple[int, int]:
    """Return the sizes of the matrices that rotate keys and values of a quantised cache, or 0."""
    key, value = model.shape.key_length, model.shape.value_length
    rotated_keys = rotated_values = 0
    if load.cache_type_k in QUANTISED_CACHES and key and key % _ROTATION == 0:
        # The largest power of two times _ROTATION that divides the length of a key.
        rotated_keys = _ROTATION * ((key // _ROTATION) & -(key // _ROTATION))
    if load.cache_type_v in QUANTISED_CACHES and value and value % _ROTATION == 0:
        rotated_values = _ROTATION
    return rotated_keys, rotated_values


def _padded(tokens: int) -> int:
    return -(-tokens // 256) * 256


def _few(layers: Sequence[LayerShape]) -> tuple[LayerShape, ...]:
    """Return at most two layers of each shape: more of them reuse the same buffers."""
    kept: list[LayerShape] = []
    for layer in layers:
        if kept.count(layer) < 2:
            kept.append(layer)
    return tuple(kept)


def _predicting(of: Source) -> Source:
    """Return a model as in the context that predicts further tokens: only the layers that predict have a cache.

    Raises SplitError if it has no such layers.
    """
    layers = of.model.layers
    first = len(layers) - of.model.shape.predict_layers
    if first == len(layers):
        raise SplitError(
            f"spec_type is {DRAFT_MTP}, and the model that drafts has no layers that predict further tokens; "
            "take another model, or another type."
        )
    # The description has no cache of these layers, because the model's own context has none. It is as other layers'.
    like = max(layers, key=lambda layer: (layer.key_width or 0) + (layer.value_width or 0))
    kept = [replace(layer, cache="none", key_width=0, value_width=0, state_bytes=0) for layer in layers[:first]]
    kept += [
        replace(like, index=layer.index, bytes=layer.bytes, cache="full", state_bytes=0) for layer in layers[first:]
    ]
    return of._replace(model=replace(of.model, layers=kept))


class Planned:
    """A model as llama.cpp would load it, and the memory that each part of it needs."""

    def __init__(self, of: Source, load: Load, *, shrink: float = 1.0) -> None:
        """Prepare the model; the factor `shrink` makes its weights smaller, as another quantisation would."""
        check_load(load)
        self.of, self.load, self.shrink = of, load, shrink
        self.model = model = of.model
        context = load.ctx_size or model.shape.context_length
        if not context:
            raise SplitError("The model does not say its context length; give ctx_size.")
        self.context = context
        # src/llama-context.cpp: without a unified cache, each sequence has its own cache (a stream) of the same size.
        self.sequences = max(1, load.parallel)
        self.streams = 1 if load.kv_unified else self.sequences
        self.cells = _padded(_padded(context) // self.streams)
        self.tokens = min(_padded(context), load.batch_size, load.ubatch_size)
        # The graph that llama.cpp reserves has the same number of tokens for each sequence.
        self.tokens = -(-self.tokens // self.sequences) * self.sequences
        self.outputs = min(self.tokens, load.parallel * load.outputs_per_slot) if load.parallel else self.tokens
        self.flash_attention = load.flash_attn != "off" and model.architecture != "grok"
        self.kv_known = model.cache.known
        self.compute_known = model.architecture in FOLLOWED and not model.shape.predict_layers
        self.vocabulary = model.shape.vocabulary or 0
        self.width = model.shape.embedding_length or 0
        self.count = len(model.layers)
        self.local = self.count + 1 - min(load.n_gpu_layers, self.count + 1)
        weights = model.weights
        self.output_weights = round(
            (weights.output_bytes or 0) * shrink
            + ((weights.embedding_bytes or 0) * shrink if weights.tied_embeddings else 0)
        )
        self.weight_sums = [0, *accumulate(round((layer.bytes or 0) * shrink) for layer in model.layers)]
        # src/llama-kv-cache.cpp pads values of different widths if it keeps them transposed.
        self.widest = max((layer.value_width or 0 for layer in model.layers), default=0)
        # src/llama-memory-recurrent.cpp keeps the states before each token that may turn out to be drafted wrongly.
        rolls_back = load.spec_type == DRAFT_MTP and model.architecture in ROLLBACK
        self.states = self.sequences * (load.outputs_per_slot if rolls_back else 1)
        self.kv_sums = [0, *accumulate(self._kv())]
        self.shapes = self._shapes()
        self._known: dict[tuple[object, ...], int] = {}
        # What drafts: a model on the master, or layers that predict (of the model, or in a file) on the last worker.
        self.draft: Planned | None = None
        self.head: Planned | None = None
        # How many of the last layers stay with the output. Some heads use the caches of two (src/llama-model.cpp).
        self.tail = 2 if of.draft and of.draft.model.architecture == "gemma4-assistant" else 1
        # common/speculative.cpp: it has the model's context, an F16 cache and one output for each slot.
        small = Load(context, load.batch_size, load.ubatch_size, parallel=load.parallel, kv_unified=load.kv_unified)
        if load.spec_type == DRAFT_MTP:
            self.head = Planned(_predicting(of.draft or of), small)
        elif of.draft:
            self.draft = Planned(of.draft, small)
        self.projector = 0
        if of.projector:
            slot = context // self.streams
            self.projector = projector_bytes(of.projector, slot, flash_attention=load.flash_attn != "off")

    def _own_cells(self, layer: Layer) -> int:
        window = self.model.cache.window_tokens
        in_stream = self.sequences // self.streams
        return kv_cells(layer, self.cells, window * in_stream if window else window, self.tokens)

    def _kv(self) -> list[int]:
        _check_cache(self.load, self.model)
        return [
            (layer.state_bytes or 0) * self.states
            + _cache_bytes(
                layer,
                self.load,
                self._own_cells(layer) * self.streams,
                layer.value_width if self.flash_attention or not layer.value_width else self.widest,
            )
            for layer in self.model.layers
        ]

    def _shapes(self) -> list[LayerShape]:
        def cells(layer: Layer, found: dict[str, Tensor]) -> int:
            # A layer with attention but without its own cache uses another layer's cache.
            return self._own_cells(layer) or (self.cells if "attn_q" in found and not self.compute_known else 0)

        return [
            layer_shape(
                found,
                width=self.width,
                heads=layer.heads or 0,
                cells=cells(layer, found),
                window=layer.cache == "window",
                experts_used=self.model.shape.experts_used,
            )
            for layer, found in zip(self.model.layers, self.of.layers)
        ]

    def batch(self, devices: int) -> Batch:
        """Return the batch that llama.cpp computes at a time with this number of workers."""
        rotated_keys, rotated_values = _rotations(self.load, self.model)
        return Batch(
            tokens=self.tokens,
            outputs=self.outputs,
            flash_attention=self.flash_attention,
            # src/llama-context.cpp: workers compute prompt batches in parallel if all layers are on workers.
            copies=PIPELINE_COPIES if devices > 1 and not self.local else 1,
            local_layers=self.local > 0,
            rotated_keys=rotated_keys,
            rotated_values=rotated_values,
            value_rows=self.widest,
        )

    def need(self, part: Part, devices: int) -> Need:
        """Return the need of a worker with this part, if there are `devices` workers."""
        if part.end == part.first:
            return Need(0, 0, 0)
        end = min(part.end, self.count)
        weights = self.weight_sums[end] - self.weight_sums[part.first]
        if part.end > self.count:
            weights += self.output_weights
        if end > part.first:
            weights += self.model.weights.shared_bytes or 0
        own = Need(weights, self.kv_sums[end] - self.kv_sums[part.first], self._compute(part, devices))
        return own.plus(self._of_head(self.head, devices)) if self.head and part.end > self.count else own

    def _of_head(self, head: Planned, devices: int) -> Need:
        """Return the need of the layers that predict, without weights that the model has anyway."""
        if self.of.draft:
            return head.need(Part(0, head.count + 1), 1)
        first = head.count - head.model.shape.predict_layers
        return head.need(Part(first, head.count + 1), devices)._replace(weights=0)

    def _compute(self, part: Part, devices: int) -> int:
        known = (part, devices > 1)
        if known not in self._known:
            end = min(part.end, self.count)
            self._known[known] = self._buffer(
                _few(self.shapes[part.first : end]),
                devices,
                first=part.first == self.local,
                last=end == self.count and end > part.first,
                output=part.end > self.count,
            )
        return self._known[known]

    def _buffer(
        self, layers: tuple[LayerShape, ...], devices: int, *, first: bool, last: bool = False, output: bool = False
    ) -> int:
        known = (layers, devices > 1, first, last, output)
        if known not in self._known:
            batch = self.batch(devices)
            self._known[known] = device_bytes(
                self.model.architecture or "",
                layers,
                batch,
                first=first,
                last=last,
                head=Head(self.width, self.vocabulary) if output else None,
                before=self.shapes[-1] if first and not layers else None,
            ) + (0 if self.compute_known else margin_bytes(self.shapes, batch, self.width) + self._moved_states())
        return self._known[known]

    def _moved_states(self) -> int:
        """Return the bytes that a recurrent layer reads and writes of its states."""
        state = max((layer.state_bytes or 0 for layer in self.model.layers), default=0)
        return state * (self.sequences + self.states)

    def master(self, devices: int) -> Need:
        """Return the need of the master: the input, its own layers, the buffers of both, and other memory."""
        weights = round((self.model.weights.input_bytes or 0) * self.shrink) + self.weight_sums[self.local]
        compute = input_bytes(self.shapes, self.batch(devices), self.width) + self._logits()
        if self.local:
            weights += self.model.weights.shared_bytes or 0
            compute += self._buffer(_few(self.shapes[: self.local]), devices, first=True)
        other = self.load.master_other_bytes + (self.draft.alone() if self.draft else 0) + self.projector
        own = Need(weights, self.kv_sums[self.local], compute, other)
        return own.plus(self._master_of_head(self.head, devices)) if self.head else own

    def _master_of_head(self, head: Planned, devices: int) -> Need:
        """Return the need of the master for the layers that predict, and for what the model's last layer gives them."""
        devices = 1 if self.of.draft else devices
        hidden = 4 * self.width * (self.load.batch_size + head.tokens * (1 + head.batch(devices).copies))
        need = head.master(devices)
        return Need(need.weights if self.of.draft else 0, need.kv, need.compute + hidden)

    def _logits(self) -> int:
        """Return the bytes of llama.cpp's output buffer: for each output, a number for each token of the vocabulary."""
        return 4 * self.vocabulary * (self.outputs if self.load.parallel else 1)

    def alone(self) -> int:
        """Return the bytes that the model takes in the memory of the program, without workers."""
        compute = self._buffer(_few(self.shapes), 1, first=True, last=True, output=True) + self._logits()
        return (self.model.weights.bytes or 0) + self.kv_sums[-1] + compute
