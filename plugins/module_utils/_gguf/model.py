# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Private: what the headers of a model mean to llama.cpp: shape, weights by layer, and what its cache takes.

`describe` never fails. What a header does not say, or what llama.cpp does in a way of its own that is not followed
here, is None, and `notes` says so in a sentence. Sizes are those of src/llama-model.cpp (load_hparams, create_memory),
src/llama-hparams.cpp, src/llama-kv-cache*.cpp and src/llama-memory-recurrent.cpp.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.ggml_types import (
    CACHE_TYPES,
    FILE_TYPES,
    GUESSED,
    GUESSED_FILE_TYPES,
    GUESSED_PREFIX,
    TABLES_OF,
    UNKNOWN_FILE_TYPE,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import CUT, MAX_LAYERS, Header, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import Value

# src/llama-arch.cpp (LLM_ARCH_NAMES), but for those below that have a cache of their own kind.
_PLAIN = frozenset(
    """
    afmoe apertus arcee arctic baichuan bailingmoe bailingmoe2 bitnet bloom chameleon chatglm codeshell cogvlm cohere2
    cohere2moe command-r dbrx deci deepseek deepseek2 deepseek2-ocr dots1 ernie4_5 ernie4_5-moe exaone exaone-moe
    exaone4 falcon gemma gemma2 gemma3 gemma3n gemma4 glm4 glm4moe gpt-oss gpt2 gptj gptneox granite granite_swa
    granitemoe grok grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2 jais jais2 laguna llama
    llama-embed llama4 maincoder maple mellum mimo2 minicpm minicpm3 minimax-m2 mistral3 mistral4 mpt muse-glimmer
    nanbeige nemotron olmo olmo2 olmoe openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plamo3 plm qwen
    qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe refact seed_oss smallthinker smollm3 spark2_5 stablelm
    starcoder starcoder2 step35 t5 t5encoder talkie xverse
    """.split()
)
# llama_model::create_memory: no cache at all.
_CACHELESS = frozenset(
    """
    bert dream eurobert gemma-embedding jina-bert-v2 jina-bert-v3 llada llada-moe modern-bert neo-bert nomic-bert
    nomic-bert-moe rnd1 wavtokenizer-dec
    """.split()
)
# Models that give embeddings, or take in what is no text.
_WITHOUT_OUTPUT = frozenset(
    """
    bert clip eurobert gemma-embedding jina-bert-v2 jina-bert-v3 modern-bert neo-bert nomic-bert nomic-bert-moe
    t5encoder wavtokenizer-dec
    """.split()
)
# llm_arch_is_recurrent
_RECURRENT = frozenset("arwkv7 mamba mamba2 rwkv6 rwkv6qwen2 rwkv7".split())
# llm_arch_is_hybrid, by how a layer is known to be recurrent: it has no heads for keys and values, it is not the last
# of so many (full_attention_interval), or all layers are both.
_HYBRID_BY_HEADS = frozenset(
    "granitehybrid jamba kimi-linear lfm2 lfm2moe nemotron_h nemotron_h_moe plamo2".split(),
)
_HYBRID_BY_INTERVAL = frozenset("qwen35 qwen35moe qwen3next".split())
_HYBRID_BOTH = frozenset(["falcon-h1"])
# Known to upstream, with caches of kinds that are not followed here (indexers, compression, drafts of other models).
_OF_ITS_OWN = frozenset(
    """
    bailingmoe3 deepseek32 deepseek4 dflash dots3note eagle3 gemma4-assistant glm-dsa glm5-next graniteswitch hy_v4
    kimi-k3 minimax-01 minimax-m3 pockettts qwen3tts qwen4exp
    """.split()
)
_FOLLOWED = _PLAIN | _CACHELESS | _RECURRENT | _HYBRID_BY_HEADS | _HYBRID_BY_INTERVAL | _HYBRID_BOTH


class _Window(NamedTuple):
    """How an architecture's sliding window goes (src/models/*.cpp): all layers of a period have it but one.

    A period of None stands for one that the file must give, layer by layer; 0 for all layers.
    """

    period: int | None
    dense_first: bool = False
    default: int = 0  # the window's size if the file gives none
    fixed: int = 0  # its size whatever the file gives, unless that is 0


# Others may have the key attention.sliding_window, and upstream takes no notice.
_WINDOWS = {
    "afmoe": _Window(4),
    "cohere2": _Window(4),
    "cohere2moe": _Window(4, dense_first=True),
    "exaone-moe": _Window(4, default=128),
    "exaone4": _Window(4, default=4096),
    "gemma2": _Window(2, default=4096),
    "gemma3": _Window(6),
    "gemma3n": _Window(5),
    "gemma4": _Window(None),
    "gpt-oss": _Window(2),
    "granite_swa": _Window(None),
    "laguna": _Window(4, dense_first=True),
    "lfm2": _Window(0),
    "llama4": _Window(4, default=8192, fixed=8192),
    "maple": _Window(None),
    "mellum": _Window(4),
    "mimo2": _Window(None),
    "muse-glimmer": _Window(4),
    "olmo2": _Window(4),
    "plamo3": _Window(8),
    "smallthinker": _Window(4, dense_first=True, fixed=4096),
    "spark2_5": _Window(None),
    "step35": _Window(None),
}

# The layer of a tensor; models that first encode have two of each number, which go to the same place.
_LAYER = re.compile(r"^(?:enc\.|dec\.)?blk\.(\d{1,3})\.")
# src/llama-arch.cpp (LLM_TENSOR_INFOS): outside of the layers, these go with the input, which stays in the master's
# memory, and these with layers, to each device; all others go with the output.
_INPUT = frozenset("token_embd position_embd token_types per_layer_token_embd".split())
_SHARED = frozenset(
    """
    per_layer_model_proj per_layer_proj_norm rope_factors_long rope_factors_short rope_freqs token_embd_norm
    """.split()
)
# But the output's norm has that name there.
_NORM_IS_OUTPUT = frozenset(["lfm2", "lfm2moe"])

UINT32_MAX = (1 << 32) - 1


@dataclass(frozen=True)
class Layer:
    """One repeating layer (`blk.N.`).

    `cache` is what it keeps of the context: `full`, `window` (the last tokens only), `recurrent` (a state of fixed
    size), `both` (full and a state), `none`, or None if that is not known. Widths are elements per token.
    """

    index: int
    tensors: int
    bytes: int | None
    heads: int | None = None
    kv_heads: int | None = None
    feed_forward_length: int | None = None
    cache: str | None = None
    key_width: int | None = None
    value_width: int | None = None
    kv_bytes_per_token: dict[str, int | None] = field(default_factory=dict)
    state_bytes: int | None = None


@dataclass(frozen=True)
class Shape:
    """The model's numbers, None where the file does not say or where layers differ."""

    layers: int | None = None
    predict_layers: int = 0
    embedding_length: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    key_length: int | None = None
    value_length: int | None = None
    feed_forward_length: int | None = None
    experts: int = 0
    experts_used: int = 0
    expert_feed_forward_length: int | None = None
    context_length: int | None = None
    vocabulary: int | None = None


@dataclass(frozen=True)
class TypeShare:
    """What a type of numbers has of the weights."""

    type: str
    tensors: int
    parameters: int
    bytes: int | None


@dataclass(frozen=True)
class Weights:
    """Where the bytes of the weights are.

    Those of layers, input, output and shared make up `bytes`; shared ones are small and go to each device that has
    layers. With `tied_embeddings` the output is made with the embedding, of `embedding_bytes`, of which llama.cpp keeps
    a second copy where the output is.
    """

    bytes: int | None
    layers_bytes: int | None
    input_bytes: int | None
    output_bytes: int | None
    shared_bytes: int | None
    embedding_bytes: int | None
    tied_embeddings: bool
    types: list[TypeShare]


@dataclass(frozen=True)
class Cache:
    """What the context takes, by cache type, all layers together; None if it is not known.

    A type whose blocks do not fit the heads is None as well: llama.cpp refuses it.
    """

    known: bool
    bytes_per_token: dict[str, int | None]
    # Of the layers with a window: for each of at most this many tokens and those of a batch.
    window_tokens: int | None
    window_bytes_per_token: dict[str, int | None]
    # Of recurrent layers, for each sequence.
    state_bytes: int | None


@dataclass(frozen=True)
class Model:
    """What there is to know about a model before it is loaded."""

    architecture: str | None
    name: str | None
    file_type: str
    parameters: int
    shape: Shape
    weights: Weights
    cache: Cache
    layers: list[Layer]
    notes: list[str]


def _padded(tokens: int) -> int:
    return -(-tokens // 256) * 256


def kv_cells(layer: Layer, context: int, window: int | None, ubatch: int = 512) -> int:
    """Return for how many tokens of one sequence a layer's cache has room (src/llama-kv-cache-iswa.cpp)."""
    context = _padded(context)
    if layer.cache in ("full", "both"):
        return context
    if layer.cache == "window" and window is not None:
        return _padded(min(context, window + ubatch))
    return 0


def row_bytes(elements: int, head: int, cache_type: str) -> int | None:
    """Return what a token's keys or values take; None if the type's blocks do not divide a head's."""
    kind = CACHE_TYPES[cache_type]
    return None if head % kind.block else elements // kind.block * kind.block_bytes


class _Reader:
    """Reads the numbers of one architecture, and collects what is wrong with them."""

    def __init__(self, header: Header, architecture: str) -> None:
        self.header = header
        self.architecture = architecture
        self.notes: list[str] = []

    def has(self, name: str) -> bool:
        key = f"{self.architecture}.{name}"
        return key in self.header.metadata or key in self.header.lengths

    def note(self, sentence: str) -> None:
        # The architecture's name, and a value, can be anything.
        sentence = sentence if len(sentence) <= 400 else f"{sentence[:400]}{CUT}."
        if sentence not in self.notes:
            self.notes.append(sentence)

    def number(self, name: str, default: int | None = None) -> int | None:
        """Return a number that cannot be negative."""
        key = f"{self.architecture}.{name}"
        value = self.header.metadata.get(key)
        if key in self.header.lengths:
            self.note(f"{key} is an array, and llama.cpp wants one number.")
            return None
        if value is None:
            return default
        found = _natural(value)
        if found is None:
            self.note(f"{key} is {value!r}, which llama.cpp cannot use.")
        return found

    def each(self, name: str, layers: int | None, default: int | None = None) -> tuple[int | None, ...]:
        """Return a number for each layer; it is given once for all of them or in an array."""
        key = f"{self.architecture}.{name}"
        if key not in self.header.lengths:
            return (self.number(name, default),) * (layers or 1)
        if layers is None:
            return (None,)
        values = tuple(_natural(value) for value in self.header.arrays.get(key, ()))
        if len(values) == layers and None not in values:
            return values
        self.note(f"{key} has {self.header.lengths[key]} values that are not one number for each of {layers} layers.")
        return (None,) * layers

    def flags(self, name: str, layers: int) -> tuple[bool, ...] | None:
        """Return whether each layer is meant, if the file says so layer by layer; those it does not name are not."""
        values = self.header.arrays.get(f"{self.architecture}.{name}")
        return None if values is None else tuple(map(bool, (*values, *(0,) * layers)[:layers]))


def _natural(value: Value) -> int | None:
    """Return a number that upstream can hold in 32 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= UINT32_MAX:
        return None
    return value


def _same(values: Iterable[int | None]) -> int | None:
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


class _Heads(NamedTuple):
    """Sizes of an attention head: keys and values of ordinary layers and of those with a window."""

    key: int | None
    value: int | None
    key_window: int | None
    value_window: int | None
    latent: bool  # multi-head latent attention: only keys are kept


def _all_heads(reader: _Reader, layers: int | None) -> tuple[int | None, ...]:
    return reader.each("attention.head_count", layers, 0 if reader.architecture in _RECURRENT else None)


def _kv_heads(reader: _Reader, layers: int | None, heads: tuple[int | None, ...]) -> tuple[int | None, ...]:
    return reader.each("attention.head_count_kv", layers) if reader.has("attention.head_count_kv") else heads


def _read_heads(reader: _Reader, embedding: int | None, heads: int | None) -> _Heads:
    if heads == 0:
        return _Heads(0, 0, 0, 0, latent=False)
    derived = embedding // heads if embedding is not None and heads else None
    key, value = reader.number("attention.key_length", derived), reader.number("attention.value_length", derived)
    return _Heads(
        key,
        value,
        reader.number("attention.key_length_swa", key),
        reader.number("attention.value_length_swa", value),
        bool(reader.number("attention.key_length_mla") and reader.number("attention.value_length_mla")),
    )


def _window_size(reader: _Reader, layers: int) -> int:
    """Return how many tokens a sliding window has; 0 if there is none."""
    rule = _WINDOWS.get(reader.architecture)
    if rule is None or (reader.architecture == "exaone4" and layers != 64):
        return 0
    size = reader.number("attention.sliding_window", rule.default) or 0
    return rule.fixed or size if size else 0


def _windowed(reader: _Reader, layers: int) -> tuple[bool, ...] | None:
    """Return which layers have the sliding window; None if the file had to say so and does not."""
    rule = _WINDOWS[reader.architecture]
    flags = reader.flags("attention.sliding_window_pattern", layers)
    if flags is not None:
        return flags
    if rule.period is None:
        return None
    period = reader.number("attention.sliding_window_pattern", rule.period) or 0
    dense = 0 if rule.dense_first else period - 1
    return tuple(period == 0 or index % period != dense for index in range(layers))


def _recurrent(
    reader: _Reader, layers: int, kv_heads: Sequence[int | None], feed_forward: Sequence[int | None]
) -> tuple[bool, ...]:
    """Return which layers are recurrent."""
    architecture = reader.architecture
    if architecture in _HYBRID_BY_HEADS:
        # Nemotron-H has layers that are neither: those with a feed-forward network.
        neither = architecture.startswith("nemotron_h")
        return tuple(heads == 0 and not (neither and ff) for heads, ff in zip(kv_heads, feed_forward))
    if architecture in _HYBRID_BY_INTERVAL:
        flags = reader.flags("attention.recurrent_layers", layers)
        interval = reader.number("full_attention_interval", 4) or 4
        return flags or tuple((index + 1) % interval != 0 for index in range(layers))
    return (architecture in _RECURRENT or architecture in _HYBRID_BOTH,) * layers


def _kept_layers(reader: _Reader, layers: int) -> int:
    """Return how many layers, from the first, have keys and values of their own; later ones use those of others."""
    if reader.architecture == "gemma3n":
        return 20
    if reader.architecture == "gemma4":
        return layers - (reader.number("attention.shared_kv_layers", 0) or 0)
    return layers


def _cache_kinds(
    reader: _Reader, layers: int, kv_heads: Sequence[int | None], feed_forward: Sequence[int | None]
) -> list[str] | None:
    """Return what each layer keeps; None, with a note, if that is not known."""
    architecture = reader.architecture
    if architecture in _CACHELESS:
        return ["none"] * layers
    if _window_size(reader, layers):
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
        if architecture in _HYBRID_BOTH:
            kinds.append("both")
        elif recurrent[index]:
            kinds.append("recurrent")
        elif not attends:
            kinds.append("none")
        else:
            kinds.append("window" if windowed[index] else "full")
    return kinds


def _state_bytes(reader: _Reader, embedding: int | None, heads: int | None) -> int | None:
    """Return a recurrent layer's state for a sequence: n_embd_r and n_embd_s of src/llama-hparams.cpp, as F32."""

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


def _widths(kind: str, kv_heads: int | None, heads: _Heads) -> tuple[int | None, int | None, int | None, int | None]:
    """Return a layer's width of keys and of values in the cache, and the sizes of their heads."""
    if kind in ("none", "recurrent"):
        return 0, 0, 0, 0
    key, value = (heads.key_window, heads.value_window) if kind == "window" else (heads.key, heads.value)
    if heads.latent:
        value = 0
    if kv_heads is None or key is None or value is None:
        return None, None, None, None
    return key * kv_heads, value * kv_heads, key, value


def _kv_bytes(
    keys: int | None, values: int | None, key_head: int | None, value_head: int | None
) -> dict[str, int | None]:
    if keys is None or values is None or key_head is None or value_head is None:
        return dict.fromkeys(CACHE_TYPES)
    return {name: _sum((row_bytes(keys, key_head, name), row_bytes(values, value_head, name))) for name in CACHE_TYPES}


class _Repeating(NamedTuple):
    """The tensors of a repeating layer."""

    tensors: int
    bytes: int | None


def _repeating(tensors: Iterable[Tensor]) -> dict[int, _Repeating]:
    found: dict[int, _Repeating] = {}
    for tensor in tensors:
        match = _LAYER.match(tensor.name)
        if match:
            index = int(match.group(1))
            before = found.get(index, _Repeating(0, 0))
            found[index] = _Repeating(before.tensors + 1, _sum((before.bytes, tensor.bytes)))
    return found


def place(name: str, architecture: str) -> str:
    """Return what a tensor goes with."""
    if _LAYER.match(name):
        return "layers"
    kind = name.partition(".")[0]
    if kind in _INPUT:
        return "input"
    if kind in _SHARED and not (kind == "token_embd_norm" and architecture in _NORM_IS_OUTPUT):
        return "shared"
    return "output"


def _weights(tensors: Sequence[Tensor], architecture: str) -> Weights:
    types: dict[str, list[Tensor]] = {}
    places: dict[str, list[Tensor]] = {"layers": [], "input": [], "output": [], "shared": []}
    for tensor in tensors:
        types.setdefault(tensor.type_name, []).append(tensor)
        places[place(tensor.name, architecture)].append(tensor)
    shares = [
        TypeShare(name, len(of), sum(tensor.elements for tensor in of), _sum(tensor.bytes for tensor in of))
        for name, of in types.items()
    ]
    embedding = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)
    has_output = any(tensor.name == "output.weight" for tensor in tensors)
    tied = embedding is not None and not has_output and architecture not in _WITHOUT_OUTPUT
    return Weights(
        bytes=_sum(tensor.bytes for tensor in tensors),
        layers_bytes=_sum(tensor.bytes for tensor in places["layers"]),
        input_bytes=_sum(tensor.bytes for tensor in places["input"]),
        output_bytes=_sum(tensor.bytes for tensor in places["output"]),
        shared_bytes=_sum(tensor.bytes for tensor in places["shared"]),
        embedding_bytes=embedding.bytes if embedding else None,
        tied_embeddings=tied,
        types=sorted(shares, key=lambda share: (-(share.bytes or 0), share.type)),
    )


def _upstream_order(tensor: Tensor) -> tuple[int, bytes]:
    """Order as src/llama-model-loader.h (weight_name_comparer) does."""
    match = re.match(r"blk\.(\d{1,9})\.", tensor.name)
    return int(match.group(1)) if match else -1, tensor.name.encode()


def _file_type(header: Header, tensors: Sequence[Tensor]) -> str:
    said = header.metadata.get("general.file_type")
    number = None if said is None else _natural(said)
    if number is not None:
        prefix = GUESSED_PREFIX if number & GUESSED else ""
        return prefix + FILE_TYPES.get(number & ~GUESSED, UNKNOWN_FILE_TYPE)
    # Upstream goes through the tensors by layer and name, and takes the type that first has the most.
    counts: Counter[str] = Counter()
    most, highest = "f32", 0
    for tensor in sorted(tensors, key=_upstream_order):
        counts[tensor.type_name] += 1
        if counts[tensor.type_name] > highest:
            most, highest = tensor.type_name, counts[tensor.type_name]
    return GUESSED_PREFIX + FILE_TYPES[GUESSED_FILE_TYPES.get(most, 0)]


def _layer_count(reader: _Reader) -> int | None:
    count = reader.number("block_count")
    if count is None or not 0 < count <= MAX_LAYERS:
        reader.note(
            f"{reader.architecture}.block_count is {'missing' if count is None else count}, so the layers and the "
            f"cache are not known; llama.cpp wants 1 to {MAX_LAYERS}."
        )
        return None
    return count


def _text(value: Value | None) -> str | None:
    return value if isinstance(value, str) else None


def _followed(reader: _Reader) -> bool:
    """Return whether what llama.cpp does for this architecture's cache is followed here; if not, note why."""
    architecture = reader.architecture
    # Each layer is run, and cached, so many times.
    looped = architecture == "nanbeige" and (reader.number("num_loops", 1) or 1) > 1
    if looped:
        reader.note("llama.cpp runs the layers of this nanbeige model in loops, so the size of its cache is not known.")
    if architecture in _OF_ITS_OWN:
        reader.note(
            f"llama.cpp gives the architecture {architecture} a cache of its own kind, so its size is not known."
        )
    elif architecture == "clip":
        reader.note("This holds what sees or hears beside a language model: it has no layers and no cache of its own.")
    elif architecture not in _FOLLOWED:
        reader.note(
            f"Architecture {architecture!r} is none of llama.cpp {TABLES_OF}, so the size of its cache is not known."
        )
    return architecture in _FOLLOWED and not looped


def _vocabulary(reader: _Reader) -> int | None:
    length = reader.header.lengths.get("tokenizer.ggml.tokens")
    return reader.number("vocab_size") if length is None else length


def _totals(layers: Sequence[Layer], kinds: tuple[str, ...]) -> dict[str, int | None]:
    chosen = [layer for layer in layers if layer.cache in kinds]
    return {name: _sum(layer.kv_bytes_per_token[name] for layer in chosen) for name in CACHE_TYPES}


def _cache(layers: Sequence[Layer], *, known: bool, window: int) -> Cache:
    nothing: dict[str, int | None] = dict.fromkeys(CACHE_TYPES)
    complete = known and all(None not in (layer.cache, layer.key_width, layer.value_width) for layer in layers)
    has_window = any(layer.cache == "window" for layer in layers)
    return Cache(
        known=complete and all(layer.state_bytes is not None for layer in layers),
        bytes_per_token=_totals(layers, ("full", "both")) if complete else nothing,
        window_tokens=window if has_window else None,
        window_bytes_per_token=_totals(layers, ("window",)) if complete else nothing,
        state_bytes=_sum(layer.state_bytes for layer in layers) if complete else None,
    )


def _layers(reader: _Reader, count: int, shape: Shape, heads: _Heads, repeating: dict[int, _Repeating]) -> list[Layer]:
    """Return the repeating layers."""
    all_heads = _all_heads(reader, count)
    kv_heads = _kv_heads(reader, count, all_heads)
    feed_forward = reader.each("feed_forward_length", count, 0)
    kinds: Sequence[str | None] = [None] * count
    if _followed(reader):
        main = count - shape.predict_layers
        found = _cache_kinds(reader, main, kv_heads, feed_forward)
        # Layers that predict further tokens are not attended by the others.
        kinds = [*found, *["none"] * shape.predict_layers] if found is not None else kinds
    state = _state_bytes(reader, shape.embedding_length, all_heads[0])
    layers = []
    for index, kind in enumerate(kinds):
        keys, values, key_head, value_head = (None,) * 4 if kind is None else _widths(kind, kv_heads[index], heads)
        weights = repeating.get(index, _Repeating(0, 0))
        layers.append(
            Layer(
                index=index,
                tensors=weights.tensors,
                bytes=weights.bytes,
                heads=all_heads[index],
                kv_heads=kv_heads[index],
                feed_forward_length=feed_forward[index],
                cache=kind,
                key_width=keys,
                value_width=values,
                kv_bytes_per_token=_kv_bytes(keys, values, key_head, value_head),
                state_bytes=(state if kind in ("recurrent", "both") else 0) if kind else None,
            )
        )
    return layers


def _shape(reader: _Reader, count: int | None) -> tuple[Shape, _Heads]:
    embedding = reader.number("embedding_length")
    all_heads = _all_heads(reader, count)
    for name in ["embedding_length"] + ["attention.head_count"] * (reader.architecture not in _RECURRENT):
        if not reader.has(name) and reader.architecture != "clip":
            reader.note(f"{reader.architecture}.{name} is missing, which llama.cpp needs.")
    kv_heads = _kv_heads(reader, count, all_heads)
    heads = _read_heads(reader, embedding, all_heads[0])
    predict = reader.number("nextn_predict_layers", 0) or 0
    if count is not None and predict > count:
        reader.note(f"{reader.architecture}.nextn_predict_layers is {predict}, more than there are layers.")
        predict = 0
    shape = Shape(
        layers=count,
        predict_layers=predict,
        embedding_length=embedding,
        heads=_same(all_heads),
        kv_heads=_same(kv_heads),
        key_length=heads.key,
        value_length=heads.value,
        feed_forward_length=_same(reader.each("feed_forward_length", count, 0)),
        experts=reader.number("expert_count", 0) or 0,
        experts_used=max((used or 0 for used in reader.each("expert_used_count", count, 0)), default=0),
        expert_feed_forward_length=_same(reader.each("expert_feed_forward_length", count)),
        context_length=reader.number("context_length"),
        vocabulary=_vocabulary(reader),
    )
    return shape, heads


def describe(headers: Sequence[Header]) -> Model:
    """Return what the headers of a model's files say."""
    first = headers[0]
    tensors = [tensor for header in headers for tensor in header.tensors]
    architecture = _text(first.metadata.get("general.architecture"))
    reader = _Reader(first, architecture or "")
    if architecture is None:
        reader.note("general.architecture is missing, so only the weights are known.")
        shape, heads, count = Shape(vocabulary=_vocabulary(reader)), _Heads(None, None, None, None, latent=False), None
    else:
        count = _layer_count(reader) if architecture != "clip" else None
        shape, heads = _shape(reader, count)
    repeating = _repeating(tensors)
    layers = _layers(reader, count, shape, heads, repeating) if count is not None else []
    if architecture == "clip":
        _followed(reader)
    newer = sorted({tensor.type_name for tensor in tensors if tensor.bytes is None})
    if newer:
        reader.note(
            f"Tensors of {', '.join(newer)} are of a llama.cpp later than {TABLES_OF}, so their bytes are not known."
        )
    beyond = sorted(index for index in repeating if count is not None and index >= count)
    if beyond:
        reader.note(f"There are tensors of layer {beyond[0]}, and the model has {count} layers, counted from 0.")
    return Model(
        architecture=architecture,
        name=_text(first.metadata.get("general.name")),
        file_type=_file_type(first, tensors),
        parameters=sum(tensor.elements for tensor in tensors),
        shape=shape,
        weights=_weights(tensors, architecture or ""),
        cache=_cache(layers, known=count is not None, window=_window_size(reader, (count or 0) - shape.predict_layers)),
        layers=layers,
        notes=reader.notes,
    )
