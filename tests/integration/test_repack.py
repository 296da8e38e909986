# SPDX-License-Identifier: GPL-3.0-or-later
"""Workers repack weights for the kernels of their CPU; clients notice only the time that it takes.

`make test-performance` has the long form: each type by itself, stock builds, perplexity, malformed requests.
"""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import gguf
import numpy as np
import pytest

from random_model import WORDS, write_model
from support.harness import HANG_S, Release, over
from support.logits import Logits, compare, same
from support.multiplications import (
    BATCH,
    COLUMNS,
    HAPPENINGS,
    ROWS,
    Multiplication,
    changes_as_a_whole,
    experts,
    experts_as_a_batch,
    experts_named_more_than_once,
    is_had_from_the_cache,
    near,
)
from support.quantised_models import TYPES, write_quantised
from support.rpc_session import Arena, Op, Session, Tensor, Type, WorkerClosedError
from support.server_buffers import adapter, serving
from support.watched_worker import Watched, killed_in_a_run, settings, watched

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.llama


@pytest.fixture(scope="module")
def repacking(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched(release, tmp_path_factory.mktemp("repacking"), options=("-c",)) as worker:
        yield worker


@pytest.fixture(scope="module")
def kernel(repacking: Watched) -> Type:
    """Return a type for which this CPU has a kernel."""
    if not repacking.kernels:
        pytest.skip("this CPU has no repacked kernel, and the worker says so")
    return sorted(repacking.kernels)[0]


@pytest.mark.parametrize("happening", HAPPENINGS, ids=lambda happening: happening.__name__)
def test_a_weight_is_right_whatever_happens_to_it(
    repacking: Watched, kernel: Type, happening: Callable[[Multiplication], None]
) -> None:
    with closing(Session(repacking.port)) as session:
        m = Multiplication(session, kernel)
        m.check()
        assert repacking.repack["weights"] == repacking.repack["of_weights"] == 1
        happening(m)
        m.check_all()
        assert repacking.worker.alive


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_each_type_is_multiplied_and_had_back(repacking: Watched, kind: Type) -> None:
    with closing(Session(repacking.port)) as session:
        m = Multiplication(session, kind)
        m.check_all()
        assert repacking.repack["weights"] == (kind in repacking.kernels)
        assert repacking.repack["of_weights"] == 1
        size = len(m.stored) / 2**20 if kind in repacking.kernels else 0
        assert repacking.repack["mib"] == pytest.approx(size, abs=0.01)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_experts_are_multiplied_and_had_back(repacking: Watched, kind: Type) -> None:
    with closing(Session(repacking.port)) as session:
        m = experts(session, kind)
        assert repacking.repack["weights"] == (kind in repacking.kernels)
        experts_as_a_batch(m)


@pytest.mark.parametrize("tokens", [1, BATCH])
def test_a_token_may_name_an_expert_more_than_once(repacking: Watched, kernel: Type, tokens: int) -> None:
    with closing(Session(repacking.port)) as session:
        experts_named_more_than_once(session, kernel, tokens)
        assert repacking.worker.alive


def test_a_weight_is_right_on_several_devices(release: Release, kernel: Type, tmp_path: Path) -> None:
    """Each device has a graph. The second one multiplies with a weight of the first device and with its own copy."""
    with watched(release, tmp_path, options=("-d", "CPU")) as worker, closing(Session(worker.port)) as session:
        m = Multiplication(session, kernel)
        m.check()
        there = Arena(session, 1 << 20, device=1)
        copy = there.place(kernel, COLUMNS, ROWS)
        products = [there.place(Type.F32, ROWS, BATCH, op=Op.MUL_MAT, src=(weight, m.x)) for weight in (m.weight, copy)]
        session.copy(m.weight, copy)
        session.compute(*products, device=1)
        copied = m.numbers()
        for _round in range(3):
            for product, numbers in zip(products, (m.numbers(), copied)):
                near(session.values(product).reshape(BATCH, ROWS), m.inputs @ numbers.T)
            changes_as_a_whole(m)
            session.recompute(device=1)
        assert worker.repack["weights"] == worker.repack["of_weights"] == 2


def test_a_weight_from_the_cache_is_as_one_that_was_sent(repacking: Watched, kernel: Type) -> None:
    is_had_from_the_cache(repacking, kernel)


def test_what_a_worker_repacked_stays_to_be_read(repacking: Watched, kernel: Type) -> None:
    with closing(Session(repacking.port)) as session:
        Multiplication(session, kernel).check()
        before = repacking.repack
    with closing(Session(repacking.port)):
        assert repacking.repack == before
    assert (repacking.status_file.stat().st_mode & 0o777) == 0o644
    assert "Repacked 1 of 1 weights" in repacking.log


def test_without_it_a_worker_is_as_upstream_has_it(release: Release, tmp_path: Path) -> None:
    with watched(release, tmp_path, "GGML_RPC_REPACK=0") as plain, closing(Session(plain.port)) as session:
        m = Multiplication(session, Type.Q4_0)
        m.check_all()
        assert plain.repack["enabled"] is False
        assert plain.repack["weights"] == 0
        assert "off, by GGML_RPC_REPACK" in plain.log


def test_a_weight_that_is_said_to_be_shorter_leaves_what_lies_behind_it(repacking: Watched, kernel: Type) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kernel]
    rows = 32
    with closing(Session(repacking.port)) as session:
        buffer = session.alloc(1 << 16)
        data = bytes(range(256)) * (rows * size // 256 + 1)
        whole = Tensor(Type.F32, (len(data) // 4,), buffer, buffer.base)
        session.set(whole, data)
        # Give its values a stride of 0, which makes its bytes one block fewer.
        lie = (0, size, rows * size, rows * size)
        weight = Tensor(kernel, (block, rows), buffer, buffer.base, nb=lie, name="output.weight")
        session.set(weight, data[: (rows - 1) * size])
        assert session.get(whole, (rows - 1) * size, size) == data[(rows - 1) * size : rows * size]


def test_a_weight_out_of_its_buffer_is_refused(repacking: Watched, kernel: Type) -> None:
    with closing(Session(repacking.port)) as session:
        m = Multiplication(session, kernel)
        m.check()
        with pytest.raises(WorkerClosedError):
            session.get(m.weight, 0, m.arena.buffer.size + 1)
    assert repacking.worker.alive


# A text of several batches comes first, then one more token at a time. Different kernels compute these two cases.
FIRST, LAST = 75, 81


def _asked(port: int, vocabulary: int) -> Logits:
    values = np.full((LAST - FIRST, vocabulary), np.nan)
    for row, words in zip(values, range(FIRST, LAST)):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
        wanted = {"prompt": " ".join(WORDS[:words]), "n_predict": 1, "temperature": 0, "n_probs": vocabulary}
        connection.request("POST", "/completion", json.dumps(wanted), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        for one in answer["completion_probabilities"][0]["top_logprobs"]:
            row[one["id"]] = one["logprob"]
    return Logits(np.arange(FIRST, LAST), values)


def served(release: Release, model: Path, vocabulary: int, workers: Sequence[int] = (), *, threads: int = 2) -> Logits:
    """Return the logits that follow a text, computed here or by the workers on these loopback ports.

    `llama-results` would write logits, but no default release has it. `llama-server` gives the logarithm of each
    token's probability, for all tokens if that many are requested. These are the logits except for a constant.
    """
    given = ["-c", "256", "-t", str(threads), "-ub", "32", "-np", "1", *over(workers)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with serving(release, model, log, *given) as (process, port):
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            return _asked(port, vocabulary)


# Models like those that people use: mixed types, a shape that no kernel takes (the rows of the output), experts, tied
# embeddings.
MODELS: dict[str, dict[str, Any]] = {
    "dense": {"types": TYPES, "layers": len(TYPES)},
    "experts": {"types": TYPES, "layers": len(TYPES), "experts": 4},
    "tied": {"types": (Type.Q4_0,), "tied": True},
}
# The file of each, and the number of its tokens.
Models = dict[str, "tuple[Path, int]"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_quantised(folder / f"{name}.gguf", **options) for name, options in MODELS.items()}


@pytest.mark.parametrize("name", MODELS)
def test_workers_say_what_local_inference_says(release: Release, models: Models, tmp_path: Path, name: str) -> None:
    """The number of workers does not matter, and workers that repack nothing give the results of upstream's workers."""

    def said(*workers: Watched, threads: int = 2) -> Logits:
        return served(release, *models[name], [worker.port for worker in workers], threads=threads)

    here = said()
    same(here, said(threads=1))
    with watched(release, tmp_path / "1", threads=2) as first, watched(release, tmp_path / "2") as second:
        same(here, said(first))
        alone = first.repack
        same(here, said(first, second))
        for figure in "weights", "of_weights":
            assert first.repack[figure] + second.repack[figure] == alone[figure]
        if first.kernels:
            assert 0 < alone["weights"] <= alone["of_weights"]
            assert 0 < alone["mib"] <= alone["of_mib"]
            assert (alone["weights"] == alone["of_weights"]) is (name == "tied")
    assert set(settings(rpc_server_environment={"GGML_RPC_REPACK": 0})) - set(settings()) == {"GGML_RPC_REPACK=0"}
    with watched(release, tmp_path / "3", *settings(rpc_server_environment={"GGML_RPC_REPACK": 0})) as plain:
        found = compare(here, said(plain), 0.05)
        assert (plain.repack["enabled"], plain.repack["weights"], plain.repack["mib"]) == (False, 0, 0)
        assert found.typical < found.limit
        assert not first.kernels or found.largest > 0


def test_a_client_that_is_killed_leaves_nothing_behind(release: Release, models: Models, tmp_path: Path) -> None:
    """Models loaded one after another, one of them twice, do not affect each other either."""
    wanted = {name: served(release, *models[name]) for name in MODELS}
    with ExitStack() as stack:
        worker = None
        for number, name in enumerate(["dense", "experts", "dense", "tied"]):
            worker = worker or stack.enter_context(watched(release, tmp_path / str(number)))
            killed_in_a_run(release, models[name][0], worker)
            if not worker.worker.alive:
                # Upstream's worker dies of SIGPIPE if it writes to a client that is gone.
                assert worker.worker.process.returncode == -signal.SIGPIPE
                worker = None
                continue
            same(wanted[name], served(release, *models[name], [worker.port]))


def test_an_adapter_changes_what_workers_say_as_it_does_here(release: Release, tmp_path: Path) -> None:
    """Products with an adapter use floats, beside products with the repacked weights that the adapter belongs to."""
    width, layers = 512, 4
    eight, model = tmp_path / "eight.gguf", tmp_path / "four.gguf"
    write_model(eight, layers, width, context=512, seed=1)
    quantise = [release.bin / "llama-quantize", "--allow-requantize", eight, model, "Q4_0"]
    subprocess.run(quantise, capture_output=True, check=True, timeout=HANG_S)
    lora = adapter(tmp_path / "adapter.gguf", layers, width)

    def said(ports: list[int], *options: str | Path) -> str:
        command: list[str | Path] = [release.bin / "llama-completion", "-m", model, *over(ports), *options]
        command += ["-fit", "off", "-c", "512", "-n", "32", "--ignore-eos", "-no-cnv", "--no-display-prompt"]
        done = subprocess.run(
            [*command, "--temp", "0", "-t", "2", "-p", "the river of stone"], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=True, timeout=HANG_S,
        )  # fmt: skip
        return done.stdout

    here, adapted = said([]), said([], "--lora", lora)
    assert len(adapted.split()) >= 32
    assert adapted != here
    with watched(release, tmp_path / "1", threads=2) as first, watched(release, tmp_path / "2") as second:
        for ports in [first.port], [first.port, second.port]:
            assert said(ports) == here
            assert said(ports, "--lora", lora) == adapted
        for worker in first, second:
            assert (worker.repack["weights"] > 0) is (Type.Q4_0 in worker.kernels)
