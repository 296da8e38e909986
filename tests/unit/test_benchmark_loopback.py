# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmarks over loopback: which cores they use, what is compared with what, and when a target is missed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import loopback
import throughput
import verification
from verification import Size


@pytest.mark.parametrize(
    ("cores", "allowed", "used"),
    [
        pytest.param([{0}, {1}], {0, 1}, [0, 1], id="all"),
        pytest.param([{0, 4}, {1, 5}], {0, 1, 4, 5}, [0, 1], id="one-cpu-of-each-core"),
        pytest.param([{0, 4}, {1, 5}, {2, 6}], {4, 2}, [2, 4], id="taskset"),
        pytest.param([{cpu} for cpu in range(64)], set(range(8, 64)), [8, 9, 10, 11], id="no-more-than-four"),
        pytest.param([], {3, 2}, [2, 3], id="cores-unknown"),
    ],
)
def test_a_benchmark_uses_at_most_four_cores_and_one_cpu_of_each(cores, allowed, used) -> None:
    assert loopback.one_of_each(cores, allowed) == used


def test_each_round_begins_with_another_case() -> None:
    order: list[str] = []

    def case(name: str) -> loopback.Case:
        return lambda: order.append(name) or {"speed": 1.0}

    rounds = loopback.in_rounds({name: case(name) for name in "abc"}, 4, "cases")
    assert "".join(order) == "abcbcacababc"
    assert [set(done) for done in rounds] == [set("abc")] * 4


def test_what_dividing_costs_is_one_worker_against_none_and_two_against_one() -> None:
    # The second round is on a machine that is half as quick.
    with_rpc = [
        {
            throughput.REPACKED: {"prompt": 200.0 * quick, "generation": 80.0 * quick},
            throughput.PLAIN: {"prompt": 125.0 * quick, "generation": 50.0 * quick},
            throughput.matched(4): {"prompt": 100.0 * quick, "generation": 40.0 * quick},
        }
        for quick in (1.0, 0.5)
    ]
    more = [
        {
            throughput.of_one_core(1): {"prompt ub64": 60.0 * quick, "generation": 20.0 * quick},
            throughput.of_one_core(2): {"prompt ub64": 90.0 * quick, "generation": 19.0 * quick},
            throughput.SAME_CORE: {"generation": 19.6 * quick},
            throughput.kept_awake(1): {"generation": 25.0 * quick},
            throughput.kept_awake(2): {"generation": 24.5 * quick},
        }
        for quick in (1.0, 0.5)
    ]
    found = throughput.dividing(with_rpc, more, 4)
    assert {name: ratio["values"] for name, ratio in found.items()} == {
        "one worker, 4 threads (its cores) / without RPC, repacked weights: prompt": [0.5, 0.5],
        "one worker, 4 threads (its cores) / without RPC, repacked weights: generation": [0.5, 0.5],
        "one worker, 4 threads (its cores) / without RPC, --repack 0: prompt": [0.8, 0.8],
        "one worker, 4 threads (its cores) / without RPC, --repack 0: generation": [0.8, 0.8],
        "two workers of one core / one: prompt ub64": [1.5, 1.5],
        "two workers of one core / one: generation": [0.95, 0.95],
        "two workers on the same core / one: generation": [0.98, 0.98],
        "two workers of cores that are kept awake / one: generation": [0.98, 0.98],
    }
    of_one_core_alone = [{throughput.of_one_core(1): done[throughput.of_one_core(1)]} for done in more]
    assert not [name for name in throughput.dividing(with_rpc, of_one_core_alone, 4) if "two" in name]


SIZES = [Size(10), Size(500), Size(450, 50), Size(4, real=True)]


@pytest.mark.parametrize(
    ("latest", "missed"),
    [
        pytest.param(6.9, [], id="met"),
        pytest.param(
            7.4,
            ["With a timeout of 5 s the task over 500 endpoints, 50 of them silent took 7.4 s, over 7 s."],
            id="once-too-late",
        ),
    ],
)
def test_verification_must_end_soon_after_the_time_out_each_time(latest: float, missed: list[str]) -> None:
    rounds = [
        {
            "10 endpoints": {"task": 0.5, "probe": 0.01},
            "500 endpoints": {"task": 1.48, "probe": 0.255},
            "500 endpoints, 50 of them silent": {"task": silent, "probe": 5.1},
            # Of the growth, real workers are no part.
            "4 real workers": {"task": 9.0, "probe": 9.0},
        }
        for silent in (6.1, latest, 6.2)
    ]
    found = verification.summary(rounds, SIZES, 5.0)
    assert found["missed"] == missed
    assert found["growth"]["task"]["one_more_endpoint_ms"]["values"] == [2.0] * 3
    assert found["growth"]["probe"]["one_more_endpoint_ms"]["median"] == 0.5
    assert found["growth"]["probe"]["ratio"]["median"] == 25.5
    assert ("Met: " in verification.as_text(found)) is not bool(missed)
    assert all(sentence in verification.as_text(found) for sentence in missed)
