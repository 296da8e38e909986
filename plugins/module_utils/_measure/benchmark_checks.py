# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: what is handed over to a report is checked here; a message names the place that is wrong."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Mapping, NoReturn, Sequence

TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
MIB = 1024 * 1024


class BenchmarkError(ValueError):
    """What was handed over makes no report, or the history is broken; the message is one sentence naming the place."""


def refuse(message: str) -> NoReturn:
    """Raise BenchmarkError."""
    raise BenchmarkError(message)


def mapping_at(value: object, where: str) -> Mapping[str, Any]:
    """Return a dictionary, or say that it is none."""
    if not isinstance(value, Mapping):
        refuse(f"{where} must be a dictionary")
    return value


def sequence_at(value: object, where: str) -> Sequence[Any]:
    """Return a list, or say that it is none."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        refuse(f"{where} must be a list")
    return value


def number_at(value: object, where: str) -> float:
    """Return a number from 0, or say that it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        refuse(f"{where} must be a number")
    # Before float(), which has no place for every whole number.
    if not 0 <= value <= 1e18:
        refuse(f"{where} must be a number from 0 to 1e18")
    return float(value)


def count_at(value: object, where: str) -> int:
    """Return a whole number from 0, or say that it is none."""
    number = number_at(value, where)
    if number != int(number):
        refuse(f"{where} must be a whole number")
    return int(number)


def optional_count(value: object, where: str) -> int | None:
    """Return a whole number, or None."""
    return None if value is None else count_at(value, where)


def optional_mib(value: object, where: str) -> int | None:
    """Return bytes for what the log says in MiB."""
    return None if value is None else round(number_at(value, where) * MIB)


def time_at(value: object, where: str) -> str:
    """Return a time in UTC, or say that it is none."""
    try:
        return datetime.strptime(str(value), TIME_FORMAT).strftime(TIME_FORMAT)
    except ValueError:
        refuse(f"{where} must be a time in UTC such as 2026-01-31T23:59:59Z")
