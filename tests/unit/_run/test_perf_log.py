# SPDX-License-Identifier: GPL-3.0-or-later
"""The log parser and the filter `llama_perf`, on recorded real output; figures were read off the logs by eye."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.filter.llama_perf import FilterModule, llama_perf
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.perf_log import (
    PerfLogError,
    parse_log,
    parse_requests,
)
from hypothesis import given, settings
from hypothesis import strategies as st

LOGS = Path(__file__).resolve().parents[2] / "fixtures" / "logs"
NEW = "completion-0c1e57098-rpc7.0.0"
OLD = "completion-4227c9be-rpc2.0.0"
CLI = "cli-0c1e57098-rpc7.0.0"


def read(name: str) -> str:
    with (LOGS / f"{name}.log").open(encoding="utf-8", errors="replace", newline="") as file:
        return file.read()


def line(*values):
    """Write values in a line, with a dash for None."""
    return " ".join("-" if value is None else str(value) for value in values)


def figures(perf):
    """Write a performance report in a line, in the order of the log."""
    sampling = [perf["sampling"][key] for key in ("time_ms", "samplers_time_ms", "runs", "tokens")]
    rest = [line(*perf[name].values()) for name in ("prompt_eval", "eval", "total", "unaccounted")]
    return " | ".join([line(perf["load"]["time_ms"]), line(*sampling), *rest, line(perf["graphs_reused"])])


def devices(text, **options):
    return [line(*device.values()) for device in parse_log(text, require_perf=False, **options)["devices"]]


# A line for each log. load; sampling (ms, samplers ms, runs, tokens); prompt eval and eval (ms, tokens, ms per token,
# tokens per second); total (ms, tokens); unaccounted (ms, percent); graphs reused
PERF = {
    NEW: "148.68 | 30.54 1.92 - 77 | 13.37 13 1.03 972.11 | 218.51 63 3.47 288.32 | 264.68 76 | 2.26 0.9 | 62",
    f"{NEW}-lv4": "125.91 | 1.27 0.23 - 10 | 5.83 2 2.92 342.88 | 20.35 7 2.91 344.05 | 27.86 9 | 0.41 1.5 | 7",
    f"{NEW}-1worker-lv4-one-token":
        "30.31 | 0.08 0.02 - 18 | 10.28 17 0.6 1653.05 | 0.0 1 0.0 - | 10.53 18 | 0.17 1.6 | 0",
    f"{NEW}-2workers-lv4-colors":
        "61.25 | 4.98 0.16 - 41 | 11.85 17 0.7 1434.48 | 31.29 23 1.36 734.99 | 48.68 40 | 0.55 1.1 | 22",
    f"{NEW}-2workers-lv4-tensor":
        "659.1 | 8.8 0.2 - 41 | 15.69 17 0.92 1083.29 | 234.98 23 10.22 97.88 | 260.9 40 | 1.43 0.5 | 22",
    "completion-b11549-rpc8.0.0-2workers-lv4":
        "77.22 | 1.2 0.19 - 28 | 8.95 4 2.24 447.03 | 45.35 23 1.97 507.21 | 56.93 27 | 1.44 2.5 | 22",
    f"{NEW}-3workers-lv4":
        "33.01 | 8.35 0.17 - 41 | 10.86 17 0.64 1565.81 | 40.38 23 1.76 569.59 | 60.14 40 | 0.56 0.9 | 22",
    OLD: "279.85 | 1.85 - 77 - | 12.17 13 0.94 1068.38 | 218.98 63 3.48 287.7 | 237.96 76 | - - | 60",
    f"{OLD}-1worker-colors-prefix-timestamps-verbose":
        "41.95 | 0.16 - 41 - | 9.79 17 0.58 1736.11 | 28.02 23 1.22 820.75 | 39.92 40 | - - | 21",
    f"{CLI}-2workers": "- | - - - - | - - - 2034.7 | - - - 544.1 | - - | - - | -",
    f"{CLI}-2workers-lv4-colors": "- | - - - - | - - - 2068.5 | - - - 555.9 | - - | - - | -",
}  # fmt: skip

# name, endpoint, layers, model, KV and compute MiB
DEVICES = {
    NEW: [],
    f"{NEW}-lv4": [
        "CPU - 0 16.6 - 13.05",
        "RPC0[127.0.0.1:50061] 127.0.0.1:50061 5 14.96 10.0 23.29",
        "RPC0[127.0.0.1:50062] 127.0.0.1:50062 4 25.58 6.0 75.55",
    ],
    f"{NEW}-2workers-lv4-colors": [
        "CPU - 0 0.48 - 9.05",
        "RPC0[127.0.0.1:24818] 127.0.0.1:24818 4 9.46 3.0 19.3",
        "RPC0[127.0.0.1:2751] 127.0.0.1:2751 5 14.96 5.0 19.29",
    ],
    f"{NEW}-2workers-lv4-partial": [
        "CPU - 4 12.93 4.0 13.26",
        "RPC0[127.0.0.1:13006] 127.0.0.1:13006 3 8.98 3.0 11.26",
        "RPC0[127.0.0.1:4580] 127.0.0.1:4580 2 3.47 1.0 10.25",
    ],
    # Debug output has the layers, and before them a dry run, whose compute buffers do not count.
    f"{NEW}-2workers-lv5-partial": [
        "CPU - 4 12.93 4.0 13.26",
        "RPC0[127.0.0.1:22627] 127.0.0.1:22627 3 8.98 3.0 11.26",
        "RPC0[127.0.0.1:24494] 127.0.0.1:24494 2 3.47 1.0 10.25",
    ],
    f"{NEW}-2workers-lv4-skewed": [
        "CPU - 0 0.48 - 9.05",
        "RPC0[127.0.0.1:2269] 127.0.0.1:2269 9 24.42 8.0 19.3",
    ],
    f"{NEW}-2workers-lv4-tensor": [
        "CPU - - 0.48 - 3.01",
        "Meta() - - 12.23 4.0 12.26",
    ],
    f"{NEW}-3workers-lv4": [
        "CPU - 0 0.48 - 9.05",
        "RPC0[127.0.0.1:23765] 127.0.0.1:23765 3 6.47 2.0 18.3",
        "RPC0[127.0.0.1:26272] 127.0.0.1:26272 3 8.98 3.0 19.29",
        "RPC0[127.0.0.1:3506] 127.0.0.1:3506 3 8.98 3.0 19.29",
    ],
    OLD: [
        "RPC[127.0.0.1:50071] 127.0.0.1:50071 5 14.96 20.0 77.01",
        "RPC[127.0.0.1:50072] 127.0.0.1:50072 4 25.58 12.0 77.01",
        "CPU - 0 16.6 - 10.01",
    ],
    f"{OLD}-1worker-colors-prefix-timestamps-verbose": [
        "CPU - 0 0.48 - 4.01",
        "RPC[127.0.0.1:14104] 127.0.0.1:14104 9 24.42 8.0 23.01",
    ],
    # Older builds keep the output layer on the master's CPU unless all layers are offloaded.
    f"{OLD}-2workers-partial": [
        "CPU - 4 9.94 3.0 23.01",
        "RPC[127.0.0.1:1754] 127.0.0.1:1754 2 5.98 2.0 23.01",
        "RPC[127.0.0.1:22326] 127.0.0.1:22326 3 8.98 3.0 23.01",
    ],
    f"{CLI}-2workers": [],
    f"{CLI}-2workers-lv4-colors": [
        "CPU - 0 0.48 - 9.05",
        "RPC0[127.0.0.1:26397] 127.0.0.1:26397 5 14.96 5.0 19.29",
        "RPC0[127.0.0.1:27446] 127.0.0.1:27446 4 9.46 3.0 19.29",
    ],
}  # fmt: skip


OFFLOAD = {NEW: None, f"{NEW}-lv4": [9, 9], f"{NEW}-2workers-lv4-partial": [5, 9], f"{OLD}-2workers-partial": [5, 9]}
BUILD = {
    NEW: None,
    OLD: [1, "4227c9b", None],
    "protocol-mismatch-4227c9be-against-rpc7.0.0": [1, "4227c9b", None],
    f"{CLI}-2workers": [1, "0c1e570", None],
}

NO_PERF = [
    "refused-0c1e57098",
    "worker-lost-0c1e57098",
    "protocol-mismatch-0c1e57098-against-rpc2.0.0",
    "protocol-mismatch-4227c9be-against-rpc7.0.0",
    f"{NEW}-1worker-lv4-jsonl",
]


@pytest.mark.parametrize("name", sorted({*PERF, *DEVICES, *OFFLOAD, *BUILD}))
def test_figures_devices_offload_and_build_are_those_of_the_log(name):
    log = parse_log(read(name), require_perf=False)
    found = {
        "figures": figures(log["perf"]) if log["perf"] else None,
        "devices": [line(*device.values()) for device in log["devices"]],
        "offload": log["offload"] and list(log["offload"].values()),
        "build": log["build"] and list(log["build"].values()),
    }
    tables = {"figures": PERF, "devices": DEVICES, "offload": OFFLOAD, "build": BUILD}
    known = {key: table[name] for key, table in tables.items() if name in table}
    assert {key: found[key] for key in known} == known
    # Line ends of Windows change nothing.
    assert parse_log(read(name).replace("\n", "\r\n"), require_perf=False) == log


@pytest.mark.parametrize("prefix", [r"^\S+ [DEIW] ", r"^\S+ (?=[DEIW] )"], ids=["all", "the-time"])
def test_lines_without_a_prefix_say_the_same(prefix):
    text, count = re.subn(prefix, "", read(f"{NEW}-lv4"), flags=re.MULTILINE)
    assert count > 100
    assert parse_log(text) == parse_log(read(f"{NEW}-lv4"))


@pytest.mark.parametrize("name", NO_PERF)
def test_a_run_that_did_not_end_by_itself_has_no_figures_and_says_so(name):
    with pytest.raises(PerfLogError, match=r"^The text holds no llama\.cpp performance figures: [^.]+\.$"):
        parse_log(read(name))
    assert parse_log(read(name), require_perf=False)["perf"] is None


@pytest.mark.parametrize(
    ("line", "build"),
    [
        ("build: 6209 (fb22dd07a) with cc (Debian 12.2.0) 12.2.0 for x86_64-linux-gnu", (6209, "fb22dd07a", None)),
        ("main: build = 1295 (45855b3)", (1295, "45855b3", None)),
        ("version: 6209 (fb22dd07a)", (6209, "fb22dd07a", None)),
        ("version: 0.1.1-dev (build 10470, commit 0c1e57098)", (10470, "0c1e57098", "0.1.1-dev")),
        ("0.00.003.045 I build_info: b1-0c1e570", (1, "0c1e570", None)),
        ("build      : b10470-0c1e570", (10470, "0c1e570", None)),
        (
            "0.00.003.045 I cmn  common_param: common_params_print_info: build 1 (0c1e570) with GNU",
            (1, "0c1e570", None),
        ),
        ("build: 0 (unknown) with cc for x86_64-linux-gnu", (0, None, None)),
        ("a build: 7 (abcdef0) of something else", None),
    ],
)
def test_build_lines_of_all_generations(line, build):
    expected = None if build is None else dict(zip(("number", "commit", "version"), build))
    assert parse_log(line, require_perf=False)["build"] == expected


# Upstream before b3750: no recording exists, these lines follow the format strings of that time.
TIMINGS = """\
llama_print_timings:        load time =    1234.50 ms
llama_print_timings:      sample time =      10.25 ms /   128 runs   (    0.08 ms per token, 12487.80 tokens per second)
llama_print_timings: prompt eval time =     100.00 ms /     6 tokens (   16.67 ms per token,    60.00 tokens per second)
llama_print_timings:        eval time =    1000.00 ms /   127 runs   (    7.87 ms per token,   127.00 tokens per second)
llama_print_timings:       total time =    1110.75 ms /   133 tokens
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TIMINGS, "1234.5 | 10.25 - 128 - | 100.0 6 16.67 60.0 | 1000.0 127 7.87 127.0 | 1110.75 133 | - - | -"),
        (
            "common_perf_print: unaccounted time = -1.25 ms / -0.4 % (total - sampling - prompt eval - eval) / (total)",
            "- | - - - - | - - - - | - - - - | - - | -1.25 -0.4 | -",
        ),
        (
            "[ Prompt: 12,3 t/s | Generation: 3,4 t/s ]\n",
            "- | - - - - | - - - 12.3 | - - - 3.4 | - - | - - | -",
        ),
        *(
            (
                f"common_perf_print: eval time = 0.00 ms / 1 runs   ( {value} ms per token, {value} tokens per second)",
                "- | - - - - | - - - - | 0.0 1 - - | - - | - - | -",
            )
            for value in ("inf", "-nan", "-nan(ind)")
        ),
    ],
    ids=["oldest", "negative", "commas", "inf", "nan", "of-windows"],
)
def test_figures_that_no_recording_has(text, expected):
    assert figures(parse_log(text)["perf"]) == expected


