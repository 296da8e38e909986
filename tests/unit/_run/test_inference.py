# SPDX-License-Identifier: GPL-3.0-or-later
"""The command of a run, and the judgement of its end. Logs are those of real runs, whole or in part."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.endpoint import parse_endpoint
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.worker_status import WorkerStatus
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.capabilities import Capabilities, describe
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

from support.synthetic_models import write_synthetic

FIXTURES = Path(__file__).parents[2] / "fixtures"
A, B, C = "10.0.0.1:50052", "10.0.0.2:50052", "10.0.0.3:50052"


def capabilities(archive: str) -> Capabilities:
    said = FIXTURES / f"capabilities/llama-completion-{archive}"
    version, usage = (Path(f"{said}-{what}.txt").read_text() for what in ("version", "help"))
    return describe("/opt/llama-completion", version, usage, {})


BUILD = capabilities("0.3.36")


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
    )
    return dataclasses.replace(base, **changes)


def status(endpoint: str, state: str = "ready", protocol: str | None = "7.0.0", *free: int) -> WorkerStatus:
    host, port = endpoint.split(":")
    version = None
    if protocol and state in ("ready", "incompatible"):
        major, minor, patch = (int(part) for part in protocol.split("."))
        version = {"version": protocol, "major": major, "minor": minor, "patch": patch}
    devices = [{"index": i, "memory_free_bytes": n, "memory_total_bytes": n} for i, n in enumerate(free or (1000,))]
    return WorkerStatus(
        endpoint, host, int(port), host, state, state == "ready", version, devices, 1.0, f"{endpoint} is {state}."
    )


# Refusals before the start


def test_fifteen_workers_are_the_most() -> None:
    check_options(options(*(f"10.0.0.{n}" for n in range(1, 16))))
    with pytest.raises(OptionError, match=r"workers has 16 entries; llama\.cpp uses at least 1 and at most 15\."):
        check_options(options(*(f"10.0.0.{n}" for n in range(1, 17))))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_predict": 0}, "n_predict is 0; give a number from 1"),
        ({"n_predict": 2048}, "n_predict is 2048, which leaves no room for the prompt in ctx_size .2048."),
        ({"n_gpu_layers": 0}, "n_gpu_layers is 0; give"),
        ({"n_gpu_layers": 1}, "n_gpu_layers is 1 for 2 workers; each worker needs at least one layer"),
        ({"ctx_size": -1}, "ctx_size is -1; give"),
        ({"seed": -2}, "seed is -2; give"),
        ({"temperature": -0.1}, "temperature is -0.1; give"),
        ({"temperature": float("nan")}, "temperature is nan; give"),
        ({"threads": 0}, "threads is 0; give"),
        ({"timeout": 0}, "timeout is 0; give"),
        ({"stall_timeout": 0}, "stall_timeout is 0; give"),
        ({"tensor_split": (1.0,)}, "tensor_split has 1 entries for 2 workers"),
        ({"tensor_split": (1.0, -1.0)}, f"tensor_split gives worker {B} the share -1; give it a number above 0"),
        ({"tensor_split": (0.0, 1.0)}, f"tensor_split gives worker {A} the share 0; .* out of workers"),
        ({"tensor_split": (1.0, float("inf"))}, f"worker {B} the share inf"),
        ({"tensor_split": (1.0, float("nan"))}, f"worker {B} the share nan"),
        ({"prompt": "a\0b"}, "prompt contains a NUL character"),
        ({"prompt": "\udc80"}, "prompt is not valid UTF-8"),
        ({"extra_args": ("--top-k", "\0")}, "extra_args contains a NUL character"),
    ],
)
def test_a_value_that_cannot_be_run_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check_options(options(**changes))


@pytest.mark.parametrize(
    "changes",
    [{"ctx_size": 0, "n_predict": 5000}, {"seed": -1}, {"prompt": ""}, {"prompt": "--help"}, {"n_gpu_layers": 2}],
)
def test_values_at_the_edge_are_taken(changes: dict[str, Any]) -> None:
    check_options(options(**changes))


@pytest.mark.parametrize(
    ("argument", "remedy"),
    [
        ("-m", "use the option model"),
        ("--hf-repo", "use the option model"),
        ("-p", "use the option prompt"),
        ("-f", "use the option prompt"),
        ("--rpc", "use the option workers"),
        ("-dev", "use the option workers"),
        ("--predict", "use the option n_predict"),
        ("-n", "use the option n_predict"),
        ("--gpu-layers", "use the option n_gpu_layers"),
        ("--tensor_split", "use the option tensor_split"),
        ("-c", "use the option ctx_size"),
        ("-s", "use the option seed"),
        ("--temp", "use the option temperature"),
        ("-t", "use the option threads"),
        ("-lv", "take it out"),
        ("--log-disable", "take it out"),
        ("--no-perf", "take it out"),
        ("-cnv", "take it out"),
        ("-i", "take it out"),
        ("-h", "take it out"),
        ("--version", "take it out"),
        ("-co", "take it out"),
    ],
)
def test_an_argument_that_the_module_gives_is_refused(argument: str, remedy: str) -> None:
    with pytest.raises(OptionError, match=f"^extra_args must not contain {argument}; {remedy}"):
        check_extra_args(["--top-k", "20", argument, "x"], BUILD)


def test_other_arguments_are_left_to_llama_cpp() -> None:
    check_extra_args(["--top-k", "20", "-fa", "on", "--ignore-eos", "-sm", "layer", "--no-such-flag", "-1"], BUILD)


def gguf(path: Path, size: int = 100) -> Path:
    path.write_bytes(b"GGUF".ljust(size, b"\0"))
    return path


def test_the_size_of_a_split_model_is_that_of_all_its_parts(tmp_path: Path) -> None:
    parts = [gguf(tmp_path / f"m-{n:05}-of-00003.gguf", 100 * n) for n in (1, 2, 3)]
    assert check_model(str(gguf(tmp_path / "whole.gguf"))) == 100
    assert check_model(str(parts[0])) == 600
    with pytest.raises(ModelError, match=r"not the first part of a split model; give m-00001-of-00003\.gguf"):
        check_model(str(parts[1]))
    parts[2].unlink()
    with pytest.raises(ModelError, match=r"There is no model .*m-00003-of-00003\.gguf"):
        check_model(str(parts[0]))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty; fetch it again"), (b"GGU", "is not a GGUF file"), (b"PK\x03\x04zip", "is not a GGUF file")],
)
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        check_model(str(path))


def test_a_missing_model_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="There is no model"):
        check_model(str(tmp_path / "m.gguf"))
    with pytest.raises(ModelError, match="is a folder"):
        check_model(str(tmp_path))


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


def test_the_time_limit_grows_with_model_prompt_and_tokens() -> None:
    # 120 s + 40 GB at 10 MB/s + 4000 bytes at 40 B/s + 64 tokens of 2 s
    assert time_limit(options(prompt="x" * 4000), 40_000_000_000) == 120 + 4000 + 100 + 128
    assert time_limit(options(timeout=7), 40_000_000_000) == 7


def test_a_run_may_stand_still_for_as_long_as_a_batch_takes() -> None:
    assert stall_limit(options(prompt="x" * 4000), 1_000_000) == 120 + 100
    assert stall_limit(options(prompt="x" * 4_000_000), 4_000_000_000) == 120 + 205
    assert stall_limit(options(prompt="x" * 4000), 40_000_000_000) == 120 + 1000
    assert stall_limit(options(stall_timeout=7), 40_000_000_000) == 7


# The command


def after(command: list[str], option: str) -> str:
    return command[command.index(option) + 1]


def test_the_command_holds_what_every_run_needs() -> None:
    run = options(prompt="--help\n\\n ü", temperature=0.5, threads=3, extra_args=("--top-k", "20"))
    command = build_command(BUILD, run, [status(A), status(B)], None)
    assert command[0] == BUILD.program
    assert after(command, "-p") == "--help\n\\n ü"
    expected = {
        "-m": "/srv/m.gguf", "-n": "64", "-c": "2048", "-s": "1", "--temp": "0.5", "-t": "3", "-ngl": "999",
        "-fit": "off", "--log-colors": "off", "-lv": "4",
    }  # fmt: skip
    assert {option: after(command, option) for option in expected} == expected
    assert after(command, "--rpc") == f"{A},{B}"
    assert {"-no-cnv", "--no-display-prompt", "--no-escape"} < set(command)
    assert command[-2:] == ["--top-k", "20"]
    assert command.index("--rpc") < command.index("--device")


@pytest.mark.parametrize("archive", ["0.3.20", "0.3.34", "0.3.35", "0.3.36"])
def test_a_build_has_every_option_that_it_gets(archive: str) -> None:
    build = capabilities(archive)
    run = options(temperature=0.5, threads=3, tensor_split=(1.0, 2.0))
    command = [word for file in (None, "/srv/p") for word in build_command(build, run, [status(A), status(B)], file)]
    known = frozenset().union(*build.options)
    assert [word for word in command if word.startswith("-") and word not in known] == []


def test_what_nobody_asked_for_is_not_passed() -> None:
    assert not {"-t", "-ts"} & set(build_command(BUILD, options(), [status(A)] * 2, None))


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
    ("statuses", "split", "passed"),
    [
        ([], (1.0, 2.5), "1,2.5"),
        ([status(A), status(B)], (1.0, 2.5), "1,2.5"),
        ([status(A, "ready", "7.0.0", 300, 100), status(B)], (1.0, 2.0), "0.75,0.25,2"),
        ([status(A, "ready", "7.0.0", 0, 0), status(B)], (1.0, 2.0), "0.5,0.5,2"),
    ],
    ids=["unverified", "one-device-each", "by-free-memory", "no-free-memory"],
)
def test_a_share_is_that_of_all_devices_of_a_worker(
    statuses: list[WorkerStatus], split: tuple[float, ...], passed: str
) -> None:
    assert after(build_command(BUILD, options(tensor_split=split), statuses, None), "-ts") == passed


@pytest.mark.parametrize(
    ("statuses", "split", "shares"),
    [
        ([], (), []),
        ([], (1.0, 2.5), [1.0, 2.5]),
        ([status(A), status(B)], (1.0, 1 / 3), [1.0, 0.333333]),
        ([status(A, "ready", "7.0.0", 300, 100), status(B)], (1.0, 2.0), [0.75, 0.25, 2.0]),
        ([status(A, "ready", "7.0.0", 300, 100), status(B)], (), [300.0, 100.0, 1000.0]),
        ([status(A, "ready", "7.0.0", 0), status(B)], (), []),
    ],
    ids=["unknown", "given", "as-it-is-passed", "by-device", "free-memory", "no-free-memory"],
)
def test_layers_are_divided_by_the_split_or_by_free_memory(
    statuses: list[WorkerStatus], split: tuple[float, ...], shares: list[float]
) -> None:
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
        ("", ""),
    ],
    ids=["as-printed", "own-line-feeds", "ended", "in-the-text", "nothing", "killed", "killed-early"],
)
def test_the_text_is_exactly_what_was_generated(stdout: str, text: str) -> None:
    assert generated_text(stdout) == text


# Workers that cannot be used


@pytest.mark.parametrize(
    ("statuses", "protocol", "expected"),
    [
        ([status(A), status(B)], "7.0.0", None),
        ([status(A), status(B)], None, None),
        ([status(A), status(B, "ready", "7.0.9")], "7.0.0", None),
        ([status(A, "ready", "3.5.0")], "3.6.1", None),
        ([status(A), status(B, "busy")], "7.0.0", ("worker_busy", B)),
        ([status(A, "refused"), status(B, "busy")], "7.0.0", ("worker_unreachable", A)),
        ([status(A), status(B, "unreachable")], "7.0.0", ("worker_unreachable", B)),
        ([status(A), status(B, "unresolved")], "7.0.0", ("worker_unreachable", B)),
        ([status(A), status(B, "not_rpc")], "7.0.0", ("worker_unreachable", B)),
        ([status(A), status(B, "ready", "2.0.0")], "7.0.0", ("protocol_mismatch", B)),
        ([status(A), status(B, "ready", "7.1.0")], "7.0.0", ("protocol_mismatch", B)),
        ([status(A), status(B, "ready", "2.0.0")], None, ("protocol_mismatch", B)),
        ([status(A), dataclasses.replace(status(B), address="10.0.0.1")], "7.0.0", ("option_rejected", B)),
        ([status(A, "ready", "7.0.0", *[1] * 15), status(B)], "7.0.0", ("option_rejected", None)),
    ],
    ids=[
        "ready",
        "ready-master-unknown",
        "newer-patch",
        "older-minor",
        "busy",
        "refused-and-busy",
        "unreachable",
        "unresolved",
        "not-rpc",
        "other-major",
        "newer-minor",
        "different-from-each-other",
        "one-worker-twice",
        "sixteen-devices",
    ],
)
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
CUT_OFF = "ggml-rpc.cpp:566: Remote RPC server crashed or returned malformed response\n"


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


@pytest.mark.parametrize(
    ("stderr", "exit_status", "after_run", "kind", "endpoint", "message"),
    [
        ("error: invalid argument: --nope\n", 1, None, "option_rejected", None, "no option --nope; take it out"),
        (
            'error while handling argument "--top-k": stoi\n\nusage:\n--top-k N\n',
            1,
            None,
            "option_rejected",
            None,
            "value of --top-k: stoi",
        ),
        (
            'error while handling argument "--device": invalid device: RPC1\n',
            1,
            [status(A), status(B, "refused")],
            "worker_unreachable",
            B,
            f"{B} is refused",
        ),
        (
            'error while handling argument "--device": invalid device: RPC1\n',
            1,
            None,
            "worker_dropped",
            None,
            "invalid device: RPC1",
        ),
        (
            "0.00.020.016 E llama_completion: prompt is too long (2002 tokens, max 508)\n",
            1,
            None,
            "option_rejected",
            None,
            "2002 tokens and there is room for 508; raise ctx_size",
        ),
        (
            "common.cpp:2158: get_sub_batch: failed to add token 676 at index 64 (error -1, n = 102)\n",
            134,
            None,
            "option_rejected",
            None,
            "102 tokens and there is room for 64; raise ctx_size",
        ),
        (
            f"ggml-rpc.cpp:547: Failed to connect to {B}\n\n",
            134,
            [status(A), status(B, "refused")],
            "worker_unreachable",
            B,
            f"could not connect to worker {B}. {B} is refused.",
        ),
        (
            f"{BUFFERS}Failed to connect to {B}\nggml-backend.cpp:1486: GGML_ASSERT(x) failed\n",
            134,
            [status(A), status(B, "refused")],
            "worker_lost",
            B,
            f"Worker {B} was lost",
        ),
        (
            "Cannot resolve host '10.0.0.2'\nFailed to connect\n",
            134,
            [status(A), status(B, "unresolved")],
            "worker_unreachable",
            B,
            f"{B} is unresolved",
        ),
        (
            f"RPC server version mismatch: 7.1.0\nggml-rpc.cpp:550: RPC handshake failed for {A}\n",
            134,
            None,
            "protocol_mismatch",
            A,
            f"{A} speaks RPC protocol 7.1.0, which this master does not",
        ),
        (
            f"0.00.011.952 E recv failed (bytes_recv=0, size_to_recv=8)\n{CUT_OFF}",
            134,
            [status(A), status(B, "ready", "2.0.0")],
            "protocol_mismatch",
            B,
            f"Worker {B} speaks RPC protocol 2.0.0 and this master 7.0.0",
        ),
        (CUT_OFF, 134, None, "protocol_mismatch", None, "broke the connection at the first message"),
        (CUT_OFF, 134, [status(A, "not_rpc"), status(B)], "worker_unreachable", A, f"{A} is not_rpc"),
        (BUFFERS + CUT_OFF, 134, [status(A), status(B, "refused")], "worker_lost", B, f"{B} was lost during the run"),
        (CUT_OFF, 134, [status(A), status(B, "refused")], "worker_lost", B, f"{B} was lost during the run. {B} is"),
        (BUFFERS, 141, [status(A, "unreachable"), status(B)], "worker_lost", A, f"{A} was lost during the run"),
        (BUFFERS + CUT_OFF, 134, None, "worker_lost", None, "again or refused a request ([rpc_check] refused)."),
        (BUFFERS, 141, None, "worker_lost", None, "again or refused a request ([rpc_check] refused)."),
        (
            (
                f"{BUFFERS}ggml_gallocr_reserve_n: failed to allocate RPC[{B}] buffer of size 307240960\n"
                "llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers\n"
                "common_init_from_params: failed to create context with model 'm.gguf'\n"
            ),
            1,
            None,
            "out_of_memory",
            B,
            f"Worker {B} has too little memory for its part; lower ctx_size",
        ),
        (
            (
                f"llama_model_load: error loading model: unable to allocate RPC0[{A}] buffer\n"
                "llama_model_load_from_file_impl: failed to load model\n"
            ),
            1,
            None,
            "out_of_memory",
            A,
            f"Worker {A} has too little memory",
        ),
        (
            "terminate called after throwing an instance of 'std::bad_alloc'\n",
            134,
            None,
            "out_of_memory",
            None,
            "master",
        ),
        (BUFFERS, 137, None, "out_of_memory", None, "killed by the system"),
        (
            (
                f"{BUFFERS}ggml_gallocr_reserve_n_impl: failed to allocate RPC0[{B}] buffer of size 83148800\n"
                f"sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism\n{CUT_OFF}"
            ),
            134,
            [status(A, "refused"), status(B)],
            "worker_lost",
            A,
            f"{A} was lost",
        ),
        (
            (
                "llama_model_load: error loading model: tensor 'blk.2.ffn_down.weight' data is not within the file "
                "bounds, model is corrupted or incomplete\nllama_model_load_from_file_impl: failed to load model\n"
            ),
            1,
            None,
            "model_invalid",
            None,
            "/srv/m.gguf: tensor 'blk.2.ffn_down.weight' data is not within the file bounds, model is corrupted",
        ),
        (
            f"{BUFFERS}ggml-backend-meta.cpp:543: GGML_ASSERT(src_ss[0].axis != GGML_BACKEND_SPLIT_AXIS_0) failed\n",
            134,
            None,
            "option_rejected",
            None,
            (
                "cannot divide this model among 2 workers in split mode tensor (ggml-backend-meta.cpp:543: "
                "GGML_ASSERT(src_ss[0].axis != GGML_BACKEND_SPLIT_AXIS_0) failed); use layer."
            ),
        ),
        (
            (
                "llama_model_load: error loading model: LLAMA_SPLIT_MODE_TENSOR not implemented for architecture "
                "'mamba'\nllama_model_load_from_file_impl: failed to load model\n"
            ),
            1,
            None,
            "option_rejected",
            None,
            "cannot divide a model of architecture mamba among 2 workers in split mode tensor; use layer.",
        ),
        (
            (
                "gguf_init_from_reader: tensor 'blk.0.attn_q.weight' has invalid ggml type 138. should be in [0, 43)\n"
                "gguf_init_from_reader: failed to read tensor info\n"
                "llama_model_load: error loading model: llama_model_loader: failed to load model from /srv/m.gguf\n"
                "llama_model_load_from_file_impl: failed to load model\n"
            ),
            1,
            None,
            "model_invalid",
            None,
            "ggml type 138. should be in [0, 43); type 138 is of ik_llama.cpp, a fork: use a file with types",
        ),
        (
            (
                "build: 7 (0c1e57098) with gcc\n"
                "llama_model_load: error loading model: error loading model architecture: unknown model architecture: "
                "'kimi-k9'\nllama_model_load_from_file_impl: failed to load model\n"
            ),
            1,
            None,
            "model_invalid",
            None,
            "architecture: 'kimi-k9'; this llama.cpp (0c1e57098) does not know such a file: use a newer llama.cpp, or",
        ),
        (
            (
                "llama_model_load: error loading model: done_getting_tensors: wrong number of tensors; expected 1247, "
                "got 808\nllama_model_load_from_file_impl: failed to load model\n"
            ),
            1,
            None,
            "model_invalid",
            None,
            "expected 1247, got 808; the file has tensors that this llama.cpp does not use, as files of Ollama have",
        ),
        (
            (
                "0.00.002.564 E gguf_init_from_reader: tensor 'blk.0.attn_q.weight' has invalid ggml type 123456. "
                "should be in [0, 43)\n0.00.002.564 E gguf_init_from_reader: failed to read tensor info\n"
                "0.00.002.601 E llama_model_load_from_file_impl: failed to load model\n"
            ),
            1,
            None,
            "model_invalid",
            None,
            "invalid ggml type 123456. should be in [0, 43); the copy may be damaged",
        ),
        (
            (
                "0.00.006.984 E gguf_init_from_reader: failed to read key-value pairs\n"
                "0.00.007.184 E llama_model_load: error loading model: llama_model_loader: failed to load model from "
                "/srv/m.gguf\n0.00.007.226 E llama_model_load_from_file_impl: failed to load model\n"
            ),
            1,
            None,
            "model_invalid",
            None,
            "cannot load /srv/m.gguf: failed to read key-value pairs; the copy may be damaged: compare its digest",
        ),
        (
            "gguf_init_from_file_impl: failed to read magic\nmain: error: failed to load model '/srv/m.gguf'\n",
            1,
            None,
            "model_invalid",
            None,
            "failed to read magic; the copy may be damaged: compare its digest with the source, and fetch it again.",
        ),
        (
            f"{BUFFERS}/home/x/ggml/src/ggml-backend.cpp:898: pre-allocated tensor in a buffer that cannot run it\n",
            134,
            None,
            "engine_assertion",
            None,
            "ended itself at ggml-backend.cpp:898: pre-allocated tensor in a buffer that cannot run it: a limit",
        ),
        ("", 126, None, "binary_missing", None, "cannot be started"),
        ("", 132, None, "binary_missing", None, "instructions that this host's CPU does not have"),
        (
            "",
            1,
            None,
            "model_invalid",
            None,
            "ended while it opened /srv/m.gguf and its message is lost; fetch the model again",
        ),
        (f"{BUFFERS}something new\n", 1, None, "unknown", None, "ended with status 1 and without a known message"),
        ("something new\n", 134, None, "unknown", None, "ended with status 134 and without a known message"),
    ],
    ids=[
        "unknown-option",
        "bad-value",
        "device-of-a-skipped-worker",
        "device-missing-and-all-answer",
        "prompt-too-long",
        "prompt-too-long-for-the-batch",
        "refused",
        "refused-later",
        "unresolved",
        "version-mismatch",
        "across-protocol-4",
        "closed-at-hello",
        "closed-by-something-else",
        "lost",
        "lost-while-loading",
        "lost-by-sigpipe",
        "lost-and-back",
        "lost-by-sigpipe-and-back",
        "worker-cannot-compute",
        "worker-cannot-load",
        "bad-alloc",
        "killed",
        "lost-after-a-retry",
        "truncated-model",
        "not-divided",
        "not-divided-ever",
        "type-of-a-fork",
        "newer-architecture",
        "surplus-tensors",
        "type-that-cannot-be",
        "header-cut-off",
        "damaged-header",
        "assertion",
        "cannot-start",
        "illegal-instruction",
        "message-lost",
        "unknown-while-running",
        "unknown-abort",
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
    assert failure
    assert (failure.kind, failure.endpoint) == (kind, endpoint)
    assert message in failure.message
    assert failure.message.endswith(".")
    assert "\n" not in failure.message


E = "0.00.100.000 E "
LOADING = f"{E}llama_model_load: error loading model: "
NOT_LOADED = f"{E}llama_model_load_from_file_impl: failed to load model\n"


@pytest.mark.parametrize(
    ("stderr", "exit_status", "kind", "message"),
    [
        ("/b/a+b~1/ggml.c:7: GGML_ASSERT(x) failed\n", 134, "engine_assertion", "at ggml.c:7: GGML"),
        (
            "/b/ggml.c:7: GGML_ASSERT(n % (a/b) == 0) failed\n",
            134,
            "engine_assertion",
            "GGML_ASSERT(n % (a/b) == 0) failed",
        ),
        ("/b/ggml-cuda.cu:97: CUDA error\n", 134, "engine_assertion", "at ggml-cuda.cu:97: CUDA error: a limit"),
        (
            "terminate called after throwing an instance of 'std::runtime_error'\n  what():  Unexpected empty stack\n",
            134,
            "engine_assertion",
            "ended itself at an exception: Unexpected empty stack: a limit",
        ),
        (
            (
                f"{E}llama_init_from_model: quantized V cache requires flash_attn to be enabled\n"
                f"{E}common_init_result: failed to create context with model '/srv/m.gguf'\n"
                f"{E}srv    load_model: failed to load model, '/srv/m.gguf'\n"
            ),
            1,
            "option_rejected",
            "a context with these options: quantized V cache requires flash_attn to be enabled; change flash_attn",
        ),
        (
            f"{LOADING}device RPC0 does not support split buffers\n{NOT_LOADED}",
            1,
            "option_rejected",
            "in this split mode: device RPC0 does not support split buffers; use layer.",
        ),
        (
            f"{LOADING}failed to find a compatible buffer type for tensor blk.0.x\n{NOT_LOADED}",
            1,
            "model_invalid",
            "tensor blk.0.x; leave out options that say where tensors are, such as --override-tensor.",
        ),
        (
            (
                f"{E}gguf_init_from_reader: failed to load model: this GGUF file version 50331648 is extremely "
                f"large, is there a mismatch between the host and model endianness?\n{NOT_LOADED}"
            ),
            1,
            "model_invalid",
            "of another byte order, convert it for this one",
        ),
        (
            f"{E}gguf_init_from_reader: tensor 'x' has offset 64, expected 32\n{NOT_LOADED}",
            1,
            "model_invalid",
            "damaged, or from a fork whose types have other sizes",
        ),
        (
            (
                f"{LOADING}unknown model architecture: 'x'\n{NOT_LOADED}"
                f"{E}srv    load_model: failed to load draft model, '/srv/draft.gguf'\n"
            ),
            1,
            "model_invalid",
            "llama.cpp cannot load /srv/draft.gguf: unknown model architecture: 'x'; ",
        ),
        (
            (
                f"{E}clip_init: failed to load model '/srv/p.gguf': load_hparams: unknown projector type: y\n"
                f"{E}srv    load_model: failed to load multimodal model, '/srv/p.gguf'\n"
            ),
            1,
            "model_invalid",
            "llama.cpp cannot load /srv/p.gguf: load_hparams: unknown projector type: y; this llama.cpp does not know",
        ),
        (
            (f"{E}gguf_init_from_file: failed to open GGUF file '/srv/d.gguf' (Permission denied)\n{NOT_LOADED}"),
            1,
            "model_invalid",
            "(Permission denied); let this account read it.",
        ),
        (
            (
                f"{E}llama_adapter_lora_init: failed to apply lora adapter: failed to open /srv/l.gguf\n"
                f"{E}common_init_from_params: failed to load lora adapter '/srv/l.gguf'\n"
                f"{E}srv    load_model: failed to load model, '/srv/m.gguf'\n"
            ),
            1,
            "unknown",
            "with status 1: llama_adapter_lora_init: failed to apply lora adapter: failed to open /srv/l.gguf; c",
        ),
    ],
    ids=[
        "odd-path",
        "slash-in-a-condition",
        "gpu",
        "exception",
        "no-context",
        "split-mode-row",
        "placed-where-it-cannot-be",
        "byte-order",
        "sizes-of-a-fork",
        "draft-model",
        "projector",
        "not-readable",
        "adapter",
    ],
)
def test_the_reason_that_llama_cpp_gave_is_in_the_sentence(
    stderr: str, exit_status: int, kind: str, message: str
) -> None:
    failure = judged(stderr, exit_status, None)
    assert failure
    assert (failure.kind, failure.endpoint) == (kind, None)
    assert message in failure.message


def test_what_follows_an_error_may_be_lost_and_is_asked_for_again() -> None:
    failure = judged(f"{E}main: failed to parse the grammar\n", 1)
    assert isinstance(failure, OutputLost)
    assert "ended with status 1: main: failed to parse the grammar; see log_tail" in failure.message
    failure = judged(f"{E}gguf_init_from_reader: failed to read tensor info\n", 1)
    assert failure
    assert failure.kind == "model_invalid"
    assert "failed to read tensor info; the copy may be damaged" in failure.message


@pytest.mark.parametrize("name", ["m.gguf.part1of2", "m.gguf.part2of2", "m.gguf-split-a"])
def test_a_piece_of_a_model_is_named_as_that(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"GGUF and more")
    with pytest.raises(ModelError, match=r"cannot be loaded: it is piece . of .*: join the pieces with `cat "):
        check_model(str(tmp_path / name))


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
    assert failure.message.startswith("The run did not end within 60 s and was ended. ")
    assert message in failure.message


def test_a_run_that_stood_still_says_whom_it_waited_for() -> None:
    failure = judged(BUFFERS, 143, [status(A), status(B, "busy")], still_s=120)
    assert failure
    assert (failure.kind, failure.endpoint) == ("timed_out", B)
    assert failure.message.startswith(f"The run stood still for 120 s and was ended. {B} has answered nothing since")
    assert "raise stall_timeout if it is slow" in failure.message


def test_a_worker_of_another_protocol_is_that_whatever_the_build_says() -> None:
    # A master of 2.0.0 prints this for a worker of 3.6.1. (A master of 3.6.1 skips a worker of 2.0.0 silently.)
    after_run = [status(A), status(B, "ready", "3.6.1")]
    failure = judged(f"Failed to connect to {B}\n", 134, after_run)
    assert failure
    assert failure[:2] == ("protocol_mismatch", B)


@pytest.mark.parametrize(
    ("now", "protocol", "kind"),
    [
        ("ready", "2.0.0", "protocol_mismatch"),
        ("refused", "7.0.0", "worker_unreachable"),
        ("ready", "7.0.0", "worker_dropped"),
    ],
)
def test_a_worker_that_was_skipped_is_named_with_the_reason(now: str, protocol: str, kind: str) -> None:
    log = (FIXTURES / "logs" / "completion-0c1e57098-rpc7.0.0-3workers-lv4.log").read_text()
    run = options(*(f"127.0.0.1:{port}" for port in (23765, 26272, 3506)), B)
    after_run = [status(endpoint) for endpoint in run.endpoints[:3]] + [status(B, now, protocol)]
    failure = judged(log, 0, after_run, run)
    assert failure
    assert failure[:2] == (kind, B)


def test_a_run_that_ended_well_in_the_last_moment_has_not_stood_still() -> None:
    log = (FIXTURES / "logs" / "completion-0c1e57098-rpc7.0.0-3workers-lv4.log").read_text()
    run = options(*(f"127.0.0.1:{port}" for port in (23765, 26272, 3506)))
    assert judged(log, 0, [], run, still_s=120) is None
    assert judged(log, 0, [], run, gone=("127.0.0.1", 3506)) is None


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


@pytest.mark.parametrize(
    ("recorded", "ports"),
    [
        ("completion-0c1e57098-rpc7.0.0-3workers-lv4", (23765, 26272, 3506)),
        ("completion-4227c9be-rpc2.0.0-3workers-prefix-timestamps", (5097, 20368, 12098)),
        ("completion-0c1e57098-rpc7.0.0-2workers-lv4-tensor", (18453, 30197)),
    ],
)
def test_a_run_on_all_workers_is_a_success(recorded: str, ports: tuple[int, ...]) -> None:
    log = (FIXTURES / "logs" / f"{recorded}.log").read_text()
    assert judged(log, 0, [], options(*(f"127.0.0.1:{port}" for port in ports))) is None


@pytest.mark.parametrize(
    ("recorded", "endpoints", "message"),
    [
        ("completion-0c1e57098-rpc7.0.0-2workers-lv4-skewed", ["127.0.0.1:2269", B], f"on {B}: llama.cpp gave it no"),
        ("completion-0c1e57098-rpc7.0.0-2workers-lv4-tensor", ["127.0.0.1:18453", "127.0.0.1:30197", B], f"on {B}:"),
        ("completion-0c1e57098-rpc7.0.0", [B], f"on {B}:"),
        (
            "completion-0c1e57098-rpc7.0.0-3workers-lv4",
            ["127.0.0.1:23765", *(f"10.0.0.{n}:50052" for n in range(2, 12))],
            "the model has only 9 layers for 11 workers; name at most 9 workers",
        ),
    ],
    ids=["no-layer", "tensor-mode", "no-proof-in-the-log", "more-workers-than-layers"],
)
def test_a_worker_without_a_part_of_the_model_is_a_failure(recorded: str, endpoints: list[str], message: str) -> None:
    failure = judged((FIXTURES / "logs" / f"{recorded}.log").read_text(), 0, [], options(*endpoints))
    assert failure
    assert failure.kind == "worker_dropped"
    assert failure.endpoint in endpoints[-10:]
    assert message in failure.message


@pytest.mark.parametrize("stderr", [BUFFERS, ""], ids=["the-end", "almost-all"])
def test_a_run_whose_last_output_is_lost_is_no_success(stderr: str) -> None:
    failure = judged(stderr, 0)
    assert isinstance(failure, OutputLost)
    assert failure.kind == "unknown"
    assert "may be cut off; run again" in failure.message


FIGURE = "common_perf_print:    sampling time =       6.66 ms\n"


@pytest.mark.parametrize(
    ("stderr", "exit_status", "lost"),
    [
        (f"0.01.000.000 I {BUFFERS}", 1, True),
        (f"0.01.000.000 I {BUFFERS}0.01.000.001 E x: something new\n", 1, False),
        (f"{BUFFERS}something new\n", 1, False),
        (f"0.01.000.000 I {BUFFERS}", 134, False),
        ("", 1, True),
        ("0.01.000.000 E x: error loading model: it is damaged\n", 1, False),
        (f"{BUFFERS}{FIGURE}", 0, False),
    ],
    ids=[
        "gave-up-without-a-word",
        "said-why",
        "build-that-loses-nothing",
        "aborted",
        "nothing-said",
        "model",
        "figures-come-last",
    ],
)
def test_lost_output_is_told_from_a_failure(stderr: str, exit_status: int, lost: bool) -> None:
    assert isinstance(judged(stderr, exit_status), OutputLost) == lost


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
