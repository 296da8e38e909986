# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a benchmark: its content, its forms, and its refusals."""

from __future__ import annotations

import json
import re

import pytest
from ansible_collections.llama_cpp.cluster.plugins.filter.benchmark_report import benchmark_report
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.benchmark_data import SHOWN_RUNS
from hypothesis import given, settings
from hypothesis import strategies as st

from support.benchmark_sample import (
    ENDPOINTS,
    IDENTITY,
    NAMES,
    OPTIONS,
    figures,
    history,
    hostile,
    results,
    run,
)

NOW = "2026-11-21T19:42:02Z"


@pytest.fixture(scope="module")
def made():
    return benchmark_report(results())


# Content


def last(prompt, generation, spread=0.02, **changes):
    """Return results whose last run of the same kind had these figures."""
    before = run("2026-11-20T01:02:03Z", 1, 1, tests=figures(prompt, generation, spread=spread))
    return results(history=[{**before, **changes}])


START = "3 workers, 2.51 ± 0.03 t/s generation and 38.4 ± 0.5 t/s prompt"
FIRST = f"{START}; the first run of this build, model and shape."
AGAINST = f"{START}; against the last run of the same build, model and shape (2026-11-20 01:02 UTC): "


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (results(history=[]), FIRST),
        (last(38.2, 2.39, 0.002), f"{AGAINST}generation 5 % faster, prompt the same within the spread."),
        (last(48.0, 2.60, 0.001), f"{AGAINST}generation 3 % slower, prompt 20 % slower."),
        (last(38.4, 2.50), f"{AGAINST}generation the same within the spread, prompt the same within the spread."),
        (last(30, 2, build={"commit": "4227c9be8"}), FIRST),
        (last(30, 2, build={"commit": "0c1e57098", "patches": ["rpc-load"]}), FIRST),
        (last(30, 2, model={**IDENTITY, "file_type": "Q8_0"}), FIRST),
        (last(30, 2, workers=ENDPOINTS[:2]), FIRST),
        (last(30, 2, options={**OPTIONS, "cache_type_k": "q8_0"}), FIRST),
        (last(30, 2, options={**OPTIONS, "repetitions": 2}), f"{AGAINST}generation 25 % faster, prompt 28 % faster."),
        (last(0, 0, 0), f"{AGAINST}generation the same within the spread, prompt the same within the spread."),
    ],
    ids=["first", "faster", "slower", "same", "build", "patches", "model", "workers", "option", "more-repetitions",
         "nothing"],
)  # fmt: skip
def test_a_sentence_says_the_result(given, sentence):
    report = benchmark_report(given)
    assert report["report"]["summary"] == sentence
    assert sentence in report["markdown"]


def test_one_sample_has_no_spread():
    given = results(history=[])
    for test in given["bench"]["tests"]:
        test["tokens_per_second"].update(stddev=None, samples=[10.0], mean=10.0)
    given["bench"]["workers"] = ENDPOINTS[:1]
    assert benchmark_report(given)["report"]["summary"].startswith("1 worker, 10.0 t/s generation and 10.0 t/s prompt;")


def test_plan_and_reality_stand_side_by_side_for_each_worker(made):
    split = made["report"]["split"]
    assert [(share["name"], share["endpoint"]) for share in split] == [
        *zip(NAMES, ENDPOINTS),
        ("master.example.com (master)", None),
    ]
    mib = 1 << 20
    assert split[0]["compute"] == {"planned_bytes": 584 * mib, "measured_bytes": 610 * mib, "difference_percent": 4.45}
    assert split[2]["has_output"] is True
    assert (split[2]["first_layer"], split[2]["layers_planned"]) == (54, 26)
    assert split[0]["total"]["measured_bytes"] == sum(
        split[0][key]["measured_bytes"] for key in ("weights", "kv", "compute")
    )
    assert (
        f"| {NAMES[2]} {ENDPOINTS[2]} | 54 to 79 and the output | 13.4 GiB (plan 13.4 GiB, +0.0 %) |"
        in made["markdown"]
    )
    assert "| 610.0 MiB (plan 584.0 MiB, +4.5 %) |" in made["markdown"]


@pytest.mark.parametrize(
    ("key", "factor", "words"),
    [
        ("weights_bytes", 1.0, "On every worker the plan was right within its limit of 1 %."),
        ("weights_bytes", 0.97, "The plan missed its limit of 1 %: weights of worker1"),
        ("kv_bytes", 1.03, "KV cache of worker1.example.com -2.9 %"),
        ("compute_bytes", 0.5, "compute buffers of worker1.example.com +100.0 %"),
        ("compute_bytes", 0.995, "On every worker the plan was right within its limit of 1 %."),
    ],
    ids=["right", "weights", "kv", "compute", "compute-within"],
)
def test_where_the_plan_was_wrong_is_said(key, factor, words):
    given = results()
    workers = given["plan"]["workers"]
    for share, worker in zip(benchmark_report(given)["report"]["split"], workers):
        for name in ("weights", "kv", "compute"):
            worker[f"{name}_bytes"] = share[name]["measured_bytes"]
    workers[0][key] = round(workers[0][key] * factor)
    given["plan"]["exact"] = True
    assert words in benchmark_report(given)["report"]["split_note"]
    # An estimate promises nothing.
    given["plan"]["exact"] = False
    assert benchmark_report(given)["report"]["split_note"] == ""


