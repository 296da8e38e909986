# SPDX-License-Identifier: GPL-3.0-or-later
"""A server under load: its command line, its time limit and its figures; test_llama_server_bench.py runs a real one."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.serving import (
    Options,
    build_command,
    check_options,
    figures_of,
    time_limit,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.endpoint import parse_endpoints
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.worker_status import WorkerStatus
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.capabilities import Program
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.worker_run import OptionError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._serve.load import Stream

KNOWN = ("--rpc", "--no-ui")


def options(**more: Any) -> Options:
    given: dict[str, Any] = {
        "model": "/srv/m.gguf", "workers": tuple(parse_endpoints(["10.0.0.11", "10.0.0.12:1"])), "n_gpu_layers": 999,
        "tensor_split": (3.0, 1.0), "threads": 2, "timeout": None, "clients": 8, "n_prompt": 100, "n_gen": 20,
        "prompts": (), "repetitions": 3, "parallel": 4, "ctx_size": 2048, "extra_args": ("--jinja",),
        "worker_link": False,
    }  # fmt: skip
    return Options(**{**given, **more})


def program(*names: str) -> Program:
    known = tuple(frozenset([name]) for name in names)
    return Program("/b/llama-server", None, 1, "0c1e570", "7.0.0", None, known, "")


def test_the_context_is_that_of_all_slots() -> None:
    command = build_command(program(*KNOWN), options(), [], 4711)
    assert command == [
        "/b/llama-server", "--model", "/srv/m.gguf", "--host", "127.0.0.1", "--port", "4711", "--parallel", "4",
        "--ctx-size", "8192", "--rpc", "10.0.0.11:50052,10.0.0.12:1", "--n-gpu-layers", "999", "--tensor-split", "3,1",
        "--threads", "2", "--fit", "off", "--cache-ram", "1024", "--no-ui", "--jinja",
    ]  # fmt: skip


def test_layers_that_predict_further_tokens_are_on_the_last_worker() -> None:
    ready = [WorkerStatus(f"h:{port}", "h", port, devices=[{"memory_free_bytes": 1}]) for port in (1, 2)]
    drafting = ("--spec-type", "draft-mtp", "--spec-draft-model", "/srv/d.gguf")
    command = build_command(program(*KNOWN), options(extra_args=drafting), ready, 4711)
    assert command[command.index("--device") :][:4] == ["--device", "RPC0,RPC1", "--spec-draft-device", "RPC1"]
    on_master = (*drafting, "--spec-draft-device", "none")
    assert "RPC1" not in build_command(program(*KNOWN), options(extra_args=on_master), ready, 4711)


def test_what_nobody_asked_for_or_a_build_does_not_have_is_left_out() -> None:
    command = build_command(program("--rpc"), options(threads=None, tensor_split=()), [], 4711)
    assert not {"--device", "--no-ui", "--threads", "--tensor-split"} & set(command)


def test_the_time_limit_is_one_that_slow_hosts_stay_under() -> None:
    # Loading takes 10 s. Each of three times eight answers takes 10 s to read and 40 s to generate.
    assert time_limit(options(), 100_000_000) == 120 + 10 + 3 * 8 * 50
    assert time_limit(options(timeout=9), 100_000_000) == 9


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"clients": 0}, "clients is 0; give a number from 1 to 256."),
        ({"ctx_size": 1}, "ctx_size is 1; give a number from 64"),
        ({"extra_args": ("a\0",)}, "model or extra_args contains a NUL character"),
        ({"extra_args": ("--host", "0.0.0.0")}, "extra_args holds --host, which the module sets itself: take it out."),
        ({"extra_args": ("-c", "9")}, "extra_args holds -c, which the module sets itself: use ctx_size."),
        ({"extra_args": ("--log-file", "x")}, "extra_args holds --log-file, which could write prompts and answers to"),
        ({"tensor_split": (1.0,)}, "tensor_split has 1 entries for 2 workers"),
    ],
)
def test_what_no_build_can_run_is_said(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError) as raised:
        check_options(options(**more))
    assert str(raised.value).startswith(sentence)


def test_figures_have_the_spread_of_the_repetitions_and_the_times_of_all_requests() -> None:
    repetitions = [
        [Stream(asked_s=0.0, arrivals_s=[1.0, 2.0], tokens=2)],
        [Stream(asked_s=10.0, arrivals_s=[13.0, 14.0], tokens=2)],
    ]
    found = figures_of(options(), repetitions)
    rates = found["tokens_per_second"]
    assert (rates["mean"], rates["min"], rates["max"], rates["samples"]) == (0.75, 0.5, 1.0, [1.0, 0.5])
    assert rates["stddev"] == 0.354
    assert found["first_token_ms"]["median"] == 2000.0
    assert found["clients"] == 8
    assert figures_of(options(), repetitions[:1])["tokens_per_second"]["stddev"] is None
