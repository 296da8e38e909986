# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmarks over loopback: their cores, and missed targets."""

from __future__ import annotations

import pytest

from benchmarks import loopback, throughput


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


ALONE = "one worker, 4 threads (its cores) / without RPC, repacked weights"
AWAKE = "heavy layers, split mode tensor over cores that are kept awake / one: generation"
REACHED = {
    f"{ALONE}: prompt ub64": 0.9,
    f"{ALONE}: prompt ub512": 0.97,
    f"{ALONE}: generation": 0.95,
    "two workers of one core / one: prompt ub64": 1.6,
    "two workers of one core / one: prompt ub128": 1.7,
    "two workers of one core / one: prompt ub512": 1.3,
    "two workers of one core / one: generation": 0.97,
    "heavy layers, split mode tensor / one: generation": 1.2,
    AWAKE: 1.1,
}


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        pytest.param({}, [], id="met"),
        pytest.param(
            {f"{ALONE}: prompt ub512": 0.9699}, [f"{ALONE}: prompt ub512: 0.9699, less than 0.97."], id="one-prompt"
        ),
        pytest.param({f"{ALONE}: generation": 0.9}, [f"{ALONE}: generation: 0.9000, less than 0.95."], id="one-gen"),
        pytest.param(
            {"two workers of one core / one: prompt ub128": 1.65},
            ["two workers of one core / one: prompt: 1.6500, less than 1.7."],
            id="two-prompt",
        ),
        pytest.param(
            {
                "two workers of one core / one: generation": 0.96,
                "heavy layers, split mode tensor / one: generation": 1.14,
            },
            [
                "two workers of one core / one: generation: 0.9600, less than 0.97.",
                f"heavy layers, split mode tensor / one: generation: 1.1400, less than 1.2 ({AWAKE}: 1.1000).",
            ],
            id="generation-on-cores-as-they-are",
        ),
    ],
)
def test_a_target_of_throughput_that_is_missed_is_named(change: dict[str, float], missed: list[str]) -> None:
    found = {name: {"median": median} for name, median in {**REACHED, **change}.items()}
    assert [sentence for target in throughput.targets(4) if (sentence := target.missed(found))] == missed
