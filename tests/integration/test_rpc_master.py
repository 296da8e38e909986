# SPDX-License-Identifier: GPL-3.0-or-later
"""The patches rpc-load, rpc-tensor and rpc-turns on a master.

Workers get the same data, the master sends less of it, and workers wait less for each other.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import pytest

from support.harness import HANG_S, end, run_module
from support.relay import Relay, relaying
from support.watched_worker import until, watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.harness import Release, Worker

    Start = Callable[..., Worker]

pytestmark = pytest.mark.llama

ROOT = Path(__file__).resolve().parents[2]
# A master asks only for larger tensors by their hash (HASH_THRESHOLD in ggml-rpc.cpp).
LARGE = 10 << 20


def run(
    release: Release, model: Path, endpoints: list[str], split_mode: str = "layer", n_predict: int = 8
) -> dict[str, Any]:
    return run_module(
        "distributed_inference",
        {
            "bin_folder": str(release.bin),
            "model": str(model),
            "prompt": "What is the answer to the question of the river?",
            "workers": endpoints,
            "n_predict": n_predict,
            "extra_args": ["--split-mode", split_mode],
        },
    )


def text(release: Release, model: Path, endpoints: list[str], split_mode: str = "layer") -> str:
    result = run(release, model, endpoints, split_mode)
    assert result["failure"] is None
    assert len(result["text"].split()) >= 8
    return str(result["text"])


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with nine large weights, more than a thread hashes at the same time."""
    model = tmp_path_factory.mktemp("model") / "large.gguf"
    script = ROOT / "playbooks/files/random_model.py"
    subprocess.run([sys.executable, script, model, "--layers", "3", "--width", "1920"], check=True, timeout=120)
    return model