def test_buffers_of_one_device_are_summed_and_the_last_compute_reservation_counts():
    text = (
        "llama_context: constructing llama_context\n"
        "sched_reserve: RPC[h:1] compute buffer size = 9.00 MiB\n"
        # What a dry run has reserved is gone.
        "0.00.048.244 I sched_reserve: reserving ...\n"
        "llm_load_tensors: RPC[h:1] buffer size =    10.01 MiB\n"
        "load_tensors:   CPU_Mapped model buffer size =     1.50 MiB\n"
        "load_tensors:   CPU_REPACK model buffer size =     2.25 MiB\n"
        "llama_kv_cache:        CPU KV buffer size =     3.00 MiB\n"
        "llama_kv_cache:        CPU KV buffer size =     4.00 MiB\n"
        "llama_memory_recurrent:        CPU RS buffer size =     0.50 MiB\n"
        "sched_reserve:        CPU compute buffer size =   100.00 MiB\n"
        "sched_reserve:        CPU compute buffer size =    60.00 MiB\n"
        "load_tensors:    CUDA_Host model buffer size =     7.00 MiB\n"
    )
    assert sorted(devices(text)) == ["CPU - - 3.75 7.5 60.0", "CUDA_Host - - 7.0 - -", "RPC[h:1] h:1 - 10.01 - -"]


