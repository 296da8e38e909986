# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of measuring on the running cluster: the documented playbook as it is written, and playbook benchmark."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from support.lab.hosts import ADDRESS, PORT, ROOT, WORKERS, ask, eventually, play

if TYPE_CHECKING:
    from pathlib import Path

ENDPOINTS = [f"{ADDRESS[worker]}:{PORT}" for worker in WORKERS]
MODEL = "/srv/models/random-weights.gguf"
# Fewer tokens than documented, as those would take minutes.
SHORT = {"n_prompt": [16], "n_gen": [2], "repetitions": 2}


@pytest.fixture(autouse=True)
def ready() -> None:
    eventually(lambda: set(ask("master", *ENDPOINTS).values()) == {"ready"}, 30, "all workers are ready")


@pytest.mark.long
def test_the_documented_playbook_says_how_quick_the_cluster_is(tmp_path: Path) -> None:
    """Run the playbook of docs/how-to/benchmark.md with the model of the lab."""
    text = re.search(r"```yaml\n(.*?)```", (ROOT / "docs/how-to/benchmark.md").read_text(), re.DOTALL)
    assert text
    plays: list[dict[str, Any]] = yaml.safe_load(text[1].replace("/srv/models/model.gguf", MODEL))
    plays[0]["module_defaults"] = {"llama_cpp.cluster.llama_bench": SHORT}
    path = tmp_path / "play.yml"
    path.write_text(yaml.safe_dump(plays, sort_keys=False))
    done = play(path)
    assert "changed=0" in done.stdout
    shown = re.findall(r"(pp16|tg2): ([\d.]+) ± ([\d.]+)", done.stdout)
    assert [name for name, _mean, _spread in shown] == ["pp16", "tg2"]
    assert all(float(mean) > 0 for _name, mean, _spread in shown)


@pytest.mark.long
def test_playbook_benchmark_shows_what_each_worker_was_planned_and_holds(tmp_path: Path) -> None:
    given = {
        "benchmark_folder": str(tmp_path / "benchmark"),
        "benchmark_n_prompt": 16,
        "benchmark_n_gen": 2,
        "benchmark_repetitions": 2,
        "benchmark_n_predict": 2,
        "inference_report_path": "",
    }
    done = play("benchmark", "-e", json.dumps(given))
    recap = done.stdout.partition("PLAY RECAP")[2]
    assert set(re.findall(r"changed=(\d+)", recap)) == {"0"}
    markdown = (tmp_path / "benchmark/report.md").read_text()
    for worker, endpoint in zip(WORKERS, ENDPOINTS):
        assert f"| {worker} {endpoint} |" in markdown
    report = json.loads((tmp_path / "benchmark/report.json").read_text())
    assert len((tmp_path / "benchmark/history.jsonl").read_text().splitlines()) == 1
    held = {part["name"]: part for part in report["split"] if part["endpoint"]}
    assert {name: part["endpoint"] for name, part in held.items()} == dict(zip(WORKERS, ENDPOINTS))
    for part in held.values():
        assert abs(part["weights"]["difference_percent"]) < 2
        assert abs(part["kv"]["difference_percent"]) < 2
    assert [test["name"] for test in report["tests"]] == ["pp16", "tg2"]
