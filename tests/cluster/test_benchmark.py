# SPDX-License-Identifier: GPL-3.0-or-later
"""Measuring on the running cluster: the documented playbook as it is written, and playbook benchmark."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from support.lab.hosts import ADDRESS, PORT, ROOT, WORKERS, ask, eventually, play, ssh

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDPOINTS = [f"{ADDRESS[worker]}:{PORT}" for worker in WORKERS]
MODEL = "/srv/models/random-weights.gguf"
FOLDER = "/var/tmp/llama-benchmark"
# Other tokens than documented, which would take minutes.
SHORT = {"n_prompt": [16], "n_gen": [2], "repetitions": 2}
# As if the cluster had been a hundred times quicker: "mean": 8.5 -> "mean": 850.
QUICKER = """
import json, pathlib, sys
path = pathlib.Path(sys.argv[1])
baseline = json.loads(path.read_text())
for test in baseline["tests"]:
    rate = test["tokens_per_second"]
    rate.update({name: 100 * value for name, value in rate.items() if name in ("mean", "min", "max")})
path.write_text(json.dumps(baseline))
"""


@pytest.fixture(autouse=True)
def ready() -> None:
    eventually(lambda: set(ask("master", *ENDPOINTS).values()) == {"ready"}, 30, "all workers are ready")


@pytest.fixture
def documented(tmp_path: Path) -> Iterator[Path]:
    """The playbook of docs/benchmarking.md, with the model of the lab and a place of its own for the baseline."""
    text = re.search(r"```yaml\n(.*?)```", (ROOT / "docs/benchmarking.md").read_text(), re.DOTALL)
    assert text
    plays: list[dict[str, Any]] = yaml.safe_load(
        text[1].replace("/srv/models/model.gguf", MODEL).replace("/var/lib/llama_cpp/", f"{FOLDER}/")
    )
    plays[0]["module_defaults"] = {"llama_cpp.cluster.llama_bench": SHORT}
    path = tmp_path / "play.yml"
    path.write_text(yaml.safe_dump(plays, sort_keys=False))
    ssh("master", "mkdir", "-p", FOLDER)
    try:
        yield path
    finally:
        ssh("master", "rm", "-rf", FOLDER)


@pytest.mark.long
def test_the_documented_playbook_writes_a_baseline_and_fails_when_it_became_slower(documented: Path) -> None:
    first = play(documented)
    assert "changed=1" in first.stdout
    shown = re.findall(r"(pp16|tg2): ([\d.]+) ± ([\d.]+)", first.stdout)
    assert [name for name, _mean, _spread in shown] == ["pp16", "tg2"]
    assert all(float(mean) > 0 for _name, mean, _spread in shown)

    ssh("master", "python3", "-", f"{FOLDER}/bench.json", text_in=QUICKER)
    later = play(documented, check=False)
    assert later.returncode != 0
    said = re.sub(r"\s+", " ", later.stdout)
    assert f"Slower than the baseline {FOLDER}/bench.json: pp16" in said
    assert "; tg2" in said


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
    page = (tmp_path / "benchmark/report.html").read_text()
    markdown = (tmp_path / "benchmark/report.md").read_text()
    for worker, endpoint in zip(WORKERS, ENDPOINTS):
        assert worker in page
        assert endpoint in page
        assert endpoint in markdown
    report = json.loads((tmp_path / "benchmark/report.json").read_text())
    assert len((tmp_path / "benchmark/history.jsonl").read_text().splitlines()) == 1
    held = {part["name"]: part for part in report["split"] if part["endpoint"]}
    assert {name: part["endpoint"] for name, part in held.items()} == dict(zip(WORKERS, ENDPOINTS))
    for part in held.values():
        assert abs(part["weights"]["difference_percent"]) < 2
        assert abs(part["kv"]["difference_percent"]) < 2
    assert [test["name"] for test in report["tests"]] == ["pp16", "tg2"]
