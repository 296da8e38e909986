# SPDX-License-Identifier: GPL-3.0-or-later
"""The command of a run, and the judgement of its end. Logs are those of real runs, whole or in part."""

from __future__ import annotations

import dataclasses
import re
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.endpoint import parse_endpoint
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.worker_status import WorkerStatus
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.capabilities import Program, describe
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.inference import (
    MAX_PROMPT_ARGUMENT_BYTES,
    Options,
    OutputLost,
    build_command,
    check_extra_args,
    check_options,
    classify,
    generated_text,
    output_lost,
    stall_limit,
    time_limit,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.perf_log import parse_log
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.worker_run import (
    ENVIRONMENT,
    Ending,
    Failure,
    ModelError,
    OptionError,
    check_model,
    check_split_mode,
    divided_by,
    worker_failure,
)
from hypothesis import given
from hypothesis import strategies as st

from support.stand_in_workers import status
from support.synthetic_models import write_synthetic

if TYPE_CHECKING:
    from collections.abc import Callable

FIXTURES = Path(__file__).parents[2] / "fixtures"
A, B, C = "10.0.0.1:50052", "10.0.0.2:50052", "10.0.0.3:50052"


def capabilities(archive: str) -> Program:
    said = FIXTURES / f"capabilities/llama-completion-{archive}"
    version, usage = (Path(f"{said}-{what}.txt").read_text() for what in ("version", "help"))
    return describe("/opt/llama-completion", version, usage, {})


BUILD = capabilities("b11549")


def options(*workers: str, **changes: Any) -> Options:
    base = Options(
        model="/srv/m.gguf",
        prompt="Hi",
        workers=tuple(parse_endpoint(worker) for worker in workers or (A, B)),
        n_predict=64,
        n_gpu_layers=999,
        tensor_split=(),
        ctx_size=2048,
        seed=1,
        temperature=0.0,
        threads=None,
        extra_args=(),
        timeout=None,
        stall_timeout=None,
        worker_link=False,
    )
    return dataclasses.replace(base, **changes)


# Refusals before the start


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_predict": 2048}, "n_predict is 2048, which leaves no room for the prompt in ctx_size .2048."),
        ({"n_gpu_layers": 1}, "n_gpu_layers is 1 for 2 workers; each worker needs at least one layer"),
        *(({name: value}, f"{name} is {value}; give") for name, value in (
            ("n_predict", 0), ("n_gpu_layers", 0), ("ctx_size", -1), ("seed", -2), ("temperature", -0.1),
            ("temperature", float("nan")), ("threads", 0), ("timeout", 0), ("stall_timeout", 0),
        )),
        ({"tensor_split": (1.0,)}, "tensor_split has 1 entries for 2 workers"),
        ({"tensor_split": (1.0, -1.0)}, f"tensor_split gives worker {B} the share -1; give it a number above 0"),
        ({"tensor_split": (0.0, 1.0)}, f"tensor_split gives worker {A} the share 0; .* out of workers"),
        ({"tensor_split": (1.0, float("inf"))}, f"worker {B} the share inf"),
        ({"tensor_split": (1.0, float("nan"))}, f"worker {B} the share nan"),
        ({"prompt": "a\0b"}, "prompt contains a NUL character"),
        ({"prompt": "\udc80"}, "prompt is not valid UTF-8"),
        ({"extra_args": ("--top-k", "\0")}, "extra_args contains a NUL character"),
        *((changes, None) for changes in (
            {"ctx_size": 0, "n_predict": 5000}, {"seed": -1}, {"prompt": ""}, {"prompt": "--help"}, {"n_gpu_layers": 2},
        )),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_run_is_named(changes: dict[str, Any], message: str | None) -> None:
    with pytest.raises(OptionError, match=message) if message else nullcontext():
        check_options(options(**changes))


@pytest.mark.parametrize(
    ("remedy", "arguments"),
    [
        ("use the option model", "-m --hf-repo"),
        ("use the option prompt", "-p -f"),
        ("use the option workers", "--rpc -dev"),
        ("use the option n_predict", "--predict -n"),
        ("use the option", "--gpu-layers --tensor_split -c -s --temp -t"),
        ("take it out", "-lv --log-disable --no-perf -cnv -i -h --version -co"),
    ],
)
def test_an_argument_that_the_module_gives_is_refused(arguments: str, remedy: str) -> None:
    for argument in arguments.split():
        with pytest.raises(OptionError, match=f"^extra_args must not contain {argument}; {remedy}"):
            check_extra_args(["--top-k", "20", argument, "x"], BUILD)
    check_extra_args(["--top-k", "20", "-fa", "on", "--ignore-eos", "-sm", "layer", "--no-such-flag", "-1"], BUILD)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.gguf", b"GGU", "is not a GGUF file"),
        ("m.gguf", b"PK\x03\x04zip", "is not a GGUF file"),
        ("m-00001-of-00002.gguf", b"GGUF", r"There is no model .*m-00002-of-00002\.gguf"),
        ("m-00002-of-00002.gguf", b"GGUF", r"not the first part of a split model: name m-00001-of-00002\.gguf"),
        ("m.gguf.part2of2", b"GGUF", "cannot be loaded: it is piece 2 of 2 .*: join the pieces with `cat "),
        ("m.gguf-split-a", b"GGUF", "cannot be loaded: it is piece a of .*: join the pieces with `cat "),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=message):
        check_model(str(tmp_path / name))


