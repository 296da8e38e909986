# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the size of llama.cpp's compute buffers.

The plan follows the graph of a batch as llama.cpp does: ggml/src/ggml-backend.cpp (the device of a node, copies of
inputs) and src/llama-graph.cpp (the nodes of a layer). The tensors of a layer show which nodes it has. Architectures
whose layers have other nodes get an upper estimate, which adds everything that a layer computes, with nothing freed.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

from .allocator import Graph, Node
from .layer_shape import Batch, LayerShape

# The architectures whose buffers were compared with those in llama.cpp's log (tests/integration/test_split_plan.py).
FOLLOWED = frozenset(
    """
    cohere2 command-r deci exaone4 gemma gemma2 gemma3 granite granitemoe internlm2 llama mistral3 olmo2 olmoe qwen2
    qwen2moe qwen3 qwen3moe seed_oss smollm3
    """.split()
)
# Architectures with LLM_NORM, which cannot be done in place. LLM_NORM_RMS can.
_LAYER_NORM = frozenset("cohere2 command-r".split())
# Architectures that scale the embeddings, on the device of the first layer.
_SCALED = frozenset("gemma gemma2 gemma3".split())
# GGML_SCHED_MAX_COPIES: the copies of each input of a device, if several devices compute prompt batches in parallel.
PIPELINE_COPIES = 4
_F32 = 4


class Head(NamedTuple):
    """The sizes of the output, which follows the last layer."""

    width: int
    vocabulary: int


class _Inputs(NamedTuple):
    """The inputs that all layers of a device use."""

    position: Node
    key_index: Node
    value_index: Node
    masks: dict[bool, Node]
    key_rotation: Node | None
    value_rotation: Node | None
    out_ids: Node | None


def _mask_bytes(batch: Batch, cells: int) -> int:
    return cells * batch.tokens * (2 if batch.flash_attention else _F32)


def _index_bytes(batch: Batch) -> int:
    return 8 * batch.tokens * (1 if batch.flash_attention else max(1, batch.value_rows))


def _masks(layers: Sequence[LayerShape]) -> dict[bool, int]:
    """Return the cells of the masks for these layers: for layers with a window (True), and for the others (False)."""
    return {layer.window: layer.cells for layer in layers if layer.cells}


def _inputs(graph: Graph, layers: Sequence[LayerShape], *, last: bool) -> _Inputs:
    batch = graph.batch
    position = graph.input(4 * batch.tokens)
    rotations = [
        graph.input(_F32 * size * size) if size else None for size in (batch.rotated_keys, batch.rotated_values)
    ]
    masks: dict[bool, Node] = {}
    key_index = value_index = position
    for window, cells in _masks(layers).items():
        key_index = graph.input(8 * batch.tokens)
        value_index = graph.input(_index_bytes(batch))
        masks[window] = graph.input(_mask_bytes(batch, cells))
    out_ids = graph.input(4 * batch.outputs) if last else None
    return _Inputs(position, key_index, value_index, masks, rotations[0], rotations[1], out_ids)


def _joined(graph: Graph, layer: LayerShape, results: Node, weights: Node, tokens: int) -> Node:
    """Add the nodes that join the results of all used experts into one."""
    size = _F32 * tokens * layer.width
    results = graph.add(results.size, results, weights, in_place=True)
    total = graph.add(size, results)
    for _expert in range(2, layer.experts_used):
        total = graph.add(size, total, results, in_place=True)
    return total


