# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of docs/how-to/size.md: the planner's figures for models of some shapes, before anybody has such a model.

A model here is only its header, because the planner reads nothing else of a model.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, cast

from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import Header, header_of
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.shapes import SHAPES, Shape, encoded
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.inputs import Cluster, Load, Worker
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.result import plan

if TYPE_CHECKING:
    from io import RawIOBase

GIB, MIB = 1 << 30, 1 << 20
# The load is an API with the defaults of role llama_server, and the reserve is that of module split_plan_info.
LOAD = Load(ctx_size=4 * 4096, parallel=4, master_other_bytes=1024 * MIB)
RESERVE_BYTES, RESERVE_PERCENT = 256 * MIB, 5.0
COUNTS, HOSTS_GIB = (1, 2, 3, 4, 8), (7, 15, 31, 63)
PLENTY = 1024 * GIB


def header(shape: Shape) -> Header:
    """Return the header of a GGUF file of this shape."""
    head, size = encoded(shape)
    return header_of(cast("RawIOBase", BytesIO(head)), size)


def fits(of: Header, workers: int, each_bytes: int, master_bytes: int = PLENTY) -> bool:
    """Return whether an API fits on so many equal workers with so much memory available each."""
    hosts = tuple(Worker(f"worker{number}:50052", each_bytes) for number in range(workers))
    result = plan(
        [of], LOAD, Cluster(hosts, RESERVE_BYTES, RESERVE_PERCENT, master_memory_available_bytes=master_bytes)
    )
    assert result["kv_known"]
    assert result["compute_known"]
    return bool(result["fits"])


def least_tenths(of: Header, workers: int) -> int:
    """Return the least memory that each worker must have available, in tenths of a GiB."""
    low, high = 0, 10 * 64
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(of, workers, middle * GIB // 10) else (middle, high)
    return high


def least_master_tenths(of: Header) -> int:
    """Return the least memory that the master must have available, in tenths of a GiB, if two workers have plenty."""
    tenths = 10
    while not fits(of, 2, PLENTY, tenths * GIB // 10):
        tenths += 1
    return tenths


def by_memory() -> list[str]:
    """Return the table's rows: model, file, the memory that each worker needs for so many workers, and the master's."""
    rows = []
    for shape in SHAPES:
        of = header(shape)
        size = sum(tensor.bytes or 0 for tensor in of.tensors) / 1e9
        cells = [f"{least_tenths(of, count) / 10:.1f}" for count in COUNTS]
        rows.append(f"| {shape.name} | {size:.1f} GB | {' | '.join(cells)} | {least_master_tenths(of) / 10:.1f} |")
    return rows


def by_hosts() -> list[str]:
    """Return the table's rows: the number of equal workers that each model needs, by the memory available on each."""
    rows = []
    for shape in SHAPES:
        of = header(shape)
        cells = [next((str(n) for n in range(1, 16) if fits(of, n, host * GIB)), "more than 15") for host in HOSTS_GIB]
        rows.append(f"| {shape.name} | {' | '.join(cells)} |")
    return rows


def shapes() -> list[str]:
    """Return the rows of the table of shapes."""
    return [
        f"| {s.name} | {s.layers} | {s.width} | {s.feed_forward}{' for each expert' if s.experts else ''} | {s.heads} "
        f"| {s.kv_heads} | {s.vocabulary} |"
        for s in SHAPES
    ]
