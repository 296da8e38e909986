# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: which tensors of a model a worker can have in its cache before it is first asked for them.

If a tensor has more than 10 MiB, a master first asks the worker for it by the hash of its bytes in the GGUF file. It
sends the tensor only if the worker does not have it (ggml/src/ggml-rpc/ggml-rpc.cpp, rpc_use_hash_cache). In split mode
layer, one worker gets a whole tensor. In split mode tensor, each worker gets slices, which are other bytes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Iterable, NamedTuple

from .._gguf.header import model_parts, read_model
from .._gguf.model import describe, place

# Upstream's HASH_THRESHOLD: a master asks for larger tensors by their hash.
LARGEST_UNHASHED_BYTES = 10 << 20
_LAYER = re.compile(r"^blk\.(\d+)\.")
_EMBEDDING = "token_embd.weight"


class Part(NamedTuple):
    """The part of a model that a worker gets, as in split_plan_info. `first_layer` matters only if `layers` > 0."""

    first_layer: int | None
    layers: int
    has_output: bool


class Piece(NamedTuple):
    """The bytes of a tensor in a file."""

    path: str
    name: str
    offset: int
    bytes: int


def pieces(model: Path, part: Part | None = None) -> list[Piece]:
    """Return the tensors that a worker with this part is asked for by hash; without a part, those of all workers."""
    headers = read_model(model)
    tied = describe(headers).weights.tied_embeddings
    found = []
    for path, header in zip(model_parts(model), headers):
        for tensor in header.tensors:
            size = tensor.bytes or 0
            if size > LARGEST_UNHASHED_BYTES and _goes(tensor.name, part, tied=tied):
                found.append(Piece(str(path), tensor.name, header.start_bytes + tensor.offset, size))
    return found


def _goes(name: str, part: Part | None, *, tied: bool) -> bool:
    """Return whether a tensor goes to a worker with this part. The input stays with the master."""
    layer = _LAYER.match(name)
    if layer:
        index = int(layer[1])
        return part is None or (part.layers > 0 and 0 <= index - (part.first_layer or 0) < part.layers)
    kind = "output" if name == _EMBEDDING and tied else place(name)
    if kind == "input":
        return False
    return part is None or (part.has_output if kind == "output" else part.layers > 0)


def lines(wanted: Iterable[Piece]) -> str:
    """Return the input of the program rpc-cache, one line for each piece."""
    return "".join(f"{piece.offset} {piece.bytes} {piece.path}\n" for piece in wanted)


def counted(said: str) -> dict[str, Any]:
    """Return what rpc-cache has done, from its output: lines of hash, size in bytes, and result."""
    rows = [line.split() for line in said.splitlines()]
    sizes: dict[str, list[int]] = {"added": [], "replaced": [], "missing": [], "there": []}
    for row in rows:
        if len(row) == 3 and row[2] in sizes:
            sizes[row[2]].append(int(row[1]))
    brought = sizes["added"] + sizes["replaced"] + sizes["missing"]
    return {
        "entries": sorted({row[0] for row in rows if len(row) == 3}),
        "added": len(brought),
        "added_bytes": sum(brought),
        "replaced": len(sizes["replaced"]),
        "there": len(sizes["there"]),
    }