def test_devices_of_one_worker_are_added_up_and_upper_case_is_the_same_worker():
    given = results()
    given["run"]["devices"].append({**given["run"]["devices"][1], "model_buffer_mib": 1.0, "kv_buffer_mib": None})
    given["plan"]["workers"][0]["endpoint"] = given["plan"]["workers"][0]["endpoint"].upper()
    share = benchmark_report(given)["report"]["split"][0]
    assert share["weights"]["measured_bytes"] == round(13_902.2 * (1 << 20))
    assert share["layers_measured"] == 54


def test_workers_of_one_host_are_told_apart_and_what_the_log_leaves_out_is_nothing():
    given = results()
    given["hosts"][1]["endpoints"] = ENDPOINTS[:2]
    del given["hosts"][2]
    split = benchmark_report(given)["report"]["split"]
    assert [share["name"] for share in split[:3]] == [
        f"{NAMES[0]}, {ENDPOINTS[0]}",
        f"{NAMES[0]}, {ENDPOINTS[1]}",
        NAMES[2],
    ]
    assert split[3]["kv"] == {"planned_bytes": 0, "measured_bytes": 0, "difference_percent": 0.0}


def test_a_commit_is_short_in_the_text_and_whole_in_the_history():
    given = results(history=[])
    given["bench"]["build"]["commit"] = "0c1e57098" + "a" * 31
    made = benchmark_report(given)
    assert "a" * 31 not in made["markdown"]
    assert json.loads(made["history_line"])["build"]["commit"] == "0c1e57098" + "a" * 31


def test_builds_of_one_commit_are_told_apart_by_their_patches():
    before = run("2026-11-20T01:02:03Z", 30, 2, build={"commit": "0c1e57098", "patches": []})
    given = results(history=[before])
    given["bench"]["build"]["patches"] = ["programs", "<rpc>"]
    made = benchmark_report(given)
    assert json.loads(made["history_line"])["build"]["patches"] == ["programs", "<rpc>"]
    for words in ("· patches programs, &lt;rpc&gt; ·", "· patches none ·"):
        assert words in made["markdown"]
    assert "first run of this build" in made["report"]["summary"]


def test_only_the_benchmark_itself_is_needed():
    made = benchmark_report({"time": NOW, "bench": results()["bench"]})
    assert made["report"]["split"] == made["report"]["hosts"] == []
    assert "Throughput" in made["markdown"]
    assert "None" not in made["markdown"]


# History


def test_the_line_of_a_run_is_read_back_and_compared_with(made):
    runs = [*history(), json.loads(made["history_line"])]
    again = benchmark_report(results(history=runs))
    assert again["problem"] == ""
    assert again["report"]["history"][:-1] == made["report"]["history"]
    assert len(again["report"]["history"]) == len(runs) + 1
    assert "prompt the same within the spread" in again["report"]["summary"]


def test_a_history_whose_last_line_has_no_end_is_whole_and_an_empty_one_is_none():
    for text, number in ((json.dumps(history()[0]), 2), ("", 1)):
        assert len(benchmark_report({**results(), "history": text})["report"]["history"]) == number
        assert benchmark_report({"history": text}) == {"problem": ""}


def runs_of(*speeds, **changes):
    """Return earlier runs with these speeds of prompt and generation."""
    return [run("2026-11-20T01:02:03Z", *speed, **changes) for speed in speeds]


GENERATION = "generation 2.51 ± 0.03 t/s, 16.3 % less than 3.00"


@pytest.mark.parametrize(
    ("before", "tolerance", "number", "slower"),
    [
        (runs_of((40, 3)), 16, "1 earlier run", GENERATION),
        (
            runs_of((80, 3), (20, 3), (76.8, 1)),
            10,
            "3 earlier runs",
            f"prompt 38.4 ± 0.5 t/s, 50.0 % less than 76.8; {GENERATION}",
        ),
        (runs_of((40, 3)), 17, "", ""),
        (runs_of((400, 30)), 0, "", ""),
        (runs_of((0, 0)), 5, "", ""),
        (runs_of((400, 30), commit="4227c9be8"), 5, "", ""),
        (runs_of((400, 30), workers=ENDPOINTS[:2]), 5, "", ""),
        ([], 5, "", ""),
    ],
    ids=["one", "median", "tolerated", "anything", "nothing-measured", "other-build", "other-workers", "first"],
)
def test_what_is_slower_than_is_tolerated_is_said(before, tolerance, number, slower):
    found = benchmark_report(results(history=before, tolerance_percent=tolerance))
    than = f"Slower by more than {tolerance} % than the median of {number} of the same build, model and shape"
    assert found["slower"] == (f"{than}: {slower}." if slower else "")