def test_the_size_of_a_split_model_is_that_of_all_its_parts(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"m-{number:05}-of-00002.gguf").write_bytes(b"GGUF".ljust(100 * number))
    assert check_model(str(tmp_path / "m-00001-of-00002.gguf")) == 300


def test_a_model_whose_states_cannot_be_divided_is_refused_in_split_mode_tensor(tmp_path: Path) -> None:
    model = str(write_synthetic(tmp_path / "m.gguf", "hybrid, every fourth", layers=4))
    tensor = ("--temp", "0", "-sm", "tensor")
    said = "llama.cpp cannot divide a model of architecture qwen35 among 2 workers in split mode tensor; use layer."
    for protocol in ("7.0.0", None):
        with pytest.raises(OptionError, match=re.escape(said)):
            check_split_mode(options(model=model), tensor, protocol)
    check_split_mode(options(model=model), tensor, "8.0.0")
    check_split_mode(options(model=model), ("-sm", "layer"), "7.0.0")
    check_split_mode(options(A, model=model), tensor, "7.0.0")
    check_split_mode(options(model=str(tmp_path / "none.gguf")), tensor, "7.0.0")
    check_split_mode(options(model=str(write_synthetic(tmp_path / "d.gguf", "dense"))), tensor, "7.0.0")


@pytest.mark.parametrize(
    ("limit", "prompt", "model_bytes", "given", "seconds"),
    [
        # 120 s + 40 GB at 10 MB/s + 4000 bytes at 40 B/s + 64 tokens of 2 s
        (time_limit, 4000, 40_000_000_000, {}, 120 + 4000 + 100 + 128),
        (time_limit, 4000, 40_000_000_000, {"timeout": 7}, 7),
        (stall_limit, 4000, 1_000_000, {}, 120 + 100),
        (stall_limit, 4_000_000, 4_000_000_000, {}, 120 + 205),
        (stall_limit, 4000, 40_000_000_000, {}, 120 + 1000),
        (stall_limit, 4000, 40_000_000_000, {"stall_timeout": 7}, 7),
    ],
)
def test_limits_grow_with_model_prompt_and_tokens(
    limit: Callable[[Options, int], int], prompt: int, model_bytes: int, given: dict[str, int], seconds: int
) -> None:
    assert limit(options(prompt="x" * prompt, **given), model_bytes) == seconds


# The command


def after(command: list[str], option: str) -> str:
    return command[command.index(option) + 1]


def test_the_command_holds_what_every_run_needs() -> None:
    run = options(prompt="--help\n\\n ü", temperature=0.5, threads=3, extra_args=("--top-k", "20"))
    command = build_command(BUILD, run, [status(A), status(B)], None)
    expected = {
        "-p": run.prompt, "-m": "/srv/m.gguf", "-n": "64", "-c": "2048", "-s": "1", "--temp": "0.5", "-t": "3",
        "-ngl": "999", "--rpc": f"{A},{B}",
    }  # fmt: skip
    assert {option: after(command, option) for option in expected} == expected
    assert {"-no-cnv", "--no-display-prompt", "--no-escape"} < set(command)
    assert (command[0], command[-2:]) == (BUILD.program, ["--top-k", "20"])
    assert command.index("--rpc") < command.index("--device")


@pytest.mark.parametrize("archive", ["0.3.20", "b11549"])
def test_a_build_has_every_option_that_it_gets(archive: str) -> None:
    build = capabilities(archive)
    run = options(temperature=0.5, threads=3, tensor_split=(1.0, 2.0))
    command = [word for file in (None, "/srv/p") for word in build_command(build, run, [status(A), status(B)], file)]
    known = frozenset().union(*build.options)
    assert [word for word in command if word.startswith("-") and word not in known] == []


