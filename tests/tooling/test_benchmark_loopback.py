# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmarks over loopback: their cores, comparisons, cases that do not run, and missed targets."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from benchmarks import loopback, measure, tensor_trace, throughput, upstream, verification
from benchmarks.verification import Size
from support.rpc_session import Command


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


def test_what_there_are_too_few_cores_for_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loopback, "CORES", [5, 7])
    monkeypatch.setattr(loopback, "AWAKE", tmp_path / "missing")
    rounds = [{"1 of one core": {"generation": 20.0}, "2 of one core": {"generation": 19.0}}]
    found = throughput.against("1 of one core", rounds, throughput.MORE_WORKERS)
    assert found["cases"]["2 of one core"]["generation"]["ratio"]["values"] == [0.95]
    assert found["not_run"] == {
        "4 of one core": "4 cores are needed, and 2 may be used here",
        "1 of one core, kept awake": f"this account may not write to {tmp_path / 'missing'}",
        "2 of one core, kept awake": f"this account may not write to {tmp_path / 'missing'}",
    }


def test_one_worker_of_either_kind_is_compared_to_local_inference() -> None:
    rounds = [
        {
            "without RPC, upstream's": {"prompt ub512": 190.0 * quick, "generation": 78.0 * quick},
            "without RPC, ours": {"prompt ub512": 200.0 * quick, "generation": 80.0 * quick},
            "one worker, upstream's": {"prompt ub512": 100.0 * quick, "generation": 40.0 * quick},
            "one worker, ours": {"prompt ub512": 198.0 * quick, "generation": 78.0 * quick},
        }
        for quick in (1.0, 0.5)
    ]
    assert {name: ratio["values"] for name, ratio in upstream.short_of_local(rounds).items()} == {
        "one worker, upstream's / without RPC, ours: prompt ub512": [0.5, 0.5],
        "one worker, upstream's / without RPC, ours: generation": [0.5, 0.5],
        "one worker, ours / without RPC, ours: prompt ub512": [0.99, 0.99],
        "one worker, ours / without RPC, ours: generation": [0.975, 0.975],
    }


@pytest.mark.parametrize("piece", [1, 7, 4096])
def test_messages_of_split_mode_tensor_are_counted_wherever_they_are_cut(piece: int) -> None:
    def message(command: Command, payload: bytes) -> bytes:
        return struct.pack("<BQ", command, len(payload)) + payload

    sent = message(Command.HELLO, bytes(24)) + message(Command.GRAPH_COMPUTE, bytes(1000))
    sent += message(Command.GET_TENSOR, bytes(300) + struct.pack("<QQ", 0, 2048))
    sent += message(Command.SET_TENSOR, bytes(2048))
    sent += message(Command.GET_TENSOR, bytes(300) + struct.pack("<QQ", 0, 1800))
    sent += message(Command.GRAPH_RECOMPUTE, bytes(4))
    counts = tensor_trace.Counts(2048)
    for start in range(0, len(sent), piece):
        counts.asked(sent[start : start + piece])
    counts.answered(bytes(2048))
    assert counts.found == {
        "bytes to a worker": len(sent),
        "bytes from a worker": 2048,
        "bytes to a worker: graphs": 9 + 1000 + 9 + 4,
        "messages to a worker: HELLO": 1,
        "messages to a worker: GRAPH_COMPUTE": 1,
        "messages to a worker: GET_TENSOR": 2,
        "messages to a worker: SET_TENSOR": 1,
        "messages to a worker: GRAPH_RECOMPUTE": 1,
        "partial results asked of a worker": 1,
    }


def test_an_attempt_that_lost_its_figures_is_made_again() -> None:
    results = iter([None, {"seconds": 2.0}, None, None])
    assert loopback.repeated(lambda: next(results), 2) == {"seconds": 2.0}
    with pytest.raises(measure.BenchError, match=r"^Runs lost their last lines, 2 times in a row"):
        loopback.repeated(lambda: next(results), 2)


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
            # Real workers do not count for the growth.
            "4 real workers": {"task": 9.0, "probe": 9.0},
        }
        for silent in (6.1, latest, 6.2)
    ]
    found = verification.summary(rounds, SIZES, 5.0)
    assert found["missed"] == missed
    assert found["growth"]["task"]["one_more_endpoint_ms"]["values"] == [2.0] * 3
    assert found["growth"]["probe"]["one_more_endpoint_ms"]["median"] == 0.5
    assert found["growth"]["probe"]["ratio"]["median"] == 25.5
