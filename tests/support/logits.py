# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare what two kinds of processor compute of one text, to tell rounding from a fault.

Upstream's `llama-results` writes the logits of every position of a prompt to a GGUF file, as 32-bit floats. Kernels add
in different orders, which changes all logits a little. A fault changes some of them by more, and text shows that late
or never. The size of a rounding difference depends on the model. With weights and caches in floats it is a millionth of
the logits' spread. With weights of eight bits, activations are also rounded to eight bits. Sometimes one is rounded the
other way, and everything after it changes: one and the same processor differs from itself by 2 % when its attention
adds in another order. A difference that counts as rounding must not be larger than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import gguf
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

# The share of the logits' spread by which they may differ if only sums are rounded. Seen: 0.0000007.
SUMS = 1e-5
# The limit is for the average position. One position may exceed it by the first factor, and one logit, the largest of
# some thousands, by the second.
OUTLIER = 2.5
LARGEST = 5
# The number of partings that are shown.
SHOWN = 3


class DifferentTextError(ValueError):
    """The two sides have not computed the same thing, so there is nothing to compare."""


@dataclass(frozen=True)
class Logits:
    """The logits that follow each of `tokens`: one row of `values` for each."""

    tokens: np.ndarray
    values: np.ndarray

    @classmethod
    def read(cls, path: Path) -> Logits:
        found = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}
        tokens = found["tokens"].ravel()
        return cls(tokens, found["logits"].astype(np.float64).reshape(len(tokens), -1))


@dataclass(frozen=True)
class Parting:
    """A position at which the two sides prefer different tokens."""

    position: int
    tokens: tuple[int, int]  # the first side's choice, and the second's
    first: tuple[float, float]  # the logits of both tokens on the first side
    second: tuple[float, float]
    allowed: float  # what one logit may differ by: as much as elsewhere, within the limit

    @property
    def is_rounding(self) -> bool:
        """Return whether the two differences that make the sides part are no larger than differences elsewhere."""
        return (self.first[0] - self.first[1]) + (self.second[1] - self.second[0]) <= 2 * self.allowed

    def __str__(self) -> str:
        verdict = "rounding" if self.is_rounding else "A FAULT"
        return (
            f"At position {self.position} they part: token {self.tokens[0]} before {self.tokens[1]} by "
            f"{self.first[0]:.5f} to {self.first[1]:.5f}, and the other way round by {self.second[1]:.5f} to "
            f"{self.second[0]:.5f}: {verdict}, as one logit may differ by {self.allowed:.5f}."
        )


@dataclass(frozen=True)
class Comparison:
    positions: int
    limit: float
    spread: float
    largest: float  # difference of one logit
    largest_at: int
    relative: np.ndarray  # for each position: root mean square of the differences, divided by the spread there
    partings: tuple[Parting, ...]

    @property
    def typical(self) -> float:
        return float(self.relative.mean())

    @property
    def is_rounding(self) -> bool:
        outliers = self.relative.max() > OUTLIER * self.limit
        return self.typical <= self.limit and not outliers and all(parting.is_rounding for parting in self.partings)

    def __str__(self) -> str:
        worst = int(self.relative.argmax())
        differences = (
            f"{self.positions} positions: the logits differ by {self.typical:.5%} of their spread ({self.spread:.3f}), "
            f"at most by {self.relative[worst]:.5%} (position {worst}); limit {self.limit:.3%}; the largest difference "
            f"of one logit is {self.largest:.6f} (position {self.largest_at})."
        )
        partings = [str(parting) for parting in self.partings[:SHOWN]]
        if len(self.partings) > SHOWN:
            partings.append(f"They part at {len(self.partings) - SHOWN} more positions.")
        return "\n".join([differences, *(partings or ["Both sides prefer the same token everywhere."])])


def compare(first: Logits, second: Logits, limit: float = SUMS) -> Comparison:
    if not np.array_equal(first.tokens, second.tokens) or first.values.shape != second.values.shape:
        raise DifferentTextError("the two sides have read different tokens: give both the same model and text.")
    if not (np.isfinite(first.values).all() and np.isfinite(second.values).all()):
        raise DifferentTextError("a logit is not a number.")
    # The tests' model leaves the logits of most tokens at 0. They carry no information.
    live = (first.values != 0).any(axis=0) | (second.values != 0).any(axis=0)
    if not live.any():
        raise DifferentTextError("all logits are 0.")
    differences = np.abs(first.values - second.values)[:, live]
    spread = first.values[:, live].std(axis=1)
    leaders = first.values.argmax(axis=1), second.values.argmax(axis=1)
    parted = np.flatnonzero(leaders[0] != leaders[1])
    agreed = np.flatnonzero(leaders[0] == leaders[1])
    allowed = min(float(differences[agreed].max()) if len(agreed) else 0.0, LARGEST * limit * float(spread.mean()))
    partings = []
    for position in parted:
        ours, theirs = int(leaders[0][position]), int(leaders[1][position])
        row = first.values[position], second.values[position]
        partings.append(
            Parting(
                int(position), (ours, theirs), (float(row[0][ours]), float(row[0][theirs])),
                (float(row[1][ours]), float(row[1][theirs])), allowed,
            )
        )  # fmt: skip
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.nan_to_num(np.sqrt((differences**2).mean(axis=1)) / spread, nan=0.0, posinf=np.inf)
    return Comparison(
        len(first.tokens), limit, float(spread.mean()), float(differences.max()), int(differences.max(axis=1).argmax()),
        relative, tuple(partings),
    )  # fmt: skip


def first_choices(logits: Logits, count: int) -> tuple[list[int], list[int]]:
    """Return the last `count` tokens of the text, and the tokens that the logits before each of them prefer."""
    return [int(token) for token in logits.tokens[-count:]], [
        int(choice) for choice in logits.values[-count - 1 : -1].argmax(axis=1)
    ]


def same(first: Logits, second: Logits) -> None:
    found = compare(first, second)
    assert found.is_rounding, str(found)
