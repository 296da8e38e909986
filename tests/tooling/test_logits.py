# SPDX-License-Identifier: GPL-3.0-or-later
"""The comparison of an aarch64 host with an x86-64 one, which tells rounding from a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest

from support.logits import SUMS, DifferentTextError, Logits, compare

if TYPE_CHECKING:
    from pathlib import Path

POSITIONS, TOKENS = 30, 200
# The difference of one x86-64 processor from itself, with weights of eight bits.
EIGHT_BITS = 0.02


def logits(seed: int = 1) -> Logits:
    """Return logits whose text follows their preference, with a spread of 1 like those of the tests' model."""
    values = np.random.default_rng(seed).normal(size=(POSITIONS, TOKENS))
    # In that model, half of the vocabulary has logits of 0.
    values[:, ::2] = 0
    return Logits(np.concatenate([[1], values.argmax(axis=1)[:-1]]), values)


def moved(by: float, seed: int = 2) -> Logits:
    found = logits()
    noise = np.random.default_rng(seed).normal(size=found.values.shape) * (found.values != 0)
    return Logits(found.tokens, found.values + by * noise)


def led_by(lead: float, by: float) -> tuple[Logits, Logits]:
    """Return two sides that differ by `by` and part at position 7, where each has `lead` between the two tokens."""
    first, second = logits(), moved(by)
    for side, other in ((first, second), (second, first)):
        side.values[7, 101] = 5 + (lead if side is first else 0)
        other.values[7, 103] = 5 + (lead if other is second else 0)
    return first, second


def with_values(change: np.ndarray) -> Logits:
    return Logits(logits().tokens, change)


@pytest.mark.parametrize(
    ("other", "limit", "is_rounding"),
    [
        pytest.param(logits(), SUMS, True, id="equal"),
        pytest.param(moved(1e-6), SUMS, True, id="sums-in-another-order"),
        pytest.param(moved(1e-3), SUMS, False, id="a-half-float-cache-is-no-rounding-of-sums"),
        pytest.param(moved(EIGHT_BITS), 1.3 * EIGHT_BITS, True, id="activations-of-eight-bits"),
        pytest.param(moved(2 * EIGHT_BITS), 1.3 * EIGHT_BITS, False, id="twice-as-much"),
        pytest.param(with_values(logits(seed=3).values), 1.3 * EIGHT_BITS, False, id="another-model"),
        pytest.param(with_values(logits().values + (logits().values != 0)), 1.3 * EIGHT_BITS, False, id="moved-alike"),
        pytest.param(with_values(logits().values * 1.05), 1.3 * EIGHT_BITS, False, id="scaled"),
        pytest.param(with_values(logits().values * 0), 1.3 * EIGHT_BITS, False, id="nothing-computed"),
        pytest.param(with_values(np.roll(logits().values, 2, axis=1)), 1.3 * EIGHT_BITS, False, id="shuffled"),
    ],
)
def test_rounding_is_told_from_a_fault(other: Logits, limit: float, is_rounding: bool) -> None:
    assert compare(logits(), other, limit).is_rounding is is_rounding


def test_one_bad_position_is_a_fault_though_the_average_hides_it() -> None:
    bad = moved(EIGHT_BITS / 2)
    bad.values[11] = logits(seed=4).values[11] * 0.1 + bad.values[11] * 0.9
    found = compare(logits(), bad, 1.3 * EIGHT_BITS)
    assert found.typical < 1.3 * EIGHT_BITS
    assert not found.is_rounding
    assert "(position 11)" in str(found)


@pytest.mark.parametrize(
    ("lead", "by", "is_rounding"),
    [
        pytest.param(0.01, EIGHT_BITS, True, id="a-tie-within-rounding"),
        pytest.param(0.5, EIGHT_BITS, False, id="a-clear-preference-on-both-sides"),
        pytest.param(0.01, 1e-6, False, id="a-tie-that-rounding-cannot-turn"),
    ],
)
def test_where_the_sides_part_their_leading_logits_decide(lead: float, by: float, is_rounding: bool) -> None:
    first, second = led_by(lead, by)
    (parting,) = compare(first, second, limit=2 * by).partings
    assert (parting.position, parting.tokens) == (7, (101, 103))
    assert parting.is_rounding is is_rounding
    said = str(compare(first, second, limit=2 * by))
    assert f"At position 7 they part: token 101 before 103 by {5 + lead:.5f} to 5.00000" in said
    assert ("A FAULT" in said) is not is_rounding


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Logits(logits().tokens + 1, logits().values), id="another-text"),
        pytest.param(Logits(logits().tokens, logits().values[:, :-1]), id="another-vocabulary"),
        pytest.param(with_values(logits().values * np.nan), id="no-numbers"),
    ],
)
def test_what_cannot_be_compared_is_refused(other: Logits) -> None:
    with pytest.raises(DifferentTextError):
        compare(logits(), other)


def test_the_file_of_llama_results_is_read(tmp_path: Path) -> None:
    # Upstream's tools/results/results.cpp writes the dimensions of the logits in reverse order.
    path = tmp_path / "results.gguf"
    written = logits()
    writer = gguf.GGUFWriter(path, "none")
    writer.add_tensor("tokens", written.tokens.astype(np.int32))
    writer.add_tensor("logits", written.values.astype(np.float32).reshape(TOKENS, POSITIONS))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = Logits.read(path)
    assert (read.tokens == written.tokens).all()
    assert (read.values == written.values.astype(np.float32)).all()