GOOD = json.dumps(history()[0])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (GOOD[:40], "it is not JSON from column"),
        ("", "it is empty"),
        ("[]", "it must be a dictionary"),
        (GOOD.replace('"schema_version": 1', '"schema_version": 2'), "schema_version must be 1"),
        (GOOD.replace("2026-10-03T02:10:00Z", "yesterday"), "time must be a time in UTC"),
        (GOOD.replace('"n_gen": 64', '"n_gen": -1'), "tests[1].n_gen must be a number from 0 to 1e18"),
        (GOOD.replace('"mean": 29.1', '"mean": NaN'), "NaN is not a number"),
        (GOOD.replace('"mean": 29.1', '"mean": 1e999'), "tests[0].tokens_per_second.mean must be a number from 0"),
        (GOOD.replace('"kind": "prompt"', '"kind": "other"'), "tests[0].kind must be one of generation, prompt"),
        (GOOD.replace('"tests":', '"test":'), "tests must be a list"),
        ("[" * 100_000, "it is nested too deeply"),
        (GOOD.replace("Llama", "\udcff"), "it is not UTF-8"),
        ('"' + "x" * 1_000_001 + '"', "it is longer than a million characters"),
    ],
    ids=["cut-off", "empty", "list", "schema", "time", "negative", "nan", "infinity", "kind",
         "no-tests", "nested", "no-utf-8", "long"],
)  # fmt: skip
def test_a_broken_line_is_named_and_refused(line, reason):
    text = f"{GOOD}\n{line}\n{GOOD}\n"
    found = benchmark_report({"history": text}, name="here/history.jsonl")
    assert benchmark_report({**results(), "history": text}, name="here/history.jsonl") == found
    message = found.pop("problem")
    assert found == {}
    assert message.startswith(f"Line 2 of the history here/history.jsonl is not a benchmark run ({reason}")
    assert message.endswith("correct it, or move the file away to start a new history.")
    assert "\n" not in message
    assert len(message) < 300


# Forms


def test_a_long_history_is_shown_by_its_end():
    runs = [run(f"2026-10-{1 + index // 24:02}T{index % 24:02}:00:00Z", 30, 2) for index in range(200)]
    made = benchmark_report(results(history=runs))
    assert len(made["report"]["history"]) == SHOWN_RUNS
    assert made["markdown"].partition("## History")[2].count("\n| 2026-") == 20


def test_names_that_are_meant_to_do_harm_are_text():
    made = benchmark_report(hostile())
    assert made["markdown"].count("&lt;script&gt;alert(1)") > 20
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", made["markdown"])
    assert "<" not in made["markdown"]
    # Each row of a table has as many cells as its head, whatever a name holds.
    for table in re.findall(r"(?:^\|.*\n)+", made["markdown"], re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    assert not re.search(r"(?<!\\)`|(?<!\\)\]\(", made["markdown"])


def test_markdown_reads_like_this(made):
    text = made["markdown"]
    assert text.startswith(
        "# Llama 3.1 70B Instruct over 3 workers\n\n3 workers, 2.51 ± 0.03 t/s generation and 38.4 ± 0.5 t/s prompt"
    )
    host = "| worker1.example.com 10.0.0.11:50052 | worker | aarch64 | 16 | 16 | 29.0 GiB of 32.0 GiB"
    for row in (
        f"{host} | 0.3.36-0c1e57098 | 7.0.0 |",
        "| generation | 64 tokens | 2.51 ± 0.03 | 2.45 to 2.57 | 5 |",
        "| Context in training | 131,072 |",
        "| one run, whole | 274.0 s |",
        "| 2026-11-21 19:42 | 2.51 ± 0.03 | 38.4 ± 0.5 | build 0c1e57098 · Llama 3.1 70B Instruct",
        "| build 4227c9be8 · Llama 3.1 70B Instruct · 39.6 GiB · 3 workers |",
    ):
        assert row in text


@given(st.text(alphabet=st.characters(), max_size=80))
@settings(max_examples=25, deadline=None)
def test_any_name_is_text(name):
    given = results(history=[], hosts=[{"name": name, "master": True}], title=name)
    given["bench"]["build"]["commit"] = name
    made = benchmark_report(given)
    assert len(re.findall("^# ", made["markdown"], re.MULTILINE)) == 1
    assert "<" not in made["markdown"]