def test_two_devices_of_one_worker_are_told_apart():
    lines = [
        "x: using device RPC0 (h:1) (unknown id) - 9 MiB free",
        "x: using device RPC1 (h:1) (unknown id) - 9 MiB free",
        "x: using device RPC2 (g:1) (unknown id) - 9 MiB free",
        "load_tensors: layer   0 assigned to device RPC0, is_swa = 0",
        "load_tensors: layer   1 assigned to device RPC1, is_swa = 0",
        "load_tensors: layer   2 assigned to device RPC1, is_swa = 0",
        "load_tensors: layer   3 assigned to device RPC2, is_swa = 0",
        *(f"load_tensors: {name} model buffer size = 1.00 MiB" for name in ("RPC0[g:1]", "RPC0[h:1]", "RPC1[h:1]")),
    ]
    devices = parse_log("\n".join(lines), require_perf=False)["devices"]
    assert {device["name"]: device["layers"] for device in devices} == {"RPC0[g:1]": 1, "RPC0[h:1]": 1, "RPC1[h:1]": 2}


COLORS = f"{NEW}-2workers-lv4-colors"


@pytest.mark.parametrize(
    ("name", "drop", "shares"),
    [
        *((COLORS, drop, ()) for drop in (r".*using device.*\n", r".*offloaded.*\n", r".*24818\] KV buffer.*\n")),
        *((COLORS, r".*kv_cache: size.*\n", shares) for shares in ((), (1,), (1, 1, 1))),
        (COLORS, r".*(?:kv_cache: size|24818\]).*\n", (1, 1)),
        (f"{NEW}-2workers-lv4-tensor", r"$", (1, 1)),
    ],
    ids=["devices", "offload", "a-share", "cache", "one-share", "three-shares", "a-device-without-a-buffer", "tensor"],
)
def test_layers_are_null_where_the_log_does_not_determine_them(name, drop, shares):
    text, count = re.subn(drop, "", read(name))
    assert count
    assert {device["layers"] for device in parse_log(text, shares=shares)["devices"]} == {None}


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        *((name, (1, 1)) for name in DEVICES if "2workers-" in name and "skewed" not in name and "tensor" not in name),
        (f"{NEW}-2workers-lv4-skewed", (1000, 1)),
        (f"{NEW}-3workers-lv4", (7, 7, 7)),
        (f"{NEW}-lv4", (24105, 24105)),
        (OLD, (1, 1)),
    ],
)
def test_shares_give_the_layers_where_the_cache_does_not_tell_them(name, shares):
    """Recurrent layers, and those with windows or caches of several kinds, log no line from which layers follow."""
    text, dropped = re.subn(r".*(?:kv_cache\w*: size|assigned to device).*\n", "", read(name))
    assert dropped
    assert [it.split()[:3] for it in devices(text, shares=shares)] == [it.split()[:3] for it in DEVICES[name]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The same table stands at the beginning, as a projection, with 79 MiB for the second worker.
        (
            re.sub(r".*buffer size.*\n", "", read(f"{NEW}-lv4")),
            ["RPC0 127.0.0.1:50061 - 14.0 10.0 23.0", "RPC1 127.0.0.1:50062 - 25.0 6.0 75.0", "Host - - 16.0 0.0 13.0"],
        ),
        (
            (
                f"{TIMINGS}llama_memory_breakdown_print: | - RPC[h:1] (RPC[h:1]) | 24105 = 24105 + (48 = 14 + 10 + 23) "
                "+ 17592186044367 |\n"
            ),
            ["RPC[h:1] h:1 - 14.0 10.0 23.0"],
        ),
    ],
    ids=["now", "builds-that-name-a-device-by-its-endpoint"],
)
def test_a_log_with_the_memory_table_alone_gives_the_devices_of_the_table_at_the_end(text, expected):
    assert devices(text) == expected