@pytest.mark.parametrize(
    ("statuses", "devices"),
    [
        ([status(A), status(B)], "RPC0,RPC1"),
        ([status(A, "ready", "7.0.0", 1, 1), status(B)], "RPC0,RPC1,RPC2"),
        ([], None),
    ],
    ids=["one-each", "two-devices", "unverified"],
)
def test_every_device_of_every_worker_is_asked_for_by_name(statuses: list[WorkerStatus], devices: str | None) -> None:
    command = build_command(BUILD, options(), statuses, None)
    assert (after(command, "--device") if "--device" in command else None) == devices


@pytest.mark.parametrize(
    ("statuses", "split", "passed", "shares"),
    [
        ([], (), None, []),
        ([], (1.0, 2.5), "1,2.5", [1.0, 2.5]),
        ([status(A), status(B)], (1.0, 1 / 3), "1,0.333333", [1.0, 0.333333]),
        ([status(A, "ready", "7.0.0", 300, 100), status(B)], (1.0, 2.0), "0.75,0.25,2", [0.75, 0.25, 2.0]),
        ([status(A, "ready", "7.0.0", 0, 0), status(B)], (1.0, 2.0), "0.5,0.5,2", [0.5, 0.5, 2.0]),
        ([status(A, "ready", "7.0.0", 300, 100), status(B)], (), None, [300.0, 100.0, 1000.0]),
        ([status(A, "ready", "7.0.0", 0), status(B)], (), None, []),
    ],
    ids=["unknown", "given", "rounded", "by-device", "no-free-memory", "not-given", "not-given-and-no-free-memory"],
)
def test_a_share_is_that_of_all_devices_of_a_worker(
    statuses: list[WorkerStatus], split: tuple[float, ...], passed: str | None, shares: list[float]
) -> None:
    command = build_command(BUILD, options(tensor_split=split), statuses, None)
    assert (after(command, "-ts") if "-ts" in command else None) == passed
    assert divided_by(options(tensor_split=split), statuses) == shares


def test_a_long_prompt_goes_through_a_file_that_is_read_as_it_is() -> None:
    command = build_command(BUILD, options(prompt="x" * (MAX_PROMPT_ARGUMENT_BYTES + 1)), [], "/srv/prompt")
    assert after(command, "-bf") == "/srv/prompt"
    assert "-p" not in command
    assert max(map(len, command)) < 1000


@pytest.mark.parametrize(
    ("stdout", "text"),
    [
        (" one two\n\n", " one two"),
        (" one two\n\n\n\n", " one two\n\n"),
        (" one [end of text]\n\n\n", " one"),
        (" one [end of text]\n\n", " one [end of text]"),
        ("\n\n", ""),
        (" cut o", " cut o"),
    ],
    ids=["as-printed", "own-line-feeds", "ended", "in-the-text", "nothing", "killed"],
)
def test_the_text_is_exactly_what_was_generated(stdout: str, text: str) -> None:
    assert generated_text(stdout) == text


# Workers that cannot be used


WORKERS: dict[str, tuple[list[WorkerStatus], str | None, tuple[str, str | None] | None]] = {
    "ready": ([status(A), status(B, "ready", "7.0.9")], "7.0.0", None),
    "ready-master-unknown": ([status(A), status(B)], None, None),
    "older-minor": ([status(A, "ready", "3.5.0")], "3.6.1", None),
    "busy": ([status(A), status(B, "busy")], "7.0.0", ("worker_busy", B)),
    "refused-and-busy": ([status(A, "refused"), status(B, "busy")], "7.0.0", ("worker_unreachable", A)),
    **{
        state: ([status(A), status(B, state)], "7.0.0", ("worker_unreachable", B))
        for state in ("unreachable", "unresolved", "not_rpc")
    },
    "newer-minor": ([status(A), status(B, "ready", "7.1.0")], "7.0.0", ("protocol_mismatch", B)),
    "unlike": ([status(A), status(B, "ready", "2.0.0")], None, ("protocol_mismatch", B)),
    "twice": ([status(A), dataclasses.replace(status(B), address="10.0.0.1")], "7.0.0", ("option_rejected", B)),
    "sixteen-devices": ([status(A, "ready", "7.0.0", *[1] * 15), status(B)], "7.0.0", ("option_rejected", None)),
}


