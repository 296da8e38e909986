# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a run for people, and the filter `llama_report`."""

from __future__ import annotations

import copy
import json
import unicodedata
from pathlib import Path

import pytest
from ansible_collections.llama_cpp.cluster.plugins.filter.llama_report import FilterModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.perf_log import parse_log
from ansible_collections.llama_cpp.cluster.plugins.module_utils._status.report import render_report, safe_text
from hypothesis import given
from hypothesis import strategies as st

LOGS = Path(__file__).resolve().parents[2] / "fixtures" / "logs"
GIB = 1024**3


def worker(endpoint, state="ready", version="7.0.0", memory=(24 * GIB,)):
    protocol = None if version is None else dict(zip(("version", "major", "minor", "patch"), (version, 7, 0, 0)))
    devices = [{"index": i, "memory_free_bytes": n, "memory_total_bytes": n} for i, n in enumerate(memory)]
    return {"endpoint": endpoint, "state": state, "protocol": protocol, "devices": devices}


WORKERS = [worker("127.0.0.1:50061"), worker("127.0.0.1:50062")]


def run(log="completion-0c1e57098-rpc7.0.0-lv4", **changes):
    figures = parse_log((LOGS / f"{log}.log").read_text(encoding="utf-8", errors="replace"))
    return {**figures, "text": " two lines\nof text\n", "wall_time_ms": 1234.5, "failure": None, **changes}


REPORT = """\
Workers (memory in MiB; 9 of 9 layers offloaded)
  endpoint         state  protocol   free  total  model    KV  compute  share  layers
  127.0.0.1:50061  ready  7.0.0     24576  24576   15.0  10.0     23.3    37%       5
  127.0.0.1:50062  ready  7.0.0     24576  24576   25.6   6.0     75.5    63%       4
  master: CPU      -      -             -      -   16.6     -     13.1      -       0

Text
 two lines
of text

Performance
                   ms  tokens  tokens/s
  load          125.9       -         -
  prompt eval     5.8       2     342.9
  eval           20.4       7     344.1
  sampling        1.3      10         -
  total          27.9       9         -
  wall time    1234.5       -         -"""


def test_a_good_run_reads_like_this():
    report = FilterModule().filters()["llama_report"]
    assert report(json.loads(json.dumps(run())), workers=WORKERS) == REPORT


def with_devices(**by_name):
    """Return a run with changed values of devices."""
    result = run()
    for device in result["devices"]:
        device.update(by_name.get(device["name"].split("[")[0], {}))
    return result


ONE = {"endpoint": "127.0.0.1:50061"}


@pytest.mark.parametrize(
    ("result", "workers", "row", "words"),
    [
        # Without workers, the endpoints of the run are shown.
        (run(), [], 2, "127.0.0.1:50061 - - - - 15.0 10.0 23.3 37% 5"),
        (run(), [*WORKERS, worker("h:1", "refused", None, ())], 4, "h:1 refused - - - - - - - -"),
        # Devices of one worker are one row, and a GPU of the master has its share.
        (
            with_devices(RPC0=ONE),
            [worker("127.0.0.1:50061", memory=(GIB, 2 * GIB))],
            2,
            "127.0.0.1:50061 ready 7.0.0 3072 3072 40.5 16.0 98.8 100% 9",
        ),
        (with_devices(CPU={"name": "CUDA0"}), WORKERS, 4, "master: CUDA0 - - - - 16.6 - 13.1 29% 0"),
        (
            with_devices(RPC0={"repacked_mib": 7.5}),
            WORKERS,
            0,
            "Workers (memory in MiB; 9 of 9 layers offloaded; 15.0 of 40.5 of weights repacked)",
        ),
        (run("completion-4227c9be-rpc2.0.0"), [], -3, "sampling 1.9 77 41644.1"),
    ],
    ids=["no-workers", "did-nothing", "two-devices", "gpu-of-the-master", "repacked", "older-build"],
)
def test_a_row_of_the_report(result, workers, row, words):
    assert " ".join(render_report(result, workers).splitlines()[row].split()) == words


def test_a_failure_comes_first_in_one_line():
    failure = {"kind": "worker_lost", "endpoint": "h:1", "message": "The worker h:1 went away;\nstart it again."}
    report = render_report(
        run(perf=None, devices=[], offload=None, text=None, wall_time_ms=None, failure=failure), WORKERS
    )
    first, rest = report.split("\n", 1)
    assert first == "Failed (worker_lost, h:1): The worker h:1 went away; start it again."
    assert rest.startswith("\nWorkers (memory in MiB)\n")
    assert "\nText\n-\n" in rest
    assert rest.endswith("\n  wall time     -       -         -")


def test_tables_stay_within_100_columns_with_long_addresses_and_large_memory():
    result = run()
    for device, endpoint in zip(result["devices"][1:], ("192.168.100.101:50052", "192.168.100.102:50052")):
        device.update(endpoint=endpoint, model_buffer_mib=65432.1, kv_buffer_mib=12345.6, repacked_mib=61234.5)
    workers = [worker(f"192.168.100.10{n}:50052", memory=(200 * GIB,)) for n in (1, 2)]
    assert max(map(len, render_report(result, workers).splitlines())) <= 100


HOSTILE = "\x1b]0;title\x07 \x1b[2J\x9b31m red\r over\x08\x7f \u202eesrever"


@pytest.mark.parametrize(
    "place",
    [
        lambda result, _: result.update(text=HOSTILE),
        lambda result, _: result.update(failure={"kind": HOSTILE, "endpoint": HOSTILE, "message": HOSTILE}),
        lambda result, _: result["devices"][0].update(name=HOSTILE),
        lambda result, _: result["devices"][1].update(endpoint=HOSTILE),
        lambda _, workers: workers[0].update(state=HOSTILE, endpoint=HOSTILE),
        lambda _, workers: workers[0]["protocol"].update(version=HOSTILE),
    ],
    ids=["text", "failure", "device", "endpoint", "worker", "protocol"],
)
def test_no_control_character_reaches_the_terminal(place):
    result, workers = run(), copy.deepcopy(WORKERS)
    place(result, workers)
    report = render_report(result, workers)
    assert "esrever" in report
    assert [c for c in report if unicodedata.category(c) == "Cc" and c != "\n"] == []
    assert "\u202e" not in report


@given(st.text())
def test_safe_text_keeps_all_but_what_steers_a_terminal(text):
    safe = safe_text(text)
    assert {unicodedata.category(c) for c in safe if c not in "\n\t"}.isdisjoint({"Cc", "Cs"})
    assert [c for c in safe if c.isalnum()] == [c for c in text if c.isalnum()]
    assert safe_text("a\tb\r\nc 漢字 👋🏽 é") == "a\tb\nc 漢字 👋🏽 é"
