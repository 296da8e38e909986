# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: what a model takes, as an estimate from its header, where no release can be asked.

It has the weights by layer, and a cache of all tokens for each layer with attention. It has no compute buffers, no
states of recurrent layers, and no windows. docs/explanation/planning.md says how far it was off.
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Sequence

from .._gguf.ggml_types import CACHE_TYPES
from .._gguf.header import Header, Value, read_header
from .._gguf.model import describe
from .assignment import parts_of
from .inputs import Load, SplitError
from .options import number_of, value_of
from .sizes import Need, Sizes

_MANY = 999  # layers


def _number(value: Value | None) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


class NoEstimateError(SplitError):
    """The load may be right, and only a release can say what it takes."""


class ByHeader:
    """The estimate for a model."""

    def __init__(self, headers: Sequence[Header], *, tail: int, why: str) -> None:
        self.model = model = describe(headers)
        self.tail = tail
        notes = " ".join(model.notes)
        if not model.layers:
            raise SplitError(f"The model has no layers that could be divided. {notes}".rstrip())
        if model.weights.bytes is None or any(layer.bytes is None for layer in model.layers):
            raise SplitError(f"The bytes of the model's weights are not known. {notes}".rstrip())
        self.bits = 8 * model.weights.bytes / max(1, model.parameters)
        self.notes = [
            *model.notes,
            f"These figures are an estimate from the model's header, without compute buffers, because {why}.",
        ]
        self.widths = self._widths(headers[0])

    def _widths(self, header: Header) -> list[tuple[int, int]]:
        """Return how many numbers of keys and values each layer keeps for a token."""

        def number(name: str) -> int:
            return _number(header.metadata.get(f"{self.model.architecture}.attention.{name}"))

        shape = self.model.shape
        each = (shape.embedding_length or 0) // (self.model.layers[0].heads or 1)
        key, value = number("key_length") or each, number("value_length") or each
        if number("key_length_mla"):
            value = 0  # latent attention keeps keys alone
        return [((layer.kv_heads or 0) * key, (layer.kv_heads or 0) * value) for layer in self.model.layers]

    def _other(self, load: Load) -> int:
        """Return the bytes of the weights of further files, which are all taken as the master's."""
        files = [value_of(load.options, name) for name in ("-md", "-mm")]
        files += value_of(load.options, "--lora").split(",")
        headers = [read_header(Path(path)) for path in files if path]
        return load.other_bytes + sum(tensor.bytes or 0 for header in headers for tensor in header.tensors)

    def sizes(self, load: Load, _devices: int, shares: Sequence[float]) -> Sizes:
        """Return the estimate; raises SplitError for a load that it cannot estimate."""
        weights, options = self.model.weights, load.options
        if load.spread:
            raise NoEstimateError("Without a release that can be asked, only split mode layer is estimated.")
        context = number_of(options, "-c") or self.model.shape.context_length or 0
        if not context:
            raise SplitError("The model does not say its context length; give ctx_size.")
        kinds = [value_of(options, name, "f16") for name in ("-ctk", "-ctv")]
        slots = number_of(options, "-np", 1)
        if not slots:
            raise SplitError("--parallel is 0; give a number from 1.")
        if not CACHE_TYPES.keys() >= set(kinds):
            raise SplitError(f"A cache cannot be of {' and '.join(kinds)}; give one of {', '.join(CACHE_TYPES)}.")
        bits = [8 * CACHE_TYPES[kind].block_bytes / CACHE_TYPES[kind].block for kind in kinds]
        layers = [
            Need(layer.bytes or 0, round(context * (keys * bits[0] + values * bits[1]) / 8))
            for layer, (keys, values) in zip(self.model.layers, self.widths)
        ]
        output = (weights.output_bytes or 0) + (weights.embedding_bytes or 0 if weights.tied_embeddings else 0)
        layers.append(Need(output))
        count = len(self.model.layers)
        offloaded = number_of(options, "-ngl", _MANY)
        parts = parts_of(count, offloaded, shares)
        local = count + 1 - min(offloaded, count + 1)
        sums = list(accumulate(layers, Need.plus, initial=Need()))
        own = sums[local]
        return Sizes(
            context=context,
            slots=slots,
            layers=tuple(layers),
            local=local,
            parts=tuple(parts),
            held=tuple(sums[part.end].less(sums[part.first]) for part in parts),
            master=own._replace(weights=own.weights + (weights.input_bytes or 0), other=self._other(load)),
            exact=False,
        )