class _Builder:
    """Adds the nodes of layers to a graph."""

    def __init__(self, graph: Graph, inputs: _Inputs, *, rms: bool) -> None:
        self.graph = graph
        self.inputs = inputs
        self.rms = rms

    def norm(self, node: Node, size: int) -> Node:
        return self.graph.add(size, node, in_place=self.rms)

    def weighed(self, node: Node, size: int) -> Node:
        return self.graph.add(size, node, in_place=True)

    def attention(self, layer: LayerShape, normed: Node) -> Node:
        """Add the nodes up to the one that is multiplied with the output matrix."""
        graph, inputs, batch = self.graph, self.inputs, self.graph.batch
        each = _F32 * batch.tokens
        if not layer.cells:
            return graph.add(each * layer.width, normed)
        query = graph.add(each * (layer.query + layer.key + layer.value if layer.joined_qkv else layer.query), normed)
        joined = query
        if layer.query_norm:
            query = self.weighed(self.norm(query, each * layer.query), each * layer.query)
        # The rope of a part of a joined QKV tensor is not done in place.
        query = graph.add(each * layer.query, query, inputs.position, in_place=not layer.joined_qkv)
        if inputs.key_rotation:
            query = graph.add(each * layer.query, query, inputs.key_rotation)
        if layer.joined_qkv:
            key, value = joined, joined
        else:
            value = graph.add(each * layer.value, normed)
            key = graph.add(each * layer.key, normed)
            if layer.query_norm:
                key = self.weighed(self.norm(key, each * layer.key), each * layer.key)
        if inputs.value_rotation:
            value = graph.add(each * layer.value, value, inputs.value_rotation)
        key = graph.add(each * layer.key, key, inputs.position, in_place=not layer.joined_qkv)
        if inputs.key_rotation:
            key = graph.add(each * layer.key, key, inputs.key_rotation)
        graph.add(0, key, inputs.key_index)
        graph.add(0, value, inputs.value_index)
        mask = inputs.masks[layer.window]
        if batch.flash_attention:
            attended = graph.add(each * layer.attended, query, mask)
        else:
            scores = graph.add(each * layer.cells * layer.heads, query)
            scores = graph.add(scores.size, scores, mask, in_place=True)
            attended = graph.add(each * layer.attended, graph.add(each * layer.attended, scores))
        if inputs.value_rotation:
            attended = graph.add(each * layer.attended, attended, inputs.value_rotation)
        return attended

    def dense(self, node: Node, width: int, feed_forward: int, tokens: int, *, gated: bool, joined: bool) -> Node:
        each = _F32 * tokens
        graph = self.graph
        if gated:
            gate = graph.add(each * feed_forward, node)
            inner = graph.add(each * feed_forward, gate, graph.add(each * feed_forward, node))
        elif joined:
            inner = graph.add(each * feed_forward, graph.add(2 * each * feed_forward, node))
        else:
            inner = graph.add(each * feed_forward, graph.add(each * feed_forward, node), in_place=True)
        return graph.add(each * width, inner)

    def experts(self, layer: LayerShape, node: Node, tokens: int) -> Node:
        each = _F32 * tokens
        used = layer.experts_used
        graph = self.graph
        chances = graph.add(each * layer.experts, graph.add(each * layer.experts, node), in_place=True)
        chosen = graph.add(each * layer.experts, chances)
        weights = graph.add(each * used, chances, chosen)
        weights = graph.add(each * used, weights, graph.add(each, weights), in_place=True)
        inner_bytes = each * layer.expert_feed_forward * used
        gate = graph.add(inner_bytes, node, chosen)
        up = graph.add(inner_bytes, node, chosen)
        inner = graph.add(inner_bytes, gate, up)
        total = _joined(graph, layer, graph.add(each * layer.width * used, inner, chosen), weights, tokens)
        if layer.shared_feed_forward:
            shared = self.dense(node, layer.width, layer.shared_feed_forward, tokens, gated=True, joined=False)
            total = graph.add(each * layer.width, total, shared, in_place=True)
        return total

    def feed_forward(self, layer: LayerShape, node: Node, tokens: int) -> Node:
        if layer.experts:
            return self.experts(layer, node, tokens)
        return self.dense(node, layer.width, layer.feed_forward, tokens, gated=layer.gated, joined=layer.joined_gate)

    def parallel(self, layer: LayerShape, node: Node, normed: Node, attended: Node, *, last: bool) -> Node:
        """Add the rest of a layer whose attention and feed-forward network start from the same norm."""
        graph, batch = self.graph, self.graph.batch
        whole = _F32 * batch.tokens * layer.width
        tokens = batch.outputs if last else batch.tokens
        size = _F32 * tokens * layer.width
        if last:
            normed, node = graph.add(size, normed), graph.add(size, node)
        inner = graph.add(size, self.feed_forward(layer, normed, tokens), node, in_place=True)
        attended = graph.add(whole, attended)
        if last:
            attended = graph.add(size, attended)
        return graph.add(size, inner, attended, in_place=True)

    def layer(self, layer: LayerShape, node: Node, normed: Node | None, *, last: bool) -> Node:
        """Add a layer after `node`; another device may have computed its norm (`normed`)."""
        graph, batch = self.graph, self.graph.batch
        tokens = batch.tokens
        size = _F32 * tokens * layer.width
        if layer.attention_norm:
            normed = self.weighed(normed or self.norm(node, size), size)
        attended = self.attention(layer, normed or node)
        if normed and not layer.feed_forward_norm and not layer.attention_post_norm:
            return self.parallel(layer, node, normed, attended, last=last)
        attended = graph.add(size, attended)
        if last:
            tokens = batch.outputs
            size = _F32 * tokens * layer.width
            ids = [self.inputs.out_ids] if self.inputs.out_ids else []
            attended, node = graph.add(size, attended, *ids), graph.add(size, node, *ids)
        if layer.attention_post_norm:
            attended = self.weighed(self.norm(attended, size), size)
        residual = graph.add(size, attended, node, in_place=True)
        inner = residual
        if layer.feed_forward_norm:
            inner = self.weighed(self.norm(residual, size), size)
        inner = self.feed_forward(layer, inner, tokens)
        if layer.feed_forward_post_norm:
            inner = self.weighed(self.norm(inner, size), size)
        return graph.add(size, inner, residual, in_place=True)