def test_a_projection_of_memory_is_no_proof_that_a_worker_took_part():
    text = read(f"{NEW}-lv4")
    cut = text[: text.index("load_tensors: ")]
    assert "RPC1 (127.0.0.1:50062)" in cut
    assert parse_log(cut, require_perf=False)["devices"] == []


# Hostile and unlucky text

FORGED = """\
build: 9 (bad0bad) with cc
load_tensors: offloaded 99/99 layers to GPU
load_tensors: RPC0[192.0.2.66:50052] model buffer size =    66.00 MiB
llama_kv_cache: RPC0[192.0.2.66:50052] KV buffer size =    66.00 MiB
common_perf_print:    sampling time =       6.66 ms
common_perf_print:        load time =       6.66 ms
common_perf_print: prompt eval time =       6.66 ms /     6 tokens (    6.66 ms per token,   666.66 tokens per second)
llama_perf_context_print:    graphs reused =        666
common_memory_breakdown_print: |   - RPC9 (192.0.2.66:50052) | 1 = 1 + (  66 =    66 +      66 +      66) +         0 |
[ Prompt: 66.6 t/s | Generation: 66.6 t/s ]
"""


@pytest.mark.parametrize("name", [NEW, f"{NEW}-lv4", OLD, f"{NEW}-2workers-lv4-colors"])
@pytest.mark.parametrize("forged", [FORGED, FORGED.rstrip("\n")], ids=["own-lines", "no-newline-at-its-end"])
def test_generated_text_that_looks_like_a_log_changes_nothing(name, forged):
    text = read(name)
    place = re.search(r"Here's a knock knock joke for kids:|Hirupted", text).end()
    assert parse_log(text[:place] + "\n" + forged + text[place:]) == parse_log(text)


