# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a run for people, and the filter `llama_report`."""

from __future__ import annotations

import copy
import json
import unicodedata
from contextlib import suppress
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.filter.llama_report import FilterModule, llama_report
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.perf_log import parse_log
from ansible_collections.llama_cpp.cluster.plugins.module_utils._status.report import (
    ReportError,
    render_report,
    safe_text,
)
from hypothesis import given, settings
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
    assert render_report(run(), WORKERS) == REPORT


def test_an_older_build_has_its_number_of_samples_and_their_speed():
    report = render_report(run("completion-4227c9be-rpc2.0.0"))
    assert "  sampling        1.9      77   41644.1\n" in report


def test_without_workers_the_endpoints_of_the_run_are_shown():
    lines = render_report(run()).splitlines()
    assert lines[2].split() == ["127.0.0.1:50061", "-", "-", "-", "-", "15.0", "10.0", "23.3", "37%", "5"]


def test_a_worker_that_did_nothing_has_dashes():
    lines = render_report(run(), [*WORKERS, worker("h:1", "refused", None, ())]).splitlines()
    assert lines[4].split() == ["h:1", "refused", *"--------"]


def test_devices_of_one_worker_are_one_row():
    result = run()
    for device in result["devices"]:
        device["endpoint"] = device["endpoint"] and "127.0.0.1:50061"
    lines = render_report(result, [worker("127.0.0.1:50061", memory=(GIB, 2 * GIB))]).splitlines()
    assert lines[2].split()[3:] == ["3072", "3072", "40.5", "16.0", "98.8", "100%", "9"]


def test_what_workers_have_repacked_is_said_if_one_of_them_says_it():
    result = run()
    mib = {"127.0.0.1:50061": 14.96, "127.0.0.1:50062": None}
    for device in result["devices"]:
        device["repacked_mib"] = mib.get(device["endpoint"])
    first, rest = render_report(result, WORKERS).split("\n", 1)
    assert first == "Workers (memory in MiB; 9 of 9 layers offloaded; 15.0 of 40.5 of weights repacked)"
    assert rest == REPORT.split("\n", 1)[1]
    for device in result["devices"]:
        device["repacked_mib"] = None
    assert render_report(result, WORKERS) == REPORT


def test_a_gpu_of_the_master_has_its_share():
    result = run()
    result["devices"][0]["name"] = "CUDA0"
    assert [line.split()[-2] for line in render_report(result, WORKERS).splitlines()[2:5]] == ["26%", "45%", "29%"]


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


def test_a_long_text_is_kept_whole():
    text = "word " * 20_000
    assert text in render_report(run(text=text))


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


def test_newlines_tabs_and_wide_characters_stay():
    assert safe_text("a\tb\r\nc 漢字 👋🏽 é") == "a\tb\nc 漢字 👋🏽 é"


@pytest.mark.parametrize("key", ["text", "perf", "devices", "wall_time_ms", "failure"])
def test_a_missing_key_is_named(key):
    result = run()
    del result[key]
    with pytest.raises(ReportError, match=rf"^The report needs the key '{key}', which the result does not have\.$"):
        render_report(result, WORKERS)


@pytest.mark.parametrize(
    ("result", "workers", "message"),
    [
        (None, [], "The report needs the result as a dictionary, and got nothing."),
        ("text", [], "The report needs the result as a dictionary, and got a text."),
        (run(devices="x"), [], "The report needs the key 'devices' as a list, and got a text."),
        (run(devices=[{"name": "CPU"}]), [], "The report needs the key 'endpoint', which a device does not have."),
        (run(perf={}), [], "The report needs the key 'load', which the key 'perf' does not have."),
        (run(wall_time_ms="9"), [], "The report needs a number or null under the key 'wall_time_ms', and got a text."),
        (
            run(wall_time_ms=float("nan")),
            [],
            "The report needs a finite number under the key 'wall_time_ms', and got one that no run can have.",
        ),
        (run(offload={}), [], "The report needs the key 'layers', which the offload does not have."),
        (run(failure={"kind": "x"}), [], "The report needs the key 'message', which the failure does not have."),
        (run(), "x", "The report needs the workers as a list, and got a text."),
        (run(), [{"endpoint": "h:1"}], "The report needs the key 'state', which a worker does not have."),
    ],
)
def test_what_is_no_result_is_one_sentence(result, workers, message):
    with pytest.raises(ReportError) as error:
        render_report(result, workers)
    assert str(error.value) == message


leaf = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))
anything = st.recursive(leaf, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner)))


@settings(max_examples=200)
@given(st.data())
def test_no_result_makes_the_report_raise_anything_but_its_own_error(data):
    result, workers = run("completion-0c1e57098-rpc7.0.0-lv4"), copy.deepcopy(WORKERS)
    place = data.draw(st.sampled_from([*paths(result), *(("workers", *path) for path in paths(workers))]))
    value = data.draw(anything)
    target = workers if place[0] == "workers" else result
    for key in place[1:-1] if place[0] == "workers" else place[:-1]:
        target = target[key]
    target[place[-1]] = value
    with suppress(ReportError):
        assert render_report(result, workers).encode()


def paths(value, here=()):
    found = [here] if here else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += paths(inner, (*here, key))
    return found


def test_the_filter_gives_the_report_and_its_errors_are_the_filters():
    report = FilterModule().filters()["llama_report"]
    assert report(json.loads(json.dumps(run())), workers=WORKERS) == REPORT
    with pytest.raises(AnsibleFilterError, match="'text'"):
        llama_report({"failure": None, "devices": []})