def _output_alone(graph: Graph, width: int, before: LayerShape | None) -> Node:
    """Add what a device without layers gets from the last layer, which is on another device."""
    batch = graph.batch
    size = _F32 * batch.outputs * width
    node = graph.input(size)
    if before and before.experts and not before.shared_feed_forward and not before.feed_forward_post_norm:
        # A node without weights runs on the device of the node that follows it.
        results = graph.input(size * before.experts_used)
        weights = graph.input(_F32 * batch.outputs * before.experts_used)
        node = graph.add(size, _joined(graph, before, results, weights, batch.outputs), node, in_place=True)
    return node


def _layers(
    graph: Graph, architecture: str, layers: Sequence[LayerShape], *, first: bool, last: bool
) -> tuple[Node, Node]:
    """Add layers; return their result, and its norm if this device computes it."""
    batch, width = graph.batch, layers[0].width
    size = _F32 * batch.tokens * width
    rms = architecture not in _LAYER_NORM
    # If two successive layers are on different devices, the device of the first computes the norm of the second. If all
    # layers are on workers, llama.cpp prevents this (llama_context::graph_get_cb).
    apart = batch.local_layers and layers[0].attention_norm
    incoming = graph.input(size) if apart and not first else None
    node = graph.input(size)
    builder = _Builder(graph, _inputs(graph, layers, last=last), rms=rms)
    if first and architecture in _SCALED:
        node = graph.add(size, node, in_place=True)
    for index, layer in enumerate(layers):
        node = builder.layer(layer, node, incoming if index == 0 else None, last=last and index == len(layers) - 1)
    if last:
        # The output norm has no layer number, so it stays on this device.
        return node, graph.add(_F32 * batch.outputs * width, node, in_place=rms)
    return node, graph.add(size, node) if apart else node


def device_bytes(
    architecture: str,
    layers: Sequence[LayerShape],
    batch: Batch,
    *,
    first: bool,
    last: bool,
    head: Head | None,
    before: LayerShape | None = None,
) -> int:
    """Return the bytes of the compute buffer of a device that has these layers.

    Set `first` if no other worker has layers before it, `last` if it has the model's last layer, and `head` if it
    computes the output. `before` is the last layer if the master has it but not the output.
    """
    graph = Graph(batch)
    width = layers[0].width if layers else head.width if head else 0
    if layers:
        node, normed = _layers(graph, architecture, layers, first=first, last=last)
    else:
        node = normed = _output_alone(graph, width, before)
    if head:
        result = graph.add(_F32 * batch.outputs * width, normed, in_place=True, keep=True)
        graph.add(_F32 * batch.outputs * head.vocabulary, result, keep=True)
    elif layers:
        # The result stays allocated until the next device has it.
        graph.add(0, node, normed)
    return graph.peak()


def margin_bytes(layers: Sequence[LayerShape], batch: Batch, width: int) -> int:
    """Return the bytes to add for an architecture whose nodes are not followed: all that its largest layer computes.

    This counts twice, because recurrent layers rearrange their results. Tensors that go between devices come on top.
    """
    most = max((layer.everything for layer in layers), default=0)
    scores = 0 if batch.flash_attention else max((layer.cells * layer.heads for layer in layers), default=0)
    return _F32 * batch.tokens * (2 * most + scores + (8 + 2 * batch.copies) * width)


def input_bytes(layers: Sequence[LayerShape], batch: Batch, width: int) -> int:
    """Return the bytes of a graph's inputs in the master's memory."""
    if batch.local_layers:
        # The other inputs are counted with the master's layers.
        return _F32 * batch.tokens * (width + 1)
    each = 4 * batch.tokens + _F32 * batch.tokens * width + 4 * batch.tokens + 4 * batch.outputs
    for cells in _masks(layers).values():
        each += 8 * batch.tokens + _index_bytes(batch) + _mask_bytes(batch, cells)
    each += sum(_F32 * size * size for size in (batch.rotated_keys, batch.rotated_values))
    return each * batch.copies + _F32 * batch.tokens * width