@pytest.fixture(scope="module")
def four_bits(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with as many large weights, of a type that workers repack on every kind of CPU."""
    folder = tmp_path_factory.mktemp("four_bits")
    eight, model = folder / "eight.gguf", folder / "four.gguf"
    script = ROOT / "playbooks/files/random_model.py"
    subprocess.run([sys.executable, script, eight, "--layers", "3", "--width", "2688"], check=True, timeout=120)
    quantise = [release.bin / "llama-quantize", "--allow-requantize", eight, model, "Q4_0"]
    subprocess.run(quantise, capture_output=True, check=True, timeout=120)
    eight.unlink()
    return model


class Counted(Relay):
    """After `most` bytes the worker is lost. With `go_on`, it gets the rest once that is set."""

    def __init__(self, worker: Worker, most: float = math.inf, go_on: threading.Event | None = None) -> None:
        super().__init__(worker)
        self.most, self.go_on = most, go_on

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        while (self.sent <= self.most or (self.go_on and self.go_on.wait())) and (data := client.recv(1 << 16)):
            self.sent += len(data)
            server.sendall(data)


def test_a_worker_that_is_lost_while_it_is_loaded_ends_the_run(
    release: Release, start: Start, large_model: Path
) -> None:
    """Neither the other workers nor weights that are hashed ahead delay the end."""
    first, second = (start() for _number in range(2))
    with relaying(Counted(second, most=20 << 20)) as link:
        result = run(release, large_model, [first.endpoint, link.endpoint])
    assert result["failure"]["kind"] == "worker_lost"
    assert link.sent > 20 << 20
    assert first.alive


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=lambda how: how.name)
def test_a_load_that_is_cancelled_leaves_workers_that_are_ready(
    release: Release, four_bits: Path, tmp_path: Path, how: signal.Signals
) -> None:
    """At that moment, threads of their own send weights to both workers, which repack them."""
    large = [tensor for tensor in gguf.GGUFReader(four_bits).tensors if tensor.n_bytes > LARGE]
    assert [tensor.tensor_type for tensor in large] == [gguf.GGMLQuantizationType.Q4_0] * 9
    most, go_on = 20 << 20, threading.Event()
    with watched(release, tmp_path / "1") as first, watched(release, tmp_path / "2") as second:
        workers = [first.worker, second.worker]
        endpoints = [worker.endpoint for worker in workers]
        expected = text(release, four_bits, endpoints)
        repacked = [worker.repack["weights"] for worker in (first, second)]
        kernels = [gguf.GGMLQuantizationType.Q4_0 in worker.kernels for worker in (first, second)]
        assert [weights > 0 for weights in repacked] == kernels
        with ExitStack() as stack:
            through = [stack.enter_context(relaying(Counted(worker, most, go_on))) for worker in workers]
            stack.callback(go_on.set)
            rpc = ",".join(link.endpoint for link in through)
            # A process that a shell starts in the background ignores SIGINT.
            command = ["env", "--default-signal=INT", str(release.bin / "llama-completion"), "-m", str(four_bits)]
            master = subprocess.Popen(
                [*command, "--rpc", rpc, "-ngl", "99", "-no-cnv", "-p", "the"], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "GGML_NO_BACKTRACE": "1"},
            )  # fmt: skip
            stack.callback(master.kill)
            until(lambda: all(link.sent > most for link in through) or master.poll() is not None)
            master.send_signal(how)
            assert master.wait(HANG_S) == -how
        assert all(worker.alive for worker in workers)
        assert text(release, four_bits, endpoints) == expected
        assert [worker.repack["weights"] for worker in (first, second)] == repacked


def test_split_mode_tensor_gives_the_text_of_split_mode_layer_and_sends_little(
    release: Release, model: Path, start: Start
) -> None:
    workers = [start() for _number in range(3)]
    expected = text(release, model, [workers[0].endpoint])
    assert text(release, model, [worker.endpoint for worker in workers], "tensor") == expected

    with ExitStack() as stack:
        through = [stack.enter_context(relaying(Counted(worker))) for worker in workers[:2]]
        command = [
            release.bin / "llama-completion",
            "-m",
            model,
            "--rpc",
            ",".join(link.endpoint for link in through),
        ]
        command += ["-ngl", "99", "-sm", "tensor", "-p", "the river", "-no-cnv", "--ignore-eos", "-n"]
        after = []
        for n_predict in ("8", "40"):
            subprocess.run(
                [*command, n_predict], stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=HANG_S
            )
            after.append(through[0].sent)
    first, both = after
    of_a_token = (both - 2 * first) / (40 - 8)
    # A token takes sixteen graphs, and 2 KiB of sums after each. With everything that their inputs come from, the
    # graphs would take some 1.5 MB.
    assert of_a_token < 300_000


def test_a_prompts_next_batches_are_computed_while_a_worker_still_has_the_first(
    release: Release, four_bits: Path, start: Start
) -> None:
    """Upstream's master would wait for the second worker, as it copies that worker's results to the third itself."""
    workers = [start() for _number in range(3)]

    def reading(endpoints: list[str], tokens: int) -> list[str | Path]:
        command = [release.bin / "llama-bench", "-m", four_bits, "--rpc", ",".join(endpoints), "-ngl", "999"]
        command += ["-dev", "RPC0/RPC1/RPC2", "-ts", "1/1/2", "-t", "1", "-r", "1", "--no-warmup"]
        return [*command, "-ub", "16", "-n", "0", "-p", str(tokens)]

    def sent_for(tokens: int) -> list[int]:
        with ExitStack() as stack:
            through = [stack.enter_context(relaying(Counted(worker))) for worker in workers]
            command = reading([link.endpoint for link in through], tokens)
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=HANG_S)
            return [link.sent for link in through]

    one, ten = sent_for(16), sent_for(160)
    of_a_batch = [(last - first) / 9 for first, last in zip(one, ten)]
    go_on = threading.Event()
    with ExitStack() as stack:
        first = stack.enter_context(relaying(Counted(workers[0])))
        # At this point the second worker has its weights, and a part of the first batch.
        second = stack.enter_context(relaying(Counted(workers[1], one[1] - of_a_batch[1] / 2, go_on)))
        stack.callback(go_on.set)
        master = subprocess.Popen(
            reading([first.endpoint, second.endpoint, workers[2].endpoint], 160),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        stack.callback(end, master)
        until(lambda: first.sent > one[0] + 2.5 * of_a_batch[0])
        assert master.poll() is None
        go_on.set()
        assert master.wait(HANG_S) == 0


def test_a_chat_that_is_interrupted_goes_on(release: Release, four_bits: Path, start: Start, tmp_path: Path) -> None:
    """Most of the time, the signal reaches the thread that waits for the first worker's results for the second one."""
    workers = [start() for _number in range(2)]
    command = ["env", "--default-signal=INT", release.bin / "llama-completion", "-m", four_bits, "-ngl", "99"]
    command += ["--rpc", ",".join(worker.endpoint for worker in workers), "-c", "2048", "-n", "-1", "--ignore-eos"]
    command += ["-no-cnv", "--interactive", "--simple-io", "--in-prefix", "<you>", "-p", "the river"]
    said, log = tmp_path / "said", tmp_path / "log"
    with said.open("wb") as output, log.open("wb") as errors, ExitStack() as stack:
        chat = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=errors, env={**os.environ, "GGML_NO_BACKTRACE": "1"}
        )
        stack.callback(end, chat)
        assert chat.stdin
        stack.callback(chat.stdin.close)

        def turns() -> list[bytes]:
            assert chat.poll() is None, log.read_text()[-500:]
            return said.read_bytes().split(b"<you>")

        for number in range(8):
            many = len(turns()[-1])
            until(lambda many=many: len(turns()[-1]) > many + 40)
            chat.send_signal(signal.SIGINT)
            until(lambda number=number: len(turns()) == number + 2)
            chat.stdin.write(b"go on\n")
            chat.stdin.flush()
