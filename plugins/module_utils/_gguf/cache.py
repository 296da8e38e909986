# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the memory that a model's layers need for the context.

Sizes are those of src/llama-model.cpp (create_memory), src/llama-hparams.cpp, src/llama-kv-cache*.cpp and
src/llama-memory-recurrent.cpp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .architectures import (
    CACHELESS,
    FOLLOWED,
    HYBRID_BOTH,
    HYBRID_BY_HEADS,
    HYBRID_BY_INTERVAL,
    OF_ITS_OWN,
    RECURRENT,
    WINDOWS,
)
from .described import Cache, Layer
from .ggml_types import CACHE_TYPES, TABLES_OF
from .numbers import Numbers, total

if TYPE_CHECKING:
    from collections.abc import Sequence


def _padded(tokens: int) -> int:
    return -(-tokens // 256) * 256


def kv_cells(layer: Layer, context: int, window: int | None, ubatch: int = 512) -> int:
    """Return how many tokens of one sequence a layer's cache can hold (src/llama-kv-cache-iswa.cpp)."""
    context = _padded(context)
    if layer.cache in ("full", "both"):
        return context
    if layer.cache == "window" and window is not None:
        return _padded(min(context, window + ubatch))
    return 0


def row_bytes(elements: int, head: int, cache_type: str) -> int | None:
    """Return the bytes of one token's keys or values; None if the type's block does not divide the head size."""
    kind = CACHE_TYPES[cache_type]
    return None if head % kind.block else elements // kind.block * kind.block_bytes


class Heads(NamedTuple):
    """The sizes of an attention head: keys and values of ordinary layers and of layers with a window."""

    key: int | None
    value: int | None
    key_window: int | None
    value_window: int | None
    latent: bool  # multi-head latent attention: only keys are kept


def all_heads_of(reader: Numbers, layers: int | None) -> tuple[int | None, ...]:
    return reader.each("attention.head_count", layers, 0 if reader.architecture in RECURRENT else None)


def kv_heads_of(reader: Numbers, layers: int | None, heads: tuple[int | None, ...]) -> tuple[int | None, ...]:
    return reader.each("attention.head_count_kv", layers) if reader.has("attention.head_count_kv") else heads


def read_heads(reader: Numbers, embedding: int | None, heads: int | None) -> Heads:
    if heads == 0:
        return Heads(0, 0, 0, 0, latent=False)
    derived = embedding // heads if embedding is not None and heads else None
    key, value = reader.number("attention.key_length", derived), reader.number("attention.value_length", derived)
    return Heads(
        key,
        value,
        reader.number("attention.key_length_swa", key),
        reader.number("attention.value_length_swa", value),
        bool(reader.number("attention.key_length_mla") and reader.number("attention.value_length_mla")),
    )


def window_size(reader: Numbers, layers: int) -> int:
    """Return the size of the sliding window in tokens; 0 if there is none."""
    rule = WINDOWS.get(reader.architecture)
    if rule is None or (reader.architecture == "exaone4" and layers != 64):
        return 0
    size = reader.number("attention.sliding_window", rule.default) or 0
    return rule.fixed or size if size else 0


def _windowed(reader: Numbers, layers: int) -> tuple[bool, ...] | None:
    """Return which layers have the sliding window; None if the file must say it and does not."""
    rule = WINDOWS[reader.architecture]
    flags = reader.flags("attention.sliding_window_pattern", layers)
    if flags is not None:
        return flags
    if rule.period is None:
        return None
    period = reader.number("attention.sliding_window_pattern", rule.period) or 0
    dense = 0 if rule.dense_first else period - 1
    return tuple(period == 0 or index % period != dense for index in range(layers))


def _recurrent(
    reader: Numbers, layers: int, kv_heads: Sequence[int | None], feed_forward: Sequence[int | None]
) -> tuple[bool, ...]:
    """Return which layers are recurrent."""
    architecture = reader.architecture
    if architecture in HYBRID_BY_HEADS:
        # In Nemotron-H, layers with a feed-forward network are neither recurrent nor attention layers.
        neither = architecture.startswith("nemotron_h")
        return tuple(heads == 0 and not (neither and ff) for heads, ff in zip(kv_heads, feed_forward))
    if architecture in HYBRID_BY_INTERVAL:
        flags = reader.flags("attention.recurrent_layers", layers)
        interval = reader.number("full_attention_interval", 4) or 4
        return flags or tuple((index + 1) % interval != 0 for index in range(layers))
    return (architecture in RECURRENT or architecture in HYBRID_BOTH,) * layers


def _kept_layers(reader: Numbers, layers: int) -> int:
    """Return how many of the first layers have their own keys and values; later layers use those of others."""
    if reader.architecture == "gemma3n":
        return 20
    if reader.architecture == "gemma4":
        return layers - (reader.number("attention.shared_kv_layers", 0) or 0)
    return layers


def cache_kinds(
    reader: Numbers, layers: int, kv_heads: Sequence[int | None], feed_forward: Sequence[int | None]
) -> list[str] | None:
    """Return the kind of cache of each layer; None, with a note, if it is not known."""
    architecture = reader.architecture
    if architecture in CACHELESS:
        return ["none"] * layers
    if window_size(reader, layers):
        windowed = _windowed(reader, layers)
        if windowed is None:
            reader.note(f"{architecture}.attention.sliding_window_pattern is missing, so the cache is not known.")
            return None
    else:
        windowed = (False,) * layers
    recurrent = _recurrent(reader, layers, kv_heads, feed_forward)
    kept = _kept_layers(reader, layers)
    kinds = []
    for index in range(layers):
        attends = index < kept and kv_heads[index] != 0
        if architecture.startswith("nemotron_h"):
            attends = attends and not feed_forward[index]
        if architecture in HYBRID_BOTH:
            kinds.append("both")
        elif recurrent[index]:
            kinds.append("recurrent")
        elif not attends:
            kinds.append("none")
        else:
            kinds.append("window" if windowed[index] else "full")
    return kinds


def state_bytes(reader: Numbers, embedding: int | None, heads: int | None) -> int | None:
    """Return the bytes of a recurrent layer's state per sequence: src/llama-hparams.cpp (n_embd_r, n_embd_s), F32."""

    def get(name: str, default: int = 0) -> int:
        return reader.number(name, default) or 0

    if embedding is None:
        return None
    conv = get("ssm.conv_kernel")
    state = get("ssm.state_size") * get("ssm.inner_size")
    if get("wkv.head_size"):
        elements = get("token_shift_count", 2) * embedding + embedding * get("wkv.head_size")
    elif get("shortconv.l_cache"):
        elements = embedding * (get("shortconv.l_cache") - 1) + state
    elif get("kda.head_dim"):
        if heads is None:
            return None
        inner = heads * get("kda.head_dim")
        elements = 3 * (conv - 1 if conv else 3) * inner + get("kda.head_dim") * inner
    else:
        columns = get("ssm.inner_size") + 2 * get("ssm.group_count") * get("ssm.state_size")
        elements = max(conv - 1, 0) * columns + state
    return 4 * elements


def widths(kind: str, kv_heads: int | None, heads: Heads) -> tuple[int | None, int | None, int | None, int | None]:
    """Return the widths of a layer's keys and values in the cache, and their head sizes, in elements."""
    if kind in ("none", "recurrent"):
        return 0, 0, 0, 0
    key, value = (heads.key_window, heads.value_window) if kind == "window" else (heads.key, heads.value)
    if heads.latent:
        value = 0
    if kv_heads is None or key is None or value is None:
        return None, None, None, None
    return key * kv_heads, value * kv_heads, key, value


def kv_bytes(
    keys: int | None, values: int | None, key_head: int | None, value_head: int | None
) -> dict[str, int | None]:
    if keys is None or values is None or key_head is None or value_head is None:
        return dict.fromkeys(CACHE_TYPES)
    return {name: total((row_bytes(keys, key_head, name), row_bytes(values, value_head, name))) for name in CACHE_TYPES}


def followed(reader: Numbers) -> bool:
    """Return whether this code follows llama.cpp's cache for the architecture; if not, note why."""
    architecture = reader.architecture
    # llama.cpp runs and caches each layer num_loops times.
    looped = architecture == "nanbeige" and (reader.number("num_loops", 1) or 1) > 1
    if looped:
        reader.note("llama.cpp runs the layers of this nanbeige model in loops, so the size of its cache is not known.")
    if architecture in OF_ITS_OWN:
        reader.note(
            f"llama.cpp gives the architecture {architecture} a cache of its own kind, so its size is not known."
        )
    elif architecture == "clip":
        reader.note("This is the vision or audio part of a model: it has no layers and no cache of its own.")
    elif architecture not in FOLLOWED:
        reader.note(
            f"llama.cpp {TABLES_OF} has no architecture {architecture!r}, so the size of its cache is not known."
        )
    return architecture in FOLLOWED and not looped


def _totals(layers: Sequence[Layer], kinds: tuple[str, ...]) -> dict[str, int | None]:
    chosen = [layer for layer in layers if layer.cache in kinds]
    return {name: total(layer.kv_bytes_per_token[name] for layer in chosen) for name in CACHE_TYPES}


def cache_of(layers: Sequence[Layer], *, known: bool, window: int) -> Cache:
    nothing: dict[str, int | None] = dict.fromkeys(CACHE_TYPES)
    complete = known and all(None not in (layer.cache, layer.key_width, layer.value_width) for layer in layers)
    has_window = any(layer.cache == "window" for layer in layers)
    return Cache(
        known=complete and all(layer.state_bytes is not None for layer in layers),
        bytes_per_token=_totals(layers, ("full", "both")) if complete else nothing,
        window_tokens=window if has_window else None,
        window_bytes_per_token=_totals(layers, ("window",)) if complete else nothing,
        state_bytes=total(layer.state_bytes for layer in layers) if complete else None,
    )
