# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the facts that the sizes of nodes depend on: the tensors of a layer, and the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, NamedTuple

if TYPE_CHECKING:
    from .._gguf.header import Tensor


class LayerShape(NamedTuple):
    """The facts of a layer that the sizes of its nodes depend on; numbers are elements per token."""

    width: int
    query: int
    key: int
    value: int
    attended: int
    heads: int
    cells: int
    window: bool
    joined_qkv: bool
    query_norm: bool
    attention_norm: bool
    attention_post_norm: bool
    feed_forward_norm: bool
    feed_forward_post_norm: bool
    feed_forward: int
    gated: bool
    joined_gate: bool
    experts: int
    experts_used: int
    expert_feed_forward: int
    shared_feed_forward: int
    everything: int  # of all nodes, for the upper estimate


class Batch(NamedTuple):
    """The facts of a batch that the sizes of nodes depend on."""

    tokens: int
    outputs: int
    flash_attention: bool
    copies: int
    local_layers: bool
    rotated_keys: int  # the size of the matrix that rotates the keys of a quantised cache, or 0
    rotated_values: int
    value_rows: int  # elements per token that need an index if the cache keeps values transposed


def _outputs(tensor: Tensor) -> int:
    """Return how many elements a tensor gives for a token. No model has a tensor without elements, but a file may."""
    if not tensor.elements or not tensor.shape:
        return 0
    return tensor.elements // tensor.shape[0] if len(tensor.shape) > 1 else tensor.shape[0]


def layer_shape(
    tensors: Mapping[str, Tensor], *, width: int, heads: int, cells: int, window: bool, experts_used: int
) -> LayerShape:
    """Return the shape of a layer from its tensors by name, without `blk.N.` and `.weight`."""

    def rows(name: str) -> int:
        tensor = tensors.get(name)
        return tensor.shape[1] if tensor and len(tensor.shape) > 1 else 0

    def columns(name: str) -> int:
        tensor = tensors.get(name)
        return tensor.shape[0] if tensor and tensor.shape else 0

    everything = 0
    for name, tensor in tensors.items():
        outputs = _outputs(tensor)
        if "_exps" in name and len(tensor.shape) > 2:
            outputs = tensor.shape[1] * experts_used
        everything += outputs
    attended = columns("attn_output")
    joined = rows("attn_qkv")
    key, value = rows("attn_k"), rows("attn_v")
    query = rows("attn_q")
    if joined:
        query = attended
        key = value = max(0, joined - query) // 2
    experts = rows("ffn_gate_inp") if "ffn_down_exps" in tensors else 0
    feed_forward = columns("ffn_down") if not experts else 0
    return LayerShape(
        width=width,
        query=query,
        key=key,
        value=value or key,
        attended=attended,
        heads=heads,
        cells=cells,
        window=window,
        joined_qkv=bool(joined),
        query_norm="attn_q_norm" in tensors,
        attention_norm="attn_norm" in tensors,
        attention_post_norm="post_attention_norm" in tensors,
        feed_forward_norm="ffn_norm" in tensors,
        feed_forward_post_norm="post_ffw_norm" in tensors,
        feed_forward=feed_forward,
        gated="ffn_gate" in tensors,
        joined_gate="ffn_gate" not in tensors and feed_forward > 0 and rows("ffn_up") == 2 * feed_forward,
        experts=experts,
        experts_used=experts_used,
        expert_feed_forward=columns("ffn_down_exps"),
        shared_feed_forward=columns("ffn_down_shexp"),
        everything=everything,
    )
