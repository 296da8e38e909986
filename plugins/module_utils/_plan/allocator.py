# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the memory that the nodes of a graph take with llama.cpp's allocator.

Like ggml/src/ggml-alloc.c, it takes the best-fitting hole and lets operations reuse the memory of their source.
"""

from __future__ import annotations

from bisect import insort
from typing import Sequence

from .layer_shape import Batch

_ALIGNMENT = 64


class Node:
    """A tensor of the graph; with `in_place`, it may reuse the memory of its source."""

    def __init__(self, size: int, sources: Sequence[Node], *, in_place: bool, keep: bool) -> None:
        self.size = -(-size // _ALIGNMENT) * _ALIGNMENT
        self.sources = sources
        self.in_place = in_place
        self.keep = keep
        self.users = 0
        self.offset = -1


class _Memory:
    """The allocator of ggml-alloc.c: it takes the best-fitting hole, or memory at the end if no hole fits."""

    def __init__(self) -> None:
        self.holes: list[tuple[int, int]] = []  # (offset, size), by offset, without the open end
        self.end = 0
        self.peak = 0

    def take(self, size: int) -> int:
        fitting = [hole for hole in self.holes if hole[1] >= size]
        if fitting:
            # Take the last of the smallest holes that fit.
            hole = min(reversed(fitting), key=lambda it: it[1])
            self.holes.remove(hole)
            if hole[1] > size:
                insort(self.holes, (hole[0] + size, hole[1] - size))
            return hole[0]
        offset = self.end
        self.end += size
        self.peak = max(self.peak, self.end)
        return offset

    def give_back(self, offset: int, size: int) -> None:
        insort(self.holes, (offset, size))
        merged: list[tuple[int, int]] = []
        for start, length in self.holes:
            if merged and merged[-1][0] + merged[-1][1] == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((start, length))
        if merged and sum(merged[-1]) == self.end:
            self.end = merged.pop()[0]
        self.holes = merged


class Graph:
    """The nodes that one device computes, in order."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.first: list[Node] = []
        self.nodes: list[Node] = []

    def add(self, size: int, *sources: Node, in_place: bool = False, keep: bool = False) -> Node:
        node = Node(size, sources, in_place=in_place, keep=keep)
        self.nodes.append(node)
        return node

    def input(self, size: int) -> Node:
        """Add an input from another device. A pipeline has several copies of it, which stay allocated."""
        if self.batch.copies == 1:
            return self.add(size)
        copies = [Node(size, (), in_place=False, keep=True) for _copy in range(self.batch.copies)]
        self.first += copies
        return copies[0]

    def peak(self) -> int:
        memory = _Memory()
        for node in self.nodes:
            for source in node.sources:
                source.users += 1
        for node in self.first:
            node.offset = memory.take(node.size)
        for node in self.nodes:
            if node.offset < 0 and node.size:
                for source in node.sources if node.in_place else ():
                    if source.users == 1 and not source.keep and source.size == node.size and source.offset >= 0:
                        node.offset, source.offset = source.offset, -1
                        break
                else:
                    node.offset = memory.take(node.size)
            for source in node.sources:
                source.users -= 1
                if source.users == 0 and not source.keep and source.offset >= 0:
                    memory.give_back(source.offset, source.size)
                    source.offset = -1
        return memory.peak
