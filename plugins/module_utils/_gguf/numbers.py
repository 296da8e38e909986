# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: reads the numbers of a header, checks each as llama.cpp uses it, and notes what is wrong."""

from __future__ import annotations

from typing import Iterable

from .header import CUT, Header, Value

UINT32_MAX = (1 << 32) - 1


class Numbers:
    """A reader of one architecture's numbers that collects notes about wrong ones."""

    def __init__(self, header: Header, architecture: str) -> None:
        self.header = header
        self.architecture = architecture
        self.notes: list[str] = []

    def has(self, name: str) -> bool:
        key = f"{self.architecture}.{name}"
        return key in self.header.metadata or key in self.header.lengths

    def note(self, sentence: str) -> None:
        # The file gives the architecture's name and the value, so they can have any length and any characters.
        sentence = printable(sentence)
        sentence = sentence if len(sentence) <= 400 else f"{sentence[:400]}{CUT}."
        if sentence not in self.notes:
            self.notes.append(sentence)

    def number(self, name: str, default: int | None = None) -> int | None:
        """Return a number that is not negative; `default` if it is missing; None, with a note, if it is unusable."""
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
        """Return a number for each layer; the file gives one number for all layers, or an array."""
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


def natural(value: Value) -> int | None:
    """Return the value if it is a number that upstream can hold in 32 bits, else None."""
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


def printable(text: str) -> str:
    """Return a text of a file with the characters replaced that control a terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