def test_text_without_a_newline_before_the_report_is_not_part_of_it():
    text = read(NEW)
    glued = text.replace(
        "mustmust\n\n0.00.479.116 I common", "must common_perf_print:  load time = 0.00.479.116 I common"
    )
    assert glued != text
    assert parse_log(glued) == parse_log(text)


def test_the_last_of_several_reports_counts_and_takes_nothing_from_the_others():
    for before in (read(OLD), TIMINGS):
        assert figures(parse_log(before + read(NEW))["perf"]) == PERF[NEW]
    assert parse_log(read(NEW) + TIMINGS)["perf"]["graphs_reused"] is None
    assert parse_log(TIMINGS + "llama_print_timings: total time = 1.00 ms")["perf"]["load"]["time_ms"] is None


@pytest.mark.parametrize("name", [f"{NEW}-lv4", OLD, f"{CLI}-2workers-lv4-colors"])
def test_a_log_cut_anywhere_gives_what_it_holds_or_the_error(name):
    text = read(name)
    whole = parse_log(text)
    figures = set(map(json.dumps, leaves(whole["perf"])))
    for end in range(0, len(text), 7):
        cut = parse_log(text[:end], require_perf=False)
        if cut["perf"] is not None:
            # A number that the cut has shortened is not among the figures of the whole log.
            assert {json.dumps(value) for value in leaves(cut["perf"]) if value is not None} <= figures | tokens(text)