@pytest.mark.parametrize(("statuses", "protocol", "expected"), WORKERS.values(), ids=WORKERS)
def test_workers_are_judged_before_the_run(
    statuses: list[WorkerStatus], protocol: str | None, expected: tuple[str, str | None] | None
) -> None:
    failure = worker_failure(statuses, protocol)
    assert (failure and failure[:2]) == expected


def test_every_bad_worker_is_named_at_once() -> None:
    failure = worker_failure([status(A, "refused"), status(B), status(C, "busy")], "7.0.0")
    assert failure
    assert failure.message == f"{A} is refused. {C} is busy."


# How a run ended

BUFFERS = "".join(f"load_tensors: RPC[{endpoint}] model buffer size =    14.96 MiB\n" for endpoint in (A, B))


def judged(
    stderr: str,
    exit_status: int = 1,
    after_run: list[WorkerStatus] | None = None,
    run: Options | None = None,
    **changes: Any,
) -> Failure | None:
    after_run = [status(A), status(B)] if after_run is None else after_run
    log = parse_log(stderr, require_perf=False)
    ending = Ending("/opt/llama-completion", exit_status, False, 60, stderr, log, after_run)
    return classify(run or options(), dataclasses.replace(ending, **changes), "7.0.0")


E = "0.00.100.000 E "
CUT_OFF = "ggml-rpc.cpp:566: Remote RPC server crashed or returned malformed response\n"
REASON = f"{E}llama_model_load: error loading model: "
NOT_LOADED = f"{E}llama_model_load_from_file_impl: failed to load model\n"
DEVICE = 'error while handling argument "--device": invalid device: RPC1\n'
FULL = f"{BUFFERS}ggml_gallocr_reserve_n: failed to allocate RPC[{B}] buffer of size 307240960\n"
SPLIT_AXIS = "ggml-backend-meta.cpp:543: GGML_ASSERT(src_ss[0].axis != GGML_BACKEND_SPLIT_AXIS_0) failed"
B_REFUSED = [status(A), status(B, "refused")]
# The end of a log, its exit status, the workers afterwards if not both ready; and the kind, endpoint and message.
Ended = tuple[str, int, "list[WorkerStatus] | None", str, "str | None", str]
FAILURES: dict[str, Ended] = {
    "device-of-a-skipped-worker": (DEVICE, 1, B_REFUSED, "worker_unreachable", B, f"{B} is refused"),
    "device-missing-and-all-answer": (DEVICE, 1, None, "worker_dropped", None, "invalid device: RPC1"),
    "prompt-too-long-for-the-batch": (
        "common.cpp:2158: get_sub_batch: failed to add token 676 at index 64 (error -1, n = 102)\n", 134, None,
        "option_rejected", None, "102 tokens and there is room for 64; raise ctx_size"),
    "refused-later": (
        f"{BUFFERS}Failed to connect to {B}\nggml-backend.cpp:1486: GGML_ASSERT(x) failed\n", 134, B_REFUSED,
        "worker_lost", B, f"Worker {B} was lost"),
    "unresolved": (
        "Cannot resolve host '10.0.0.2'\nFailed to connect\n", 134, [status(A), status(B, "unresolved")],
        "worker_unreachable", B, f"{B} is unresolved"),
    "version-mismatch": (
        f"RPC server version mismatch: 7.1.0\nggml-rpc.cpp:550: RPC handshake failed for {A}\n", 134, None,
        "protocol_mismatch", A, f"{A} speaks RPC protocol 7.1.0, which this master does not"),
    # A master of 2.0.0 prints this for a worker of 3.6.1. (A master of 3.6.1 skips a worker of 2.0.0 silently.)
    "another-protocol": (
        f"Failed to connect to {B}\n", 134, [status(A), status(B, "ready", "3.6.1")],
        "protocol_mismatch", B, "3.6.1"),
    "across-protocol-4": (
        f"0.00.011.952 E recv failed (bytes_recv=0, size_to_recv=8)\n{CUT_OFF}", 134,
        [status(A), status(B, "ready", "2.0.0")],
        "protocol_mismatch", B, f"Worker {B} speaks RPC protocol 2.0.0 and this master 7.0.0"),
    "closed-at-hello": (CUT_OFF, 134, None, "protocol_mismatch", None, "broke the connection at the first message"),
    "closed-by-something-else": (
        CUT_OFF, 134, [status(A, "not_rpc"), status(B)], "worker_unreachable", A, f"{A} is not_rpc"),
    "lost-while-loading": (CUT_OFF, 134, B_REFUSED, "worker_lost", B, f"{B} was lost during the run. {B} is"),
    "lost-by-sigpipe": (
        BUFFERS, 141, [status(A, "unreachable"), status(B)], "worker_lost", A, f"{A} was lost during the run"),
    "lost-and-back": (BUFFERS + CUT_OFF, 134, None, "worker_lost", None, "refused a request ([rpc_check] refused)."),
    "lost-after-a-retry": (
        f"{FULL}sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism\n{CUT_OFF}", 134,
        [status(A, "refused"), status(B)], "worker_lost", A, f"{A} was lost"),
    "worker-cannot-compute": (
        f"{FULL}llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers\n", 1,
        None, "out_of_memory", B, f"Worker {B} has too little memory for its part; lower ctx_size"),
    "worker-cannot-load": (
        f"{REASON}unable to allocate RPC0[{A}] buffer\n{NOT_LOADED}", 1, None,
        "out_of_memory", A, f"Worker {A} has too little memory"),
    "bad-alloc": (
        "terminate called after throwing an instance of 'std::bad_alloc'\n", 134, None, "out_of_memory",
        None, "master"),
    "killed": (BUFFERS, 137, None, "out_of_memory", None, "killed by the system"),
    "truncated-model": (
        f"{REASON}tensor 'blk.2.x' data is not within the file bounds, model is corrupted or incomplete\n{NOT_LOADED}",
        1, None, "model_invalid", None, "/srv/m.gguf: tensor 'blk.2.x' data is not within the file bounds"),
    "not-divided": (
        f"{BUFFERS}{SPLIT_AXIS}\n", 134, None, "split_mode_unsupported", None,
        f"cannot divide this model among 2 workers in split mode tensor ({SPLIT_AXIS}); use layer."),
    "not-divided-ever": (
        f"{REASON}LLAMA_SPLIT_MODE_TENSOR not implemented for architecture 'mamba'\n{NOT_LOADED}", 1, None,
        "split_mode_unsupported", None,
        "a model of architecture mamba among 2 workers in split mode tensor; use layer."),
    "split-mode-row": (
        f"{REASON}device RPC0 does not support split buffers\n{NOT_LOADED}", 1, None,
        "split_mode_unsupported", None, "in this split mode: device RPC0 does not support split buffers; use layer."),
    "type-of-a-fork": (
        f"gguf_init_from_reader: tensor 'a' has invalid ggml type 138. should be in [0, 43)\n{NOT_LOADED}", 1, None,
        "model_invalid", None, "type 138. should be in [0, 43); type 138 is of ik_llama.cpp, a fork: use a file with"),
    "type-that-cannot-be": (
        f"{E}gguf_init_from_reader: tensor 'a' has invalid ggml type 123456. should be in [0, 43)\n{NOT_LOADED}", 1,
        None, "model_invalid", None, "invalid ggml type 123456. should be in [0, 43); the copy may be damaged"),
    "newer-architecture": (
        ("build: 7 (0c1e57098) with gcc\nllama_model_load: error loading model: error loading model architecture: "
         f"unknown model architecture: 'kimi-k9'\n{NOT_LOADED}"), 1, None, "model_invalid", None,
        "architecture: 'kimi-k9'; this llama.cpp (0c1e57098) does not know such a file: use a newer llama.cpp, or"),
    "surplus-tensors": (
        f"{REASON}done_getting_tensors: wrong number of tensors; expected 1247, got 808\n{NOT_LOADED}", 1, None,
        "model_invalid", None, "got 808; the file has tensors that this llama.cpp does not use, as files of Ollama"),
    "header-cut-off": (
        (f"{E}gguf_init_from_reader: failed to read key-value pairs\n"
         f"{REASON}llama_model_loader: failed to load model from /srv/m.gguf\n{NOT_LOADED}"), 1, None,
        "model_invalid", None, "cannot load /srv/m.gguf: failed to read key-value pairs; the copy may be damaged: com"),
    "damaged-header": (
        "gguf_init_from_file_impl: failed to read magic\nmain: error: failed to load model '/srv/m.gguf'\n", 1, None,
        "model_invalid", None, "failed to read magic; the copy may be damaged: compare its digest with the source"),
    "byte-order": (
        (f"{E}gguf_init_from_reader: failed to load model: this GGUF file version 50331648 is extremely large, is "
         f"there a mismatch between the host and model endianness?\n{NOT_LOADED}"), 1, None,
        "model_invalid", None, "of another byte order, convert it for this one"),
    "sizes-of-a-fork": (
        f"{E}gguf_init_from_reader: tensor 'x' has offset 64, expected 32\n{NOT_LOADED}", 1, None,
        "model_invalid", None, "damaged, or from a fork whose types have other sizes"),
    "draft-model": (
        (f"{REASON}unknown model architecture: 'x'\n{NOT_LOADED}"
         f"{E}srv    load_model: failed to load draft model, '/srv/draft.gguf'\n"), 1, None,
        "model_invalid", None, "llama.cpp cannot load /srv/draft.gguf: unknown model architecture: 'x'; "),
    "projector": (
        (f"{E}clip_init: failed to load model '/srv/p.gguf': load_hparams: unknown projector type: y\n"
         f"{E}srv    load_model: failed to load multimodal model, '/srv/p.gguf'\n"), 1, None, "model_invalid", None,
        "llama.cpp cannot load /srv/p.gguf: load_hparams: unknown projector type: y; this llama.cpp does not know"),
    "adapter": (
        (f"{E}llama_adapter_lora_init: failed to apply lora adapter: failed to open /srv/l.gguf\n"
         f"{E}common_init_from_params: failed to load lora adapter '/srv/l.gguf'\n"
         f"{E}srv    load_model: failed to load model, '/srv/m.gguf'\n"), 1, None, "unknown", None,
        "with status 1: llama_adapter_lora_init: failed to apply lora adapter: failed to open /srv/l.gguf; c"),
    "not-readable": (
        f"{E}gguf_init_from_file: failed to open GGUF file '/srv/d.gguf' (Permission denied)\n{NOT_LOADED}", 1, None,
        "model_invalid", None, "(Permission denied); let this account read it."),
    "placed-where-it-cannot-be": (
        f"{REASON}failed to find a compatible buffer type for tensor blk.0.x\n{NOT_LOADED}", 1, None, "model_invalid",
        None, "tensor blk.0.x; leave out options that say where tensors are, such as --override-tensor."),
    "no-context": (
        (f"{E}llama_init_from_model: quantized V cache requires flash_attn to be enabled\n"
         f"{E}common_init_result: failed to create context with model '/srv/m.gguf'\n"
         f"{E}srv    load_model: failed to load model, '/srv/m.gguf'\n"), 1, None, "option_rejected", None,
        "a context with these options: quantized V cache requires flash_attn to be enabled; change flash_attn"),
    "assertion": (
        f"{BUFFERS}/home/x/ggml/src/ggml-backend.cpp:898: pre-allocated tensor in a buffer that cannot run it\n", 134,
        None, "engine_assertion", None, "at ggml-backend.cpp:898: pre-allocated tensor in a buffer that cannot run it"),
    "gpu": (
        "/b/ggml-cuda.cu:97: CUDA error\n", 134, None, "engine_assertion", None,
        "at ggml-cuda.cu:97: CUDA error: a limit"),
    "exception": (
        "terminate called after throwing an instance of 'std::runtime_error'\n  what():  Unexpected empty stack\n", 134,
        None, "engine_assertion", None, "ended itself at an exception: Unexpected empty stack: a limit"),
    "cannot-start": ("", 126, None, "binary_missing", None, "cannot be started"),
    "illegal-instruction": ("", 132, None, "binary_missing", None, "instructions that this host's CPU does not have"),
    "message-lost": ("", 1, None, "model_invalid", None, "is lost: this llama.cpp may be too old for the model"),
    "part-of-the-message-lost": (
        f"{E}gguf_init_from_reader: failed to read tensor info\n", 1, None,
        "model_invalid", None, "failed to read tensor info; the copy may be damaged"),
    "unknown-while-running": (
        f"{BUFFERS}something new\n", 1, None, "unknown", None, "ended with status 1 and without a known message"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("stderr", "exit_status", "after_run", "kind", "endpoint", "message"), FAILURES.values(), ids=FAILURES
)
def test_a_failed_run_has_a_kind_an_endpoint_and_a_remedy(
    stderr: str, exit_status: int, after_run: list[WorkerStatus] | None, kind: str, endpoint: str | None, message: str
) -> None:
    failure = judged(stderr, exit_status, after_run)
    assert failure
    assert (failure.kind, failure.endpoint) == (kind, endpoint)
    assert message in failure.message
    assert failure.message.endswith(".")
    assert "\n" not in failure.message


@pytest.mark.parametrize(
    ("stderr", "exit_status", "lost"),
    [
        (f"0.01.000.000 I {BUFFERS}", 1, True),
        (f"0.01.000.000 I {BUFFERS}0.01.000.001 E x: something new\n", 1, False),
        (f"{BUFFERS}something new\n", 1, False),
        (f"0.01.000.000 I {BUFFERS}", 134, False),
        ("", 1, True),
        (f"{E}main: failed to parse the grammar\n", 1, True),
        ("0.01.000.000 E x: error loading model: it is damaged\n", 1, False),
        (BUFFERS, 0, True),
        ("", 0, True),
        (f"{BUFFERS}common_perf_print:    sampling time =       6.66 ms\n", 0, False),
    ],
    ids=[
        "gave-up-without-a-word", "said-why", "build-that-loses-nothing", "aborted", "nothing-said", "after-an-error",
        "model", "the-end", "almost-all", "figures-come-last",
    ],
)  # fmt: skip
def test_lost_output_is_told_from_a_failure(stderr: str, exit_status: int, lost: bool) -> None:
    assert isinstance(judged(stderr, exit_status), OutputLost) == lost


@pytest.mark.parametrize(
    ("recorded", "endpoints", "kind"),
    [
        ("worker-lost-0c1e57098", [A, B], "worker_lost"),
        ("refused-0c1e57098", ["127.0.0.1:59999"], "worker_unreachable"),
        ("protocol-mismatch-0c1e57098-against-rpc2.0.0", [A], "protocol_mismatch"),
        ("protocol-mismatch-4227c9be-against-rpc7.0.0", [A], "protocol_mismatch"),
    ],
)
def test_recorded_failures(recorded: str, endpoints: list[str], kind: str) -> None:
    log = (FIXTURES / "logs" / f"{recorded}.log").read_text()
    # These logs were recorded without the lines about buffers. The worker that died no longer answers.
    lost = f"{BUFFERS}{log}" if kind == "worker_lost" else log
    states = ["ready"] * (len(endpoints) - 1) + ["refused" if kind != "protocol_mismatch" else "ready"]
    after_run = [status(endpoint, state) for endpoint, state in zip(endpoints, states)]
    failure = judged(lost, 134, after_run, options(*endpoints))
    assert failure
    assert failure[:2] == (kind, endpoints[-1])


@pytest.mark.parametrize(
    ("log", "after_run", "endpoint", "message"),
    [
        ("", [status(A), status(B)], None, "Nothing blocks it; raise timeout"),
        ("", [status(A), status(B, "busy")], B, f"{B} is busy"),
        ("", [status(A), status(B, "not_rpc")], B, f"{B} is not_rpc"),
        (BUFFERS, [status(A, "busy"), status(B)], A, f"{A} has answered nothing since: it computes its last batch"),
        (BUFFERS, [status(A, "busy"), status(B, "unreachable")], B, f"{B} is unreachable"),
        (BUFFERS, [status(A, "refused"), status(B)], None, f"{A} stopped as its master was ended; start it again"),
    ],
    ids=["slow", "held", "not-rpc", "worker-computes-or-hangs", "cut-off-network", "worker-died-of-it"],
)
def test_a_run_out_of_time_says_whom_it_waited_for(
    log: str, after_run: list[WorkerStatus], endpoint: str | None, message: str
) -> None:
    failure = judged(log, 124, after_run, timed_out=True)
    assert failure
    assert (failure.kind, failure.endpoint) == ("timed_out", endpoint)
    assert message in failure.message


@pytest.mark.parametrize(
    ("workers", "peer", "now", "endpoint", "message"),
    [
        ((A, B), ("10.0.0.2", 50052), "unreachable", B, f"acknowledged nothing for 30 s. {B} is unreachable."),
        ((A, B), ("10.0.0.2", 50052), "ready", B, "acknowledged nothing for 30 s. It answers now; run again."),
        # A worker's name matches the address that the probe found. An unknown peer is named by its address.
        ((A, "b"), ("b", 50052), "unreachable", "b:50052", "b:50052 is unreachable."),
        ((A, "b"), ("10.0.0.9", 50052), "unreachable", "10.0.0.9:50052", "It answers now; run again."),
    ],
)
def test_a_host_that_went_without_a_word_is_named(
    workers: tuple[str, ...], peer: tuple[str, int], now: str, endpoint: str, message: str
) -> None:
    run = options(*workers)
    after_run = [status(run.endpoints[0]), status(run.endpoints[1], now)]
    failure = judged(BUFFERS, 143, after_run, run, gone=peer)
    assert failure
    assert (failure.kind, failure.endpoint) == ("worker_lost", endpoint)
    assert failure.message.endswith(message)


# Proof of work, by the ports of the recorded workers


RUN = "completion-0c1e57098-rpc7.0.0"
THREE = tuple(f"127.0.0.1:{port}" for port in (23765, 26272, 3506))
# A log, the workers that were asked for, what the last of them is afterwards, and the failure, if there is one.
RECORDED: dict[str, tuple[str, tuple[str, ...], WorkerStatus | None, tuple[str, str, str] | None]] = {
    "protocol-7": (f"{RUN}-3workers-lv4", THREE, None, None),
    "protocol-2": (
        "completion-4227c9be-rpc2.0.0", ("127.0.0.1:50071", "127.0.0.1:50072"), None, None),
    "tensor-mode": (f"{RUN}-2workers-lv4-tensor", ("127.0.0.1:18453", "127.0.0.1:30197"), None, None),
    "skipped-for-its-protocol": (
        f"{RUN}-3workers-lv4", (*THREE, B), status(B, "ready", "2.0.0"), ("protocol_mismatch", B, "2.0.0")),
    "skipped-and-refused": (
        f"{RUN}-3workers-lv4", (*THREE, B), status(B, "refused"), ("worker_unreachable", B, "is refused")),
    "skipped-and-ready": (f"{RUN}-3workers-lv4", (*THREE, B), status(B), ("worker_dropped", B, "")),
    "no-layer": (
        f"{RUN}-2workers-lv4-skewed", ("127.0.0.1:2269", B), None,
        ("worker_dropped", B, f"on {B}: llama.cpp gave it no")),
    "no-part-in-tensor-mode": (
        f"{RUN}-2workers-lv4-tensor", ("127.0.0.1:18453", "127.0.0.1:30197", B), None, ("worker_dropped", B, "on ")),
    "no-proof-in-the-log": (RUN, (B,), None, ("worker_dropped", B, f"on {B}:")),
    "more-workers-than-layers": (
        f"{RUN}-3workers-lv4", (THREE[0], *(f"10.0.0.{n}:50052" for n in range(2, 12))), None,
        ("worker_dropped", "10.0.0.2:50052", "has only 9 layers for 11 workers; name at most 9 workers")),
}  # fmt: skip


@pytest.mark.parametrize(("recorded", "endpoints", "last", "expected"), RECORDED.values(), ids=RECORDED)
def test_a_run_is_a_success_if_all_workers_took_part(
    recorded: str, endpoints: tuple[str, ...], last: WorkerStatus | None, expected: tuple[str, str, str] | None
) -> None:
    log = (FIXTURES / "logs" / f"{recorded}.log").read_text()
    after_run = [*(status(endpoint) for endpoint in endpoints[:-1]), last] if last else []
    failure = judged(log, 0, after_run, options(*endpoints))
    assert (failure and failure[:2]) == (expected and expected[:2])
    assert failure is None or (expected is not None and expected[2] in failure.message)
    if expected is None:
        # It ended well in the last moment: it has not stood still, and no host is gone.
        for late in ({"still_s": 120}, {"gone": ("127.0.0.1", 3506)}):
            assert judged(log, 0, [], options(*endpoints), **late) is None


@pytest.mark.parametrize("recorded", ["0c1e57098-rpc7.0.0-3workers-lv4", "4227c9be-rpc2.0.0"])
def test_a_report_without_its_end_is_told_from_a_whole_one(recorded: str) -> None:
    whole = (FIXTURES / "logs" / f"completion-{recorded}.log").read_text(errors="replace")
    perf = parse_log(whole)["perf"]
    cut = parse_log(whole[: whole.rindex(" total time")])["perf"]
    assert cut
    assert not output_lost(None, perf)
    assert output_lost(None, cut)
    assert not output_lost(Failure("timed_out", None, "Too late."), cut)


@given(st.text(), st.integers(0, 255), st.booleans())
def test_whatever_a_program_prints_is_judged(stderr: str, exit_status: int, timed_out: bool) -> None:
    failure = judged(stderr, exit_status, timed_out=timed_out)
    assert failure
    assert failure.kind
    assert failure.message.endswith(".")


def test_workers_may_only_have_a_link_if_that_is_asked() -> None:
    assert options().environment == {**ENVIRONMENT, "GGML_RPC_NO_COMM": "1"}
    assert options(worker_link=True).environment == {**ENVIRONMENT, "GGML_RPC_LINK": "1"}
