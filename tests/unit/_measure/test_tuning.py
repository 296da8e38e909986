# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of a sweep and its winners, over simulated clusters: options to speeds."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible_collections.llama_cpp.cluster.plugins.filter.tuning import tuning
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.tuning_result import arguments
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.tuning_settings import (
    Config,
    TuningError,
    options_of,
    settings_of,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.tuning_sweep import speeds_from_shifts
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

WORKERS = ["10.0.0.11:50052", "10.0.0.12:50052"]
KNOWN = {"workers": WORKERS, "fits_alone": [True, True], "layers": [16, 16], "tensor_split": [16, 17]}
Speeds = tuple[float, float]


def plain(_run: dict[str, Any], _ubatch: int, _batch: int) -> Speeds:
    return 100.0, 10.0


def pipelined(run: dict[str, Any], ubatch: int, _batch: int) -> Speeds:
    """Return the measured speeds of two one-core workers: a small physical batch lets both compute."""
    prompt = {512: 60.0, 256: 80.0, 128: 94.0, 64: 85.0}.get(ubatch, 60.0)
    return (prompt if len(run["workers"]) > 1 else 60.0), 22.0


def sweep(
    speeds: Callable[[dict[str, Any], int, int], Speeds] = plain,
    *,
    noise: float = 0.005,
    fails: Callable[[dict[str, Any]], str | None] = lambda _run: None,
    load_s: float = 10.0,
    slower: float = 1.0,
    seed: int = 1,
    **asked: Any,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a sweep over such a cluster. Runs after the first take `slower` times as long as their figures say."""
    chance = random.Random(seed)
    settings = {**KNOWN, **asked}
    records: list[dict[str, Any]] = []
    elapsed = 0.0
    while True:
        now = tuning(settings, records, "2026-11-21T20:00:00Z")
        run = now.get("next")
        if run is None:
            return now, records
        assert len(records) < now["runs_at_most"], "it does not end"
        tests, wall = [], load_s
        repetitions = settings.get("tune_repetitions", 3)
        for batch in run["batch_size"]:
            for ubatch in run["ubatch_size"]:
                for kind, count, rate in zip(
                    ("prompt", "generation"), (run["n_prompt"], run["n_gen"]), speeds(run, ubatch, batch)
                ):
                    if count:
                        mean = rate * chance.gauss(1, noise / repetitions**0.5)
                        figures = {"mean": mean, "stddev": noise * mean}
                        tests.append(
                            {"kind": kind, "batch_size": batch, "ubatch_size": ubatch, "tokens_per_second": figures}
                        )
                        wall += count[0] * (repetitions + (kind == "prompt")) / rate
        failure = fails(run)
        elapsed += (wall + 5) * (slower if records else 1)
        split = [20, 13] if run["weights"] else run["tensor_split"]
        records.append(
            {"run": run, "tests": [] if failure else tests, "failure": failure, "wall_time_ms": 1000 * wall,
             "elapsed_s": elapsed, "tensor_split": split, "build": {"version": "0.5.0", "commit": "0c1e57098"},
             "model": {"type": "llama 8B Q4_0", "path": "/srv/m.gguf"}}
        )  # fmt: skip


def stages(records: list[dict[str, Any]]) -> list[str]:
    return [record["run"]["stage"] for record in records]


def won(result: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(result["variables"])
    assert found == result["figures"]["variables"]
    return found


def test_pipelined_prompts_are_found() -> None:
    result, records = sweep(pipelined, tune_goal="prompt")
    assert won(result) == {"inference_extra_args": ["--ubatch-size", "128"], "inference_tensor_split": []}
    assert "ubatch_size 128: prompt 60." in result["summary"]
    assert records[1]["run"]["ubatch_size"] == [64, 128, 256, 512, 1024]
    assert stages(records)[-2:] == ["again", "again"]
    assert "# - physical batch, ubatch_size 128: prompt 9" in result["variables"]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("goal", ["generation", "prompt", "balanced"])
def test_differences_within_the_spread_are_no_winners(goal: str, seed: int) -> None:
    result, _records = sweep(noise=0.02, seed=seed, tune_goal=goal, tune_cache_types=["q8_0"])
    assert won(result) == {"inference_extra_args": [], "inference_tensor_split": []}
    assert result["summary"].startswith("Nothing was faster than the current settings by more than the spread")


def test_a_gain_that_is_drift_is_none() -> None:
    """The cluster becomes quicker during the sweep, whatever the options, because other work has ended."""
    count = [0]

    def drifting(_run: dict[str, Any], _ubatch: int, _batch: int) -> Speeds:
        count[0] += 1
        return 100.0 * 1.03 ** count[0], 10.0 * 1.03 ** count[0]

    result, _records = sweep(drifting, tune_goal="generation", tune_split_modes=[])
    assert won(result)["inference_extra_args"] == []
    assert result["figures"]["drift_percent"] > 5


@pytest.mark.parametrize(
    ("goal", "tensor"),
    # As measured with a model that is 2048 wide: the prompt gains what generation loses.
    [("generation", False), ("prompt", True), ("balanced", True)],
)
def test_the_goal_decides_where_one_gains_what_the_other_loses(goal: str, tensor: bool) -> None:
    def measured(run: dict[str, Any], _ubatch: int, _batch: int) -> Speeds:
        return (119.0, 19.1) if run["split_mode"] == "tensor" else (65.0, 22.8)

    result, records = sweep(measured, tune_goal=goal)
    assert ("--split-mode" in won(result)["inference_extra_args"]) is tensor
    if tensor:
        assert "tensor split by speed: it is planned only for split mode layer" in result["left_out"]
    if goal == "generation":
        assert "ubatch_size" not in stages(records)


def test_the_split_mode_that_won_gets_a_physical_batch_of_its_own() -> None:
    def measured(run: dict[str, Any], ubatch: int, _batch: int) -> Speeds:
        if run["split_mode"] == "tensor":
            return {1024: 150.0, 512: 130.0, 256: 120.0}.get(ubatch, 100.0), 20.0
        return (90.0 if ubatch == 64 else 80.0), 20.0

    result, records = sweep(measured, tune_goal="prompt")
    assert won(result)["inference_extra_args"] == ["--ubatch-size", "1024", "--split-mode", "tensor"]
    tried = [record["run"]["ubatch_size"] for record in records if record["run"]["split_mode"] == "tensor"]
    assert tried[:2] == [[64, 512], [64, 128, 256, 512, 1024]]
    assert "# - physical batch with split mode tensor, ubatch_size 1024: prompt 1" in result["variables"]
    # Only prompts are measured, because batches do not change generation.
    assert {test["kind"] for test in records[3]["tests"]} == {"prompt"}


def test_the_physical_batch_of_a_split_mode_is_searched_in_what_time_is_left() -> None:
    def measured(run: dict[str, Any], _ubatch: int, _batch: int) -> Speeds:
        return (130.0, 20.0) if run["split_mode"] == "tensor" else (80.0, 20.0)

    free, records = sweep(measured, tune_goal="prompt", tune_tensor_split=False)
    estimate = math.ceil(free["estimate_s"])
    short, fewer = sweep(measured, tune_goal="prompt", tune_tensor_split=False, tune_time_limit=estimate)
    assert len(fewer) == len(records) - 1
    assert "There was no time to search the physical batch again with split mode tensor." in short["notes"]
    assert fewer[-1]["elapsed_s"] <= estimate
    assert won(short) == won(free)


def test_a_split_mode_that_lost_costs_no_more_runs() -> None:
    result, records = sweep(lambda run, _ubatch, _batch: (50.0, 9.0) if run["split_mode"] == "tensor" else (80.0, 20.0))
    assert [record["run"]["split_mode"] for record in records].count("tensor") == 1
    assert result["runs_at_most"] > len(records)


def test_a_value_that_won_is_still_counted() -> None:
    def measured(run: dict[str, Any], _ubatch: int, _batch: int) -> Speeds:
        uneven = 4.0 if run["workers"] == WORKERS[:1] else 1.0
        return 100.0, uneven * 10.0 * (1 + (run["flash_attn"] == "off") + 2 * (run["cache_type_k"] == "q8_0"))

    asked: dict[str, Any] = {"tune_worker_threads": True, "threads_now": [2, 2], "usable_cores": [4, 2]}
    few: dict[str, Any] = {"tune_cache_types": ["q8_0"], "tune_ubatch_sizes": [], "tune_batch_sizes": []}
    result, records = sweep(measured, tune_goal="generation", **asked, **few)
    assert "--cache-type-k" in won(result)["inference_extra_args"]
    assert "worker_threads" in stages(records)


def test_a_split_by_measured_speed_must_prove_itself() -> None:
    def uneven(run: dict[str, Any], _ubatch: int, _batch: int) -> Speeds:
        if len(run["workers"]) == 1:
            return (100.0, 20.0) if run["workers"] == WORKERS[:1] else (60.0, 12.0)
        return (100.0, 18.0) if run["weights"] or run["tensor_split"] == [20, 13] else (80.0, 15.0)

    result, records = sweep(uneven)
    weighted = next(record["run"] for record in records if record["run"]["weights"])
    assert weighted["weights"][0] / weighted["weights"][1] == pytest.approx(5 / 3, rel=0.03)
    assert won(result)["inference_tensor_split"] == [20, 13]
    assert "tensor split by speed, 1.00 : 0.6" in result["variables"]
    assert "(20 : 13)" in result["variables"]


def test_where_no_worker_can_hold_all_the_share_of_each_is_changed() -> None:
    """In this cluster, worker 1 takes 2 ms for a layer and worker 2 takes 3 ms."""

    def by_share(run: dict[str, Any], _ubatch: int, _batch: int) -> Speeds:
        if run["split_mode"] == "tensor":
            return 100.0, 5.0
        first = 20 if run["weights"] else run["tensor_split"][0]
        return 100.0, 1000 / (2 * first + 3 * (32 - first))

    result, records = sweep(by_share, tune_goal="generation", fits_alone=[False, False], noise=0.0005)
    shifted = [record["run"] for record in records if record["run"]["stage"] == "tensor_split"]
    assert shifted[0]["tensor_split"] == [12, 21]
    assert shifted[1]["weights"][0] / shifted[1]["weights"][1] == pytest.approx(1.5, rel=0.1)
    assert won(result)["inference_tensor_split"] == [20, 13]


@given(
    st.lists(st.tuples(st.integers(2, 40), st.floats(0.5, 5)), min_size=2, max_size=15),
)
def test_speeds_come_out_of_changed_shares(workers: list[tuple[int, float]]) -> None:
    layers, costs = zip(*workers)
    shifted = []
    for index in range(len(layers) - 1):
        moved = max(1, layers[index] // 4)
        changed = [*layers]
        changed[index] -= moved
        changed[-1] += moved
        shifted.append((moved, sum(n * cost for n, cost in zip(changed, costs))))
    found = speeds_from_shifts(layers, sum(n * cost for n, cost in zip(layers, costs)), shifted)
    assert found == pytest.approx([1 / cost for cost in costs], rel=1e-6)


def test_workers_that_are_equally_quick_need_no_other_split() -> None:
    result, records = sweep(noise=0.0001)
    assert any("The workers are equally fast" in note for note in result["notes"])
    assert not [record for record in records if record["run"]["weights"]]


def test_what_cannot_run_has_not_won_and_is_told() -> None:
    result, _records = sweep(
        pipelined,
        tune_goal="prompt",
        fails=lambda run: "This build has no split_mode tensor." if run["split_mode"] == "tensor" else None,
    )
    assert won(result)["inference_extra_args"] == ["--ubatch-size", "128"]
    assert "Split mode tensor cannot be used: This build has no split_mode tensor." in result["notes"]
    assert "# - split mode tensor: This build has no split_mode tensor." in result["variables"]


def test_a_first_run_that_fails_is_the_end() -> None:
    result, records = sweep(fails=lambda _run: "Worker 10.0.0.11:50052 is busy.")
    assert (result["refusal"], len(records)) == ("Worker 10.0.0.11:50052 is busy.", 1)
    assert result["variables"] == ""


def test_a_sweep_that_takes_too_long_is_refused_with_both_figures() -> None:
    result, records = sweep(tune_time_limit=300)
    assert len(records) == 1
    assert result["refusal"].startswith("The sweep would take about ")
    assert " s, judged by its first run, and tune_time_limit is 300 s: raise it" in result["refusal"]
    assert "tune_shorten to leave out what does not fit (physical batch, " in result["refusal"]
    assert result["refusal"].endswith("; nothing was changed.")


def test_a_shortened_sweep_keeps_what_is_most_important() -> None:
    result, records = sweep(pipelined, tune_goal="prompt", tune_time_limit=750, tune_shorten=True)
    assert "ubatch_size" in stages(records)
    assert not {"split_mode", "tensor_split"} & set(stages(records))
    assert records[-1]["elapsed_s"] <= 750
    assert won(result)["inference_extra_args"] == ["--ubatch-size", "128"]
    assert "# - not tried, tensor split by speed: with it the sweep would have taken " in result["variables"]


def test_a_limit_that_not_even_the_first_step_fits_in_is_refused_shortened_or_not() -> None:
    result, _records = sweep(tune_time_limit=80, tune_shorten=True)
    assert result["refusal"].startswith("The sweep would take about ")
    assert "tune_shorten" not in result["refusal"]


@pytest.mark.parametrize("slower", [1.0, 1.5, 2.5])
def test_a_sweep_stays_within_its_limit_when_runs_take_longer_than_the_first(slower: float) -> None:
    result, records = sweep(tune_time_limit=1000, slower=slower, tune_shorten=True)
    # The run that must come last may also take longer than expected; each run has its own limit.
    assert records[-2]["elapsed_s"] <= 1000
    assert all(record["run"]["timeout_s"] <= 1000 for record in records)
    assert any("not tried completely" in note for note in result["notes"]) is (slower > 1.5)


def test_threads_are_tried_last_with_what_has_won_and_put_back() -> None:
    def by_threads(run: dict[str, Any], ubatch: int, batch: int) -> Speeds:
        prompt, _generation = pipelined(run, ubatch, batch)
        return prompt, {3: 12.0, 2: 8.0}.get(run["worker_threads"], 10.0)

    result, records = sweep(by_threads, tune_worker_threads=True, threads_now=[4, 4], usable_cores=[4, 4])
    tried = [record["run"] for record in records if record["run"]["stage"] == "worker_threads"]
    assert [run["worker_threads"] for run in tried] == [2, 3, None]
    assert all(run["restarts"] and run["ubatch_size"] == [128] for run in tried)
    assert records[-1]["run"] == tried[-1]
    assert result["worker_threads"] == 3
    assert won(result)["rpc_server_threads"] == 3
    assert not [record for record in records[: -len(tried)] if record["run"]["restarts"]]


def test_threads_that_could_not_be_tried_are_told_of() -> None:
    result, _records = sweep(
        threads_problem="not all of them were tried, since w2 could not be started with other threads"
    )
    assert "# - not tried, threads of the workers: not all of them were tried, since w2" in result["variables"]


def test_threads_that_are_not_better_are_not_written() -> None:
    result, _records = sweep(tune_worker_threads=True, threads_now=[4, 4], usable_cores=[4, 4])
    assert result["worker_threads"] is None
    assert "rpc_server_threads" not in won(result)


@given(
    st.fixed_dictionaries(
        {
            "tune_goal": st.sampled_from(["generation", "prompt", "balanced"]),
            "tune_time_limit": st.integers(1, 5000),
            "tune_shorten": st.booleans(),
            "tune_ubatch_sizes": st.lists(st.integers(1, 4096), max_size=4),
            "tune_batch_sizes": st.lists(st.integers(1, 4096), max_size=3),
            "tune_cache_types": st.lists(st.sampled_from(["q8_0", "q4_0", "bf16"]), max_size=2),
            "tune_n_prompt": st.integers(1, 3000),
            "tune_worker_threads": st.booleans(),
            "threads_now": st.just([2, 2]),
            "usable_cores": st.just([4, 2]),
            "extra_args": st.sampled_from([[], ["-ub", "128", "-fa", "on"], ["-sm", "tensor"], ["-ctv", "q8_0"]]),
        }
    ),
    st.integers(0, 1000),
    st.integers(1, 5),
)
def test_every_sweep_ends_with_variables_or_a_sentence(asked: dict[str, Any], seed: int, broken: int) -> None:
    chance = random.Random(seed)

    def speeds(_run: dict[str, Any], _ubatch: int, _batch: int) -> Speeds:
        return chance.uniform(1, 500), chance.uniform(0.1, 50)

    def fails(run: dict[str, Any]) -> str | None:
        return "It broke." if run["stage"] != "start" and chance.randrange(5) < broken - 1 else None

    result, _records = sweep(speeds, fails=fails, **asked)
    if result["refusal"]:
        assert (result["refusal"][-1], result["variables"]) == (".", "")
    else:
        found = won(result)
        config, rest = options_of(found["inference_extra_args"])
        assert (config.ubatch_size >= 1, rest) == (True, [])


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"tune_goal": "speed"}, "tune_goal is speed: give generation, prompt, balanced or serving."),
        ({"tune_n_prompt": 0}, "tune_n_prompt is 0: give a whole number from 1 to 1000000."),
        ({"tune_n_gen": "-3"}, "tune_n_gen is -3: give a whole number from 1 to 1000000."),
        ({"tune_repetitions": 1}, "tune_repetitions is 1: give a whole number from 2 to 100."),
        ({"tune_repetitions": 2.5}, "tune_repetitions is 2.5: give a whole number from 2 to 100."),
        ({"tune_time_limit": "soon"}, "tune_time_limit is soon: give a whole number from 1 to 604800."),
        ({"tune_shorten": "maybe"}, "tune_shorten is maybe: give true or false."),
        ({"tune_ubatch_sizes": "64,128"}, "tune_ubatch_sizes is 64,128: give a list, such as [64, 128] (with -e as"),
        ({"tune_batch_sizes": [0]}, "tune_batch_sizes is 0: give a whole number from 1 to 65536."),
        ({"tune_flash_attn": ["auto"]}, "tune_flash_attn holds auto: give some of on, off, in quotes."),
        ({"tune_flash_attn": [True]}, "tune_flash_attn holds True: give some of on, off, in quotes."),
        ({"tune_split_modes": ["row"]}, "tune_split_modes holds row: give some of layer, tensor, in quotes."),
        ({"tune_cache_types": ["q9"]}, "tune_cache_types holds q9: give some of f16, "),
        ({"tune_apply": True}, "tune_apply is true, and only threads of workers can be applied: set "),
        (
            {"tune_worker_threads": True, "tune_threads": [8], "usable_cores": [16, 4]},
            "tune_threads holds 8, and there is a worker with 4 usable cores",
        ),
        ({"extra_args": ["-ub"]}, "inference_extra_args, -ub is : give a whole number"),
        ({"extra_args": ["-ctk", "f32"]}, "inference_extra_args, -ctk is f32, which cannot be measured over RPC."),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_makes_no_sweep_is_said_in_a_sentence(asked: dict[str, Any], sentence: str) -> None:
    assert tuning(asked)["problem"].startswith(sentence)
    assert tuning(asked).keys() == {"problem"}
    with pytest.raises(TuningError):
        settings_of(asked)


@pytest.mark.parametrize(
    ("words", "old", "config", "rest"),
    [
        (["-fa", "--mlock"], False, Config(flash_attn="on"), ["--mlock"]),
        (["-fa", "off"], False, Config(flash_attn="off"), []),
        (["--flash_attn", "1", "-t", "4"], False, Config(flash_attn="on"), ["-t", "4"]),
        ([], True, Config(flash_attn="off"), []),
        (["-fa"], True, Config(flash_attn="on"), []),
        (["-b", "1024", "-ub", "64", "-sm", "tensor"], False, Config(1024, 64, split_mode="tensor"), []),
        (["-ctk", "q8_0", "--cache-type-v", "q4_0"], False, Config(cache_type_k="q8_0", cache_type_v="q4_0"), []),
    ],
)
def test_options_are_understood_and_written_again(words: list[str], old: bool, config: Config, rest: list[str]) -> None:
    assert options_of(words, old) == (config, rest)
    assert options_of(arguments(config, rest, old), old) == (config, rest)


def test_what_was_given_stays_where_nothing_is_better() -> None:
    result, records = sweep(
        extra_args=["--mlock", "-ub", "128"], tensor_split=[3, 1], tensor_split_given=True, tune_tensor_split=False
    )
    assert records[0]["run"]["ubatch_size"] == [128]
    assert won(result) == {
        "inference_extra_args": ["--mlock", "--ubatch-size", "128"],
        "inference_tensor_split": [3, 1],
    }


def test_quantised_values_keep_flash_attention() -> None:
    _result, records = sweep(tune_cache_types=["q8_0"], tune_flash_attn=["off"])
    quantised = next(record["run"] for record in records if record["run"]["cache_type_v"] == "q8_0")
    assert quantised["flash_attn"] == "on"
    result, _records = sweep(extra_args=["-ctv", "q8_0", "-fa", "on"], tune_flash_attn=["off"])
    assert "flash attention: quantised values of the cache need it" in result["left_out"]


def test_split_mode_tensor_keeps_flash_attention() -> None:
    def measured(run: dict[str, Any], _ubatch: int, _batch: int) -> Speeds:
        return (130.0, 30.0) if run["split_mode"] == "tensor" else (80.0, 20.0)

    result, records = sweep(measured, tune_flash_attn=["off"])
    assert "flash attention: split mode tensor needs it" in result["left_out"]
    assert {record["run"]["flash_attn"] for record in records} == {None}
    result, records = sweep(measured, extra_args=["-fa", "off"])
    assert {record["run"]["flash_attn"] for record in records if record["run"]["split_mode"] == "tensor"} == {"on"}
    assert won(result)["inference_extra_args"][-4:] == ["--split-mode", "tensor", "--flash-attn", "on"]


@pytest.mark.parametrize("won_meanwhile", [False, True], ids=["from-the-start", "won-meanwhile"])
@pytest.mark.parametrize(
    ("values", "why"),
    [(["on", "off"], "split mode tensor needs it"), (["on"], "there is no other value to try")],
    ids=["off-would-be-tried", "on-alone"],
)
def test_why_flash_attention_is_left_out_does_not_depend_on_when(
    values: list[str], why: str, won_meanwhile: bool
) -> None:
    def measured(run: dict[str, Any], _ubatch: int, _batch: int) -> Speeds:
        return (130.0, 30.0) if run["split_mode"] == "tensor" else (80.0, 20.0)

    # If it is switched off, `on` alone is something to try until split mode tensor has it.
    now = ["-fa", "off"] if won_meanwhile else ["-fa", "on", "-sm", "tensor"]
    result, records = sweep(measured, tune_flash_attn=values, extra_args=now)
    assert f"flash attention: {why}" in result["left_out"]
    assert "flash_attn" not in stages(records)


def test_text_of_others_stays_in_its_comment() -> None:
    result, _records = sweep(
        fails=lambda run: "Boom\nrpc_server_threads: 99\u2028x" if run["split_mode"] == "tensor" else None,
        extra_args=["--alias", "it's: #1\n"],
    )
    assert won(result)["inference_extra_args"] == ["--alias", "it's: #1\n"]
    assert "rpc_server_threads" not in won(result)


def test_before_the_cluster_is_known_it_says_what_would_be_tried() -> None:
    first = tuning({"tune_goal": "generation"})
    assert [stage["stage"] for stage in first["stages"]] == ["split_mode", "tensor_split", "flash_attn", "again"]
    assert first["next"]["stage"] == "start"
    assert "physical batch: it does not change generation" in first["left_out"]
