# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: numbers of a header, each checked as llama.cpp uses it, and what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .header import CUT, Header

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .header import Value


UINT32_MAX = (1 << 32) - 1


class Numbers:
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
        found = natural(value)
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
        values = tuple(natural(value) for value in self.header.arrays.get(key, ()))
        if len(values) == layers and None not in values:
            return values
        self.note(f"{key} has {self.header.lengths[key]} values that are not one number for each of {layers} layers.")
        return (None,) * layers

    def flags(self, name: str, layers: int) -> tuple[bool, ...] | None:
        """Return whether each layer is meant, if the file says so layer by layer; those it does not name are not."""
        values = self.header.arrays.get(f"{self.architecture}.{name}")
        return None if values is None else tuple(map(bool, (*values, *(0,) * layers)[:layers]))


def natural(value: Value) -> int | None:
    """Return a number that upstream can hold in 32 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= UINT32_MAX:
        return None
    return value


def same(values: Iterable[int | None]) -> int | None:
    found = set(values)
    return found.pop() if len(found) == 1 else None


def total(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def text_of(value: Value | None) -> str | None:
    return value if isinstance(value, str) else None