def leaves(value):
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    return [value]


def tokens(text):
    """Return the figures of the server's own timing lines, which the chat client's log also has."""
    return {json.dumps(float(number)) for number in re.findall(r"\d+\.\d+(?= t/s)", text)}


# Properties

PIECES = [
    *FORGED.splitlines(),
    *TIMINGS.splitlines(),
    *(line for line in read(f"{NEW}-lv4").splitlines() if "buffer size" in line or "time =" in line or "| " in line),
    "generate: n_ctx = 1",
    "available commands:",
    "\n",
    "\r\n",
    "\x1b[32m",
    "\x1b[",
    " ",
    "inf",
    "-nan",
    "9" * 400,
    "\ud800",
    "\u2028",
    "common_perf_print: ",
    "eval time = ",
    " ms / ",
    "[ Prompt: ",
    "RPC0[",
    "]",
    "(",
    "| ",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=12)), max_size=30).map("".join))
def test_no_text_makes_the_parser_raise_anything_but_its_own_error(text):
    log = parse_log(text, require_perf=False)
    json.dumps(log, allow_nan=False)
    if log["perf"] is None:
        with pytest.raises(PerfLogError):
            parse_log(text)


MEGABYTE = 1_000_000
ADVERSARIES = {
    "one-long-line": "a",
    "spaces": " ",
    "escape-sequences": "\x1b[0;",
    "newlines": "\n",
    "report-markers": "common_perf_print: eval time = ",
    "report-numbers": "common_perf_print: eval time = 1.00 ms / 1",
    "report-lines": "common_perf_print: eval time = 1.00 ms / 1 runs ( 1.00 ms per token, 1.00 tokens per second)\n",
    "buffer-lines": "load_tensors: CPU model buffer size = 1.00 MiB\n",
    "buffer-names": "load_tensors: " + "x" * 300 + " " * 4,
    "buffer-words": "buffer size = ",
    "layers": "load_tensors: layer 1 assigned to device CPU, is_swa = 0, is_swa = 0",
    "tables": "common_memory_breakdown_print: | - a | 1 = 1 + ( 1 = 1 + 1 + 1",
    "digits": "9",
    "speeds": "[ Prompt: 1 t/s ]",
}


