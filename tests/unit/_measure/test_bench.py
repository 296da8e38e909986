# SPDX-License-Identifier: GPL-3.0-or-later
"""llama-bench: its command and its figures."""

from __future__ import annotations

import dataclasses
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.progress import Step, read_step
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.bench import (
    Options,
    OutputError,
    build_command,
    build_of,
    check_build,
    check_options,
    classify,
    figures_of,
    model_of,
    options_of,
    parse_lines,
    time_limit,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.endpoint import parse_endpoint
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.worker_status import WorkerStatus
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.capabilities import (
    BinaryError,
    Program,
    describe_bench,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.perf_log import parse_log
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.progress import (
    LOADING,
    MEASURING,
    PREPARING,
    progress_in,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.worker_run import Ending, Failure, OptionError
from hypothesis import given
from hypothesis import strategies as st

from support.stand_in_workers import status

FIXTURES = Path(__file__).parents[2] / "fixtures"
A, B = "10.0.0.1:50052", "10.0.0.2:50052"


HELP, VERSION = (
    (FIXTURES / "capabilities" / f"llama-bench-b11549-{what}.txt").read_text() for what in ("help", "version")
)
# What llama-bench of early 2026 says of itself where it differs.
EARLIER = {"--version": "--verzion", "<on|off|auto> ": "<0|1> ", "<none|layer|row|tensor>": "<none|layer|row>"}
RESULTS = (FIXTURES / "bench" / "llama-bench-b11549.jsonl").read_text()
LOG = (FIXTURES / "bench" / "llama-bench-b11549.log").read_text()


def bench(manifest: dict[str, Any] | None = None) -> Program:
    return describe_bench("/opt/llama-bench", VERSION, HELP, manifest or {})


def earlier_bench() -> Program:
    usage = HELP
    for now, then in EARLIER.items():
        assert now in usage
        usage = usage.replace(now, then)
    return describe_bench("/opt/llama-bench", "error: --version\n", usage, {})


NEW, OLD = bench(), earlier_bench()


def options(*workers: str, **changes: Any) -> Options:
    base = Options(
        model="/srv/m.gguf",
        workers=tuple(parse_endpoint(worker) for worker in workers or (A, B)),
        n_prompt=(512,),
        n_gen=(128,),
        n_depth=(0,),
        batch_size=(2048,),
        ubatch_size=(512,),
        cache_type_k="f16",
        cache_type_v="f16",
        flash_attn=None,
        split_mode="layer",
        tensor_split=(),
        n_gpu_layers=999,
        threads=None,
        repetitions=5,
        timeout=None,
        worker_link=False,
    )
    return dataclasses.replace(base, **changes)


# Before the run


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_prompt": (), "n_gen": (0,)}, "There is nothing to measure; give a number above 0"),
        ({"n_prompt": (512, -1)}, "n_prompt is -1; give a number from 0 to"),
        ({"n_gen": (-1,)}, "n_gen is -1; give"),
        ({"n_depth": ()}, "n_depth is empty; give at least one number"),
        ({"batch_size": (0,)}, "batch_size is 0; give a number from 1 to"),
        ({"ubatch_size": ()}, "ubatch_size is empty"),
        ({"repetitions": 0}, "repetitions is 0; give a number from 1 to"),
        ({"threads": 0}, "threads is 0; give"),
        ({"timeout": 0}, "timeout is 0; give"),
        ({"n_gpu_layers": 1}, "n_gpu_layers is 1 for 2 workers"),
        ({"tensor_split": (1.0,)}, "tensor_split has 1 entries for 2 workers"),
        ({"workers": ()}, "workers has 0 entries"),
        ({"model": "/srv/a,b.gguf"}, "takes the comma in /srv/a,b.gguf for a separator; rename the model"),
        ({"model": "/srv/a\0b.gguf"}, "model contains a NUL character"),
        ({"n_prompt": tuple(range(1, 500)), "ubatch_size": (1, 2, 3)}, "make 1500 tests; ask for at most 1000 at once"),
    ],
)
def test_a_value_that_cannot_be_run_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        check_options(options(**changes))


@pytest.mark.parametrize(
    ("changes", "old", "new"),
    [
        ({}, None, None),
        ({"split_mode": "tensor"}, "no split_mode tensor; use another or a newer build", None),
        ({"flash_attn": "auto"}, "no flash_attn auto; use on or off", None),
        ({"flash_attn": "on", "n_depth": (0, 4096)}, None, None),
    ],
    ids=["defaults", "tensor", "auto", "in-both"],
)
def test_what_a_build_does_not_have_is_refused(changes: dict[str, Any], old: str | None, new: str | None) -> None:
    for build, message in ((OLD, old), (NEW, new)):
        if message is None:
            check_build(options(**changes), build)
        else:
            with pytest.raises(OptionError, match=message):
                check_build(options(**changes), build)


def test_the_limit_grows_with_what_is_asked_for() -> None:
    # Six times 512 tokens read at 10 a second and 128 generated in 2 s each, and 2 GB at 10 MB/s.
    assert time_limit(options(), 2_000_000_000) == 120 + 200 + 1844
    assert time_limit(options(n_depth=(0, 1000)), 0) == 120 + 4887
    assert time_limit(options(ubatch_size=(64, 512), n_gen=(), repetitions=1), 0) == 120 + 205
    assert time_limit(options(timeout=7), 10**12) == 7


def test_the_command() -> None:
    asked = options(
        n_prompt=(64, 128),
        n_gen=(),
        n_depth=(0, 512),
        ubatch_size=(64, 512),
        flash_attn="on",
        tensor_split=(1.0, 3.0),
        threads=4,
        cache_type_k="q8_0",
    )
    ready = [status(A), status(B)]
    common = "-p 64,128 -n 0 -d 0,512 -b 2048 -ub 64,512 -ctk q8_0 -ctv f16"
    assert " ".join(build_command(NEW, asked, ready)) == (
        f"/opt/llama-bench -m /srv/m.gguf --rpc {A},{B} -dev RPC0/RPC1 -ngl 999 -sm layer -ts 1/3 {common}"
        " -fa on -t 4 -r 5 -o jsonl --progress -v"
    )
    assert " -fa 1 " in " ".join(build_command(OLD, asked, ready))
    # The number of the workers' devices is unknown.
    assert "-dev" not in build_command(NEW, asked, [])


@pytest.mark.parametrize(
    ("usage", "message"),
    [
        ("", "does not answer --help as llama-bench does"),
        ("usage: x\n  -p, --n-prompt <n>\n  -n, --n-gen <n>\n  -v, --verbose\n", "was built without RPC"),
    ],
    ids=["another-program", "without-rpc"],
)
def test_a_program_that_is_of_no_use_is_refused(usage: str, message: str) -> None:
    with pytest.raises(BinaryError, match=message):
        describe_bench("/opt/llama-bench", "", usage, {})


# The figures


def test_figures_are_those_of_upstream() -> None:
    # The recording also has tests that read and generate.
    lines = [line for line in parse_lines(RESULTS, whole=True) if not (line["n_prompt"] and line["n_gen"])]
    tests = [figures_of(line) for line in lines]
    assert [(test["name"], test["kind"]) for test in tests] == [
        ("pp64", "prompt"),
        ("tg16", "generation"),
        ("pp64 @ d32", "prompt"),
        ("tg16 @ d32", "generation"),
    ]
    for test, line in zip(tests, lines):
        rates = test["tokens_per_second"]
        assert rates["mean"] == pytest.approx(line["avg_ts"], rel=1e-5)
        assert rates["stddev"] == pytest.approx(line["stddev_ts"], rel=1e-3)
        assert rates["samples"] == pytest.approx(line["samples_ts"], rel=1e-4)
        assert (rates["min"], rates["max"]) == (min(rates["samples"]), max(rates["samples"]))
        assert (test["batch_size"], test["ubatch_size"]) == (2048, 512)


def test_what_ran_is_told_by_the_program_and_its_results() -> None:
    new = parse_lines(RESULTS, whole=True)[0]
    assert build_of(NEW, new) == {"number": 11549, "commit": None, "version": "0.6.0-dev", "patches": None}
    assert build_of(OLD, None) == {"number": None, "commit": None, "version": None, "patches": None}
    assert build_of(OLD, new) == {"number": 11549, "commit": None, "version": None, "patches": None}
    for manifest, patches in (
        ({"patches": []}, []),
        ({"patches": [{"name": "rpc-load", "sha256": "a"}, {"name": "programs"}]}, ["programs", "rpc-load"]),
        ({"patches": ["rpc-load"]}, None),
        ({"patches": [{"name": "rpc-load"}, {"name": 1}]}, None),
        ({"patches": {}}, None),
    ):
        assert build_of(bench(manifest), new)["patches"] == patches
    assert model_of("/srv/m.gguf", None, new) == {
        "path": "/srv/m.gguf",
        "type": "llama ?B Q8_0",
        "size_bytes": 26108736,
        "n_params": 24548864,
        "sha256": None,
    }
    assert (options_of(options(), new)["flash_attn"], options_of(options(), new)["threads"]) == ("auto", 2)
    for value, flash_attn in ((False, "off"), (0, "off"), (True, "on"), (1, "on")):
        assert options_of(options(), {**new, "flash_attn": value})["flash_attn"] == flash_attn


def test_one_repetition_has_no_spread() -> None:
    line = {**json.loads(RESULTS.splitlines()[0]), "samples_ns": [64_000_000]}
    assert figures_of(line)["tokens_per_second"] == {
        "mean": 1000,
        "stddev": None,
        "min": 1000,
        "max": 1000,
        "samples": [1000],
    }


def test_what_was_done_before_a_run_was_ended_counts() -> None:
    text = RESULTS
    first = text.index("\n") + 1
    assert len(parse_lines(text[: first + 300], whole=False)) == 1
    assert parse_lines("", whole=False) == []
    with pytest.raises(OutputError, match="Line 2 of llama-bench's output is not a result: "):
        parse_lines(text[: first + 300], whole=True)


@pytest.mark.parametrize("line", ["hello", "[]", "3", "{}", '{"n_prompt": 1}', "[" * 5000, '{"samples_ns": [0]}'])
def test_what_is_no_result_is_said(line: str) -> None:
    with pytest.raises(OutputError, match=r"^Line 1 of llama-bench's output is not a result"):
        parse_lines(line + "\n" + RESULTS, whole=True)


@given(st.text(), st.booleans())
def test_whatever_is_printed_is_read_or_refused(text: str, whole: bool) -> None:
    with suppress(OutputError):
        assert parse_lines(text, whole=whole) == []


# How a run ended


def judged(stderr: str, exit_status: int = 1, after_run: list[WorkerStatus] | None = None, **changes: Any) -> Any:
    after_run = [status(A), status(B)] if after_run is None else after_run
    log = parse_log(stderr, require_perf=False)
    ending = Ending("/opt/llama-bench", exit_status, False, 60, stderr, log, after_run)
    return classify(options(), dataclasses.replace(ending, **changes), "7.0.0")


def test_a_run_on_all_workers_is_a_success() -> None:
    assert judged(LOG, 0) is None


BUFFERS = "".join(f"load_tensors: RPC[{endpoint}] model buffer size =    14.96 MiB\n" for endpoint in (A, B))
NO_CONTEXT = "llama_bench: error: failed to create context with model 'm.gguf'\n"


@pytest.mark.parametrize(
    ("stderr", "exit_status", "after_run", "kind", "endpoint", "message"),
    [
        (BUFFERS.splitlines()[0], 0, None, "worker_dropped", B, f"No part of the model was on {B}"),
        (
            "error: invalid device: RPC1\nerror: invalid parameter for argument: -dev\nusage: x\n",
            1,
            [status(A), status(B, "refused")],
            "worker_unreachable",
            B,
            f"{B} is refused",
        ),
        (
            "error: invalid device: RPC1\nerror: invalid parameter for argument: -dev\n",
            1,
            None,
            "worker_dropped",
            None,
            "did not take all workers: invalid device: RPC1",
        ),
        (
            "error: invalid parameter for argument: -ctk\nusage: x\n",
            1,
            None,
            "option_rejected",
            None,
            "does not take this value of -ctk.",
        ),
        (
            f"{BUFFERS}llama_init_from_model: quantized V cache requires flash_attn to be enabled\n{NO_CONTEXT}",
            1,
            None,
            "option_rejected",
            None,
            "quantized V cache requires flash_attn to be enabled; change flash_attn, cache types or sizes",
        ),
        (
            (
                f"{BUFFERS}alloc_tensor_range: failed to allocate RPC0[{A}] buffer of size 512001310720\n"
                "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache\n"
                f"{NO_CONTEXT}"
            ),
            1,
            None,
            "out_of_memory",
            A,
            f"Worker {A} has too little memory for its part; lower n_depth, n_prompt, n_gen or ubatch_size",
        ),
        (
            (
                "llama_model_load: error loading model: tensor 'blk.1.attn_output.weight' data is not within the file "
                "bounds, model is corrupted or incomplete\nllama_bench: error: failed to load model 'bad.gguf'\n"
            ),
            1,
            None,
            "model_invalid",
            None,
            "cannot load /srv/m.gguf: tensor 'blk.1.attn_output.weight' data is not within",
        ),
        ("something new\n", 3, None, "unknown", None, "llama-bench ended with status 3 and without a known message"),
    ],
    ids=[
        "dropped",
        "skipped",
        "device-missing",
        "bad-value",
        "context",
        "memory",
        "truncated-model",
        "unknown",
    ],
)
def test_a_failed_run_has_a_kind_an_endpoint_and_a_remedy(
    stderr: str,
    exit_status: int,
    after_run: list[WorkerStatus] | None,
    kind: str,
    endpoint: str | None,
    message: str,
) -> None:
    failure = judged(stderr, exit_status, after_run)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.endpoint) == (kind, endpoint)
    assert message in failure.message
    assert failure.message.endswith(".")
    assert "\n" not in failure.message


# Progress


def test_the_phases_of_a_real_run_come_in_order(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    found: list[Step] = []
    with progress_in(str(path)) as progress:
        progress.begin(1, 26_134_464, 0)
        for line in LOG.encode().splitlines(keepends=True):
            progress.log(line)
            progress.text(b"{}\n" if progress.step.what == MEASURING else b"")
            step = read_step(path.read_text())
            assert step is not None
            if not found or step != found[-1]:
                found.append(step)
    assert list(dict.fromkeys(step.what for step in found)) == [LOADING, PREPARING, MEASURING]
    # Six tests, each with a warm-up and three runs. Their number is unknown until the first run begins.
    measuring = [step[1:] for step in found if step.what == MEASURING]
    assert measuring == [(0, 0, "runs"), *((n, 24, "runs") for n in range(1, 24))]
