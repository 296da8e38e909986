# SPDX-License-Identifier: GPL-3.0-or-later
"""The documentation matches the code: the keys of results, the states of a worker, the kinds of failure."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from typing import Any, cast

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc import worker_status
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run import inference, perf_log, worker_run
from ansible_collections.llama_cpp.cluster.plugins.modules import distributed_inference, llama_bench

from support.tree import COLLECTION, ROOT, documentation

WORKER_INFO = {
    "workers": {
        "endpoint": None,
        "host": None,
        "port": None,
        "address": None,
        "state": None,
        "reachable": None,
        "protocol": {"version": None, "major": None, "minor": None, "patch": None},
        "devices": {"index": None, "memory_free_bytes": None, "memory_total_bytes": None},
        "message": None,
    },
    "all_ready": None,
    "counts": None,
}
PERF_LOG = {
    "perf": {
        "load": {"time_ms": None},
        "sampling": dict.fromkeys(
            ["time_ms", "samplers_time_ms", "runs", "tokens", "ms_per_token", "tokens_per_second"]
        ),
        "prompt_eval": dict.fromkeys(["time_ms", "tokens", "ms_per_token", "tokens_per_second"]),
        "eval": dict.fromkeys(["time_ms", "runs", "ms_per_token", "tokens_per_second"]),
        "total": {"time_ms": None, "tokens": None},
        "unaccounted": {"time_ms": None, "percent": None},
        "graphs_reused": None,
    },
    "devices": dict.fromkeys(["name", "endpoint", "layers", "model_buffer_mib", "kv_buffer_mib", "compute_buffer_mib"]),
    "offload": {"layers": None, "layers_total": None},
    "build": {"number": None, "commit": None, "version": None},
}
OF_FILTER = {
    **PERF_LOG,
    "requests": {
        "slot": None,
        "task": None,
        **{name: PERF_LOG["perf"][name] for name in ("prompt_eval", "eval", "total", "graphs_reused")},
    },
}
INFERENCE = {
    **PERF_LOG,
    # The page names the filter for these.
    "perf": None,
    "devices": None,
    "text": None,
    "wall_time_ms": None,
    "attempts": None,
    "command": None,
    "failure": {"kind": None, "endpoint": None, "message": None},
    "log_tail": None,
    "msg": None,
}


def documented(name: str, kind: str = "module") -> dict[str, Any]:
    return dict(documentation(kind)[f"{COLLECTION}.{name}"]["return"])


def keys(values: dict[str, Any]) -> dict[str, Any]:
    """Return the tree of keys that a page promises; keys that another page describes come from the sample."""
    return {
        name: keys(value["contains"])
        if "contains" in value
        else shown(value["sample"])
        if name in (*OF_FILTER, "protocol") and "sample" in value
        else None
        for name, value in values.items()
    }


def shown(sample: Any) -> dict[str, Any] | None:
    """Return the tree of keys of a sample; for a list, that of its only entry."""
    if isinstance(sample, list):
        [sample] = sample
    return {name: shown(inner) for name, inner in sample.items()} if isinstance(sample, dict) else None


OF_EVERY_RUN = ("_run/worker_run.py", "_run/worker_task.py")
OF_INFERENCE = (*OF_EVERY_RUN, "_run/inference.py", "../modules/distributed_inference.py")
OF_BENCH = (*OF_EVERY_RUN, "_measure/bench.py", "../modules/llama_bench.py")


def produced_kinds(names: tuple[str, ...] = OF_INFERENCE) -> set[str]:
    """Return every kind that the code gives a failure: the first argument of its class, or the table by state."""
    found = set(worker_run._KIND_BY_STATE.values())
    failure = re.compile("|".join(rf"\b{c.__name__}\b" for c in [worker_run.Failure, inference.OutputLost]))
    for name in names:
        for node in ast.walk(ast.parse((ROOT / "plugins/module_utils" / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and failure.search(ast.unparse(node.func)):
                kind = node.args[0]
                if isinstance(kind, ast.Constant):
                    found.add(kind.value)
                else:
                    assert "_KIND_BY_STATE" in ast.unparse(kind), f"{name}:{node.lineno} gives a computed kind"
    return found


def named_first(description: str | list[str]) -> list[str]:
    """Return the names that a description lists as `V(name): What it means.`"""
    text = "\n".join([description] if isinstance(description, str) else description)
    return re.findall(r"^V\((\w+)\): ", text, re.MULTILINE)


def table(page: str, heading: str) -> list[str]:
    """Return the first column of the table below a heading."""
    section = (ROOT / page).read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "contract"),
    [
        pytest.param(documented("rpc_worker_info"), WORKER_INFO, id="rpc_worker_info"),
        pytest.param(documented("distributed_inference"), INFERENCE, id="distributed_inference"),
        pytest.param(documented("llama_perf", "filter")["_value"]["contains"], OF_FILTER, id="llama_perf"),
    ],
)
def test_documented_keys_are_the_contract(page: dict[str, Any], contract: dict[str, Any]) -> None:
    assert keys(page) == contract


def test_the_code_returns_what_is_documented() -> None:
    always = {name for name, value in documented("distributed_inference").items() if value["returned"] == "always"}
    assert distributed_inference.Task(cast("Any", None)).result.keys() == always | {"changed"}
    assert {field.name for field in fields(worker_status.WorkerStatus)} == WORKER_INFO["workers"].keys()
    assert set(worker_run.Failure._fields) == INFERENCE["failure"].keys()
    text = (ROOT / "tests/fixtures/logs/completion-4227c9be-rpc2.0.0.log").read_text(encoding="utf-8")
    log = perf_log.parse_log(text)
    assert {name: shown(value) for name, value in log.items() if name != "devices"} == {
        name: value for name, value in PERF_LOG.items() if name != "devices"
    }
    assert shown(log["devices"][0]) == PERF_LOG["devices"]


def test_states_are_documented() -> None:
    states = documented("rpc_worker_info")
    assert named_first(states["workers"]["contains"]["state"]["description"]) == list(worker_status.STATES)
    assert set(states["counts"]["sample"]) == set(worker_status.STATES)
    assert table("docs/reference/results-and-failures.md", "States of a worker") == list(worker_status.STATES)


def test_kinds_of_failure_are_documented() -> None:
    kinds = produced_kinds()
    listed = named_first(documented("distributed_inference")["failure"]["contains"]["kind"]["description"])
    assert (set(listed), len(listed)) == (kinds, len(kinds))
    assert table("docs/reference/results-and-failures.md", "Failures of a run") == listed


def test_kinds_of_failure_of_a_benchmark_are_those_of_a_run() -> None:
    assert produced_kinds(OF_BENCH) == produced_kinds()
    assert "M(llama_cpp.cluster.distributed_inference)" in documented("llama_bench")["failure"]["description"]


def test_a_benchmark_returns_what_is_documented() -> None:
    page = documented("llama_bench")
    always = {name for name, value in page.items() if value["returned"] == "always"}
    assert llama_bench.Task(cast("Any", None)).result.keys() == always | {"changed"}
    assert set(page) == always | {"log_tail", "msg"}
