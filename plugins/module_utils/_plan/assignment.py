# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the device of each layer, as in src/llama-model.cpp (load_tensors), with its 32-bit arithmetic."""

from __future__ import annotations

import struct
from typing import NamedTuple, Sequence


class Part(NamedTuple):
    """The layers of a device, from `first` to before `end`; an `end` beyond the last layer includes the output."""

    first: int
    end: int


def _float(number: float) -> float:
    """Return a number rounded to a C float."""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def assign(layers: int, n_gpu_layers: int, shares: Sequence[float]) -> list[int | None]:
    """Return the device of each layer and, last, of the output; None stands for the master's memory.

    src/llama-model.cpp (load_tensors) sums and normalises the shares as floats. A layer goes to the first device whose
    sum is above the layer's own position, from 0 to 1.
    """
    total = 0.0
    sums = []
    for share in shares:
        total = _float(total + _float(share))
        sums.append(total)
    points = [_float(point / total) for point in sums]
    active = min(n_gpu_layers, layers + 1)
    start = layers + 1 - active
    devices: list[int | None] = [None] * start
    for index in range(active):
        at = _float(index / active)
        devices.append(next((device for device, point in enumerate(points) if point > at), len(shares) - 1))
    return devices


def parts_of(layers: int, n_gpu_layers: int, shares: Sequence[float]) -> list[Part]:
    """Return the part that llama.cpp gives to each device for these shares."""
    devices = assign(layers, n_gpu_layers, shares)
    local = devices.count(None)
    parts = []
    for device in range(len(shares)):
        mine = [index for index, owner in enumerate(devices) if owner == device]
        parts.append(Part(mine[0], mine[-1] + 1) if mine else Part(local, local))
    return parts
