# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: which device each layer goes to, as in src/llama-model.cpp (load_tensors), in its arithmetic of 32 bits."""

from __future__ import annotations

import struct
from typing import NamedTuple, Sequence


class Part(NamedTuple):
    """What a device gets: layers from `first` to before `end`; `end` beyond the last layer stands for the output."""

    first: int
    end: int


def _float(number: float) -> float:
    """Round as C does to a float."""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def assign(layers: int, n_gpu_layers: int, shares: Sequence[float]) -> list[int | None]:
    """Return which device each layer goes to, and last the output; None for the master's memory.

    src/llama-model.cpp (load_tensors): shares are summed and normalised as floats, and the first device whose sum is
    beyond the layer's own share gets it.
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
    """Return what llama.cpp gives to each device by these shares."""
    devices = assign(layers, n_gpu_layers, shares)
    local = devices.count(None)
    parts = []
    for device in range(len(shares)):
        mine = [index for index, owner in enumerate(devices) if owner == device]
        parts.append(Part(mine[0], mine[-1] + 1) if mine else Part(local, local))
    return parts
