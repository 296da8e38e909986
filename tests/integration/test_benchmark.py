# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook benchmark over real workers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from support.benchmark_sample import run
from support.harness import play_here

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.long
def test_the_playbook_measures_reports_and_remembers(tmp_path: Path, here: dict[str, Any]) -> None:
    folder = tmp_path / "benchmark"
    folder.mkdir()
    # This record is of another build, and its final line break is missing.
    before = json.dumps(run("2026-10-01T02:03:04Z", 30, 2, "4227c9be8"))
    (folder / "history.jsonl").write_text(before)
    numbers = ("-e", "benchmark_n_prompt=32", "-e", "benchmark_n_gen=4", "-e", "benchmark_repetitions=2")
    done = play_here("benchmark.yml", tmp_path, here, *numbers)
    assert done.returncode == 0, done.stdout
    assert "the first run of this build, model and shape." in done.stdout
    assert "here : ok=" in done.stdout
    assert "changed=0" in done.stdout

    report = json.loads((folder / "report.json").read_text())
    lines = (folder / "history.jsonl").read_text().split("\n")
    assert (lines[0], len(lines), lines[2]) == (before, 3, "")
    assert json.loads(lines[1]) == report["history"][-1]
    assert [test["name"] for test in report["tests"]] == ["pp32", "tg4"]
    assert all(len(test["tokens_per_second"]["samples"]) == 2 for test in report["tests"])
    assert report["hosts"][0]["threads"] == [1, 2]
    assert report["hosts"][0]["memory_total_bytes"] > report["hosts"][0]["memory_available_bytes"] > 0
    endpoints = [f"127.0.0.1:{instance['port']}" for instance in here["rpc_server_instances"]]
    assert [share["endpoint"] for share in report["split"]] == [*endpoints, None]
    for share in report["split"][:2]:
        for part, limit in (("weights", 2), ("kv", 2), ("compute", 25)):
            assert abs(share[part]["difference_percent"]) <= limit, (share["name"], part)
    assert "the plan was right within its limit of 1 %" in report["split_note"]
    assert report["model"]["layers"] == 8
    assert " over 2 workers\n" in (folder / "report.md").read_text()
    assert sorted(path.name for path in folder.iterdir()) == [
        "history.jsonl",
        "report.json",
        "report.md",
    ]

    # Make the earlier run look a thousand times as fast.
    quicker = json.loads(lines[1])
    for test in quicker["tests"]:
        test["tokens_per_second"]["mean"] *= 1000
    (folder / "history.jsonl").write_text(json.dumps(quicker) + "\n")
    given = ("-e", "benchmark_tolerance_percent=90")
    slower = play_here("benchmark.yml", tmp_path, here, *numbers, *given)
    assert slower.returncode == 2, slower.stdout
    assert "Slower by more than 90 % than the median of 1 earlier run of the same build, model and" in slower.stdout
    assert len((folder / "history.jsonl").read_text().splitlines()) == 2
    assert json.loads((folder / "report.json").read_text())["time"] > report["time"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("plan", "extra_args", "expected"),
    [
        (True, "--split-mode tensor --flash-attn on -ub 64", {"split_mode": "tensor", "flash_attn": "on"}),
        (
            False,
            "--flash-attn off -ctk q8_0 -ub 64",
            {"split_mode": "layer", "flash_attn": "off", "cache_type_k": "q8_0"},
        ),
    ],
    ids=["without-a-plan-for-it", "told-not-to-plan"],
)
def test_what_is_measured_is_what_inference_runs_with(
    tmp_path: Path, here: dict[str, Any], plan: bool, extra_args: str, expected: dict[str, Any]
) -> None:
    host = {
        **here,
        "inference_plan": plan,
        "inference_extra_args": extra_args.split(),
        "benchmark_n_prompt": 16,
        "benchmark_n_gen": 2,
        "benchmark_repetitions": 1,
    }
    done = play_here("benchmark.yml", tmp_path, host)
    assert done.returncode == 0, done.stdout
    measured = json.loads((tmp_path / "benchmark" / "report.json").read_text())["history"][-1]
    assert {name: measured["options"][name] for name in expected} == expected
    assert measured["options"]["tensor_split"] == []
    assert {test["ubatch_size"] for test in measured["tests"]} == {64}


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {},
            "Line 2 of the history {folder}/history.jsonl is not a benchmark run (it is not JSON from column 10 on)",
        ),
        ({"benchmark_repetitions": "many"}, "benchmark_repetitions is many: give a whole number from 1 to 1000."),
        (
            {"benchmark_folder": "no/such/folder"},
            "The report cannot be written to benchmark_folder, {parent}/no/such/folder: it is not a writable folder on",
        ),
    ],
    ids=["broken-history", "number", "folder"],
)
def test_what_stands_in_the_way_is_said_before_any_host_is_asked(
    tmp_path: Path, variables: dict[str, Any], sentence: str
) -> None:
    folder = tmp_path / "benchmark"
    folder.mkdir()
    broken = json.dumps(run("2026-10-01T02:03:04Z", 30, 2)) + '\n{"time": \n'
    (folder / "history.jsonl").write_text(broken)
    # Nobody answers at TEST-NET-1.
    host = {"ansible_connection": "ssh", "ansible_host": "192.0.2.1", "gguf_model_path": "/srv/model.gguf", **variables}
    done = play_here("benchmark.yml", tmp_path, host)
    assert done.returncode == 2
    assert sentence.format(folder=folder, parent=tmp_path) in done.stdout
    assert "UNREACHABLE" not in done.stdout
    assert (folder / "history.jsonl").read_text() == broken
    assert [path.name for path in folder.iterdir()] == ["history.jsonl"]
