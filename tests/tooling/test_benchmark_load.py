# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmark of loads: ratios compare figures of one round, and speeds are those on the wire."""

from __future__ import annotations

import pytest

from benchmarks import load


def one(seconds: float, sent_mb: float) -> dict[str, float]:
    return {"seconds": seconds, "computing_seconds": 0.1, "weights_mb": 1400.0, "sent_mb": sent_mb}


def both(first: float, cached: float) -> dict[str, dict[str, float]]:
    seeded = {**one(cached * 2, 140.0), "seed_seconds": 1.5}
    return {"first": one(first, 1400.0), "cached": one(cached, 140.0), "seeded": seeded}


def test_ratios_are_of_the_same_round() -> None:
    # In the second round, the machine is half as fast.
    rounds = [
        {load.LOOPBACK: both(7.0, 3.5), load.SHAPED: both(14.0, 7.0)},
        {load.LOOPBACK: both(14.0, 7.0), load.SHAPED: both(28.0, 14.0)},
    ]
    found = load.summary(rounds, [{load.SHAPED: 950.0}, {load.SHAPED: 940.0}])
    assert {name: ratio["values"] for name, ratio in found["ratios"].items()} == {
        f"{load.LOOPBACK}: from the cache / first": [0.5, 0.5],
        f"{load.SHAPED}: from the cache / first": [0.5, 0.5],
        f"{load.LOOPBACK}: first, seeded / first": [1.0, 1.0],
        f"{load.SHAPED}: first, seeded / first": [1.0, 1.0],
        f"first: {load.SHAPED} / {load.LOOPBACK}": [2.0, 2.0],
        f"first, seeded: {load.SHAPED} / {load.LOOPBACK}": [2.0, 2.0],
        f"from the cache: {load.SHAPED} / {load.LOOPBACK}": [2.0, 2.0],
    }
    assert found["links"][load.SHAPED]["first"]["sent_mb_per_s"]["values"] == [100.0, 50.0]
    assert found["links"][load.SHAPED]["transfer_mbit_per_s"]["values"] == [950.0, 940.0]
    assert found["links"][load.SHAPED]["seed_seconds"]["values"] == [1.5, 1.5]


@pytest.mark.parametrize(
    ("cached", "sentences"),
    [
        (3.5, []),
        (3.6, ["Over 1000 Mbit/s a seeded worker has the model in 0.51 of the time of one without, more than 0.5."]),
    ],
)
def test_a_seeded_worker_has_a_model_in_half_the_time_over_the_shaped_link(cached: float, sentences: list[str]) -> None:
    # There is no target over loopback.
    found = load.summary([{load.LOOPBACK: both(7.0, 7.0), load.SHAPED: both(14.0, cached)}], [{load.SHAPED: 950.0}])
    assert found["missed"] == sentences