@pytest.mark.parametrize("piece", ADVERSARIES.values(), ids=ADVERSARIES)
def test_a_megabyte_of_anything_is_read_well_within_a_limit(piece):
    text = piece * (MEGABYTE // len(piece))
    start = time.process_time()
    parse_log(text, require_perf=False)
    parse_log("common_perf_print: " + text + " t/s ]", require_perf=False)
    # Linear time takes a tenth of this, quadratic time would take minutes.
    assert time.process_time() - start < 10


def test_the_filter_gives_figures_and_requests_or_says_what_it_needs():
    assert FilterModule().filters()["llama_perf"](read(OLD)) == {**parse_log(read(OLD)), "requests": []}
    for value, words in ((b"bytes", "needs the text of a log"), ("hello", "no llama.cpp performance figures")):
        with pytest.raises(AnsibleFilterError, match=re.escape(words)):
            llama_perf(value)


# As the default build has printed it; its other lines are left out.
SERVER = """\
0.01.304.829 I slot print_timing: id  1 | task 0 | prompt eval time =     218.34 ms /     8 tokens \
(   27.29 ms per token,    36.64 tokens per second)
0.01.304.840 I slot print_timing: id  1 | task 0 |        eval time =     185.64 ms /     5 tokens \
(   46.41 ms per token,    21.55 tokens per second)
0.01.304.841 I slot print_timing: id  1 | task 0 |       total time =     403.98 ms /    13 tokens
0.01.304.842 I slot print_timing: id  1 | task 0 |    graphs reused =          4
0.01.763.712 I slot print_timing: id  1 | task 6 | prompt eval time =      50.27 ms /     1 tokens \
(   50.27 ms per token,    19.89 tokens per second)
0.01.763.733 I slot print_timing: id  1 | task 6 |        eval time =     362.98 ms /     8 tokens \
(   51.85 ms per token,    19.28 tokens per second)
0.01.763.733 I slot print_timing: id  1 | task 6 |       total time =     413.25 ms /     9 tokens
0.01.763.734 I slot print_timing: id  1 | task 6 |    graphs reused =         12
"""
# By the format strings of older builds (tools/server/server.cpp of 0.3.16).
OLD_SERVER = """\
slot print_timing: id  3 | task 0 | \n\
prompt eval time =     500.00 ms /    10 tokens (   50.00 ms per token,    20.00 tokens per second)
       eval time =    2000.00 ms /    40 tokens (   50.00 ms per token,    20.00 tokens per second)
      total time =    2500.00 ms /    50 tokens
srv  update_slots: all slots are idle
       eval time =    9999.00 ms /    99 tokens (   50.00 ms per token,    20.00 tokens per second)
"""


def requests_of(text: str) -> list[str]:
    parts = ("prompt_eval", "eval", "total")
    return [
        " | ".join(
            [line(it["slot"], it["task"]), *(line(*it[part].values()) for part in parts), line(it["graphs_reused"])]
        )
        for it in parse_requests(text)
    ]


FIRST = "1 0 | 218.34 8 27.29 36.64 | 185.64 5 46.41 21.55 | 403.98 13 | 4"
SECOND = "1 6 | 50.27 1 50.27 19.89 | 362.98 8 51.85 19.28 | 413.25 9 | 12"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SERVER, [FIRST, SECOND]),
        # After a restart, it counts anew.
        (SERVER + SERVER.replace("218.34", "118.34"), [FIRST, SECOND, FIRST.replace("218.34", "118.34"), SECOND]),
        (OLD_SERVER, ["3 0 | 500.0 10 50.0 20.0 | 2000.0 40 50.0 20.0 | 2500.0 50 | -"]),
    ],
    ids=["now", "started-again", "older"],
)
def test_each_request_of_a_server_has_its_figures(text: str, expected: list[str]) -> None:
    assert requests_of(text) == expected
    assert llama_perf(text)["perf"] is None


def test_a_run_has_no_requests_and_decimal_commas_are_read() -> None:
    text = read(f"{OLD}")
    points = llama_perf(text)
    assert points["requests"] == []
    commas = re.sub(r"(?<=\d)\.(?=\d\d ms|\d\d tokens)", ",", text)
    assert commas != text
    assert llama_perf(commas)["perf"] == points["perf"]


@pytest.mark.parametrize(
    "prefix",
    [
        "Nov 27 14:00:00 master llama-server[812]: ",
        "Fri 2026-11-27 14:00:00 UTC master llama-server[812]: ",
        "2026-11-27T14:00:00+0000 master.example llama-server[812]: ",
        "[    2.123456] master llama-server[812]: ",
        "2026-11-27T14:00:00.123456789Z ",
        "server-1  | ",
    ],
    ids=["journal", "journal-in-full", "journal-iso", "journal-monotonic", "kubectl", "compose"],
)
@pytest.mark.parametrize("text", [SERVER, OLD_SERVER], ids=["new", "old"])
def test_a_log_may_come_from_a_collector_of_logs(text: str, prefix: str) -> None:
    assert requests_of("".join(prefix + it for it in text.splitlines(keepends=True))) == requests_of(text)
    collected = "".join(f"{prefix}{it}\n" for it in read(OLD).splitlines())
    assert parse_log(collected) == parse_log(read(OLD))
