# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of the kernels of the other architecture, emulated program by program. (`make test-aarch64` has whole hosts.)

A program's compiler options and, with SVE, the length of the processor's vectors decide which kernels it uses
(upstream's ggml-cpu/repack.cpp, ggml_repack_get_optimal_repack_type). The results are real, but the speed says nothing.
"""

from __future__ import annotations

import platform
import re
import shutil
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest

from performance.results import TEXT, results
from support.builds import AARCH64, PATCHES, Build, build
from support.logits import Logits, compare, same
from support.multiplications import BATCH, COLUMNS, Multiplication, is_right_whatever_happens
from support.quantised_models import TYPES, Type, write_quantised
from support.rpc_session import Op, Session
from support.watched_worker import killed_in_a_run, watched

if TYPE_CHECKING:
    from pathlib import Path

EMULATOR = "qemu-aarch64-static"
pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(
        platform.machine() == "aarch64" or not shutil.which(EMULATOR) or not shutil.which("aarch64-linux-gnu-g++"),
        reason="needs qemu-aarch64-static and aarch64-linux-gnu-g++, on another architecture",
    ),
]
# Limit for rounding: kernels of other processors add in other orders, and so do plain kernels.
OTHER_KERNELS = 0.1
# 40 tokens with the first one. In batches of 39 and one, they are multiplied four at a time, the rest one by one, and
# one alone.
SHORT = " ".join(TEXT.split()[:39])
BATCHES = ("-ub", "39")


@dataclass(frozen=True)
class Level:
    """Processors of one kind: the compiler's name of them, QEMU's name, and the layouts of their kernels."""

    arch: str
    cpu: str
    layouts: frozenset[str] = frozenset()

    @property
    def under(self) -> tuple[str, ...]:
        return (EMULATOR, "-cpu", self.cpu)

    def build(self) -> Build:
        options = {**AARCH64, "GGML_CPU_ARM_ARCH": self.arch}
        return build(f"aarch64-{self.arch}", options, ["ggml-rpc-server", "llama-results"], PATCHES)


ANY = {"iq4_nl_4x4", "mxfp4_4x4"}
DOTPROD = frozenset({"q1_0_4x4", "q4_0_4x4", "q8_0_4x4", "q4_K_8x4", "q5_K_8x4", "q6_K_8x4"} | ANY)
I8MM = frozenset({"q1_0_4x8", "q4_0_4x8", "q8_0_4x8", "q4_K_8x8", "q5_K_8x8", "q6_K_8x8"} | ANY)
SVE = "armv8.2-a+dotprod+fp16+i8mm+sve"
LEVELS = {
    "dotprod": Level("armv8.2-a+dotprod+fp16", "neoverse-n1", DOTPROD),
    "i8mm": Level("armv8.2-a+dotprod+fp16+i8mm", "max,sve=off", I8MM),
    "sve-of-128-bits": Level(SVE, "max,sve-max-vq=1", I8MM),
    # Then some rows are interleaved by eight, and the rest by four.
    "sve-of-256-bits": Level(SVE, "max,sve-max-vq=2", I8MM | {"q4_0_8x8"}),
}
# A processor without any of these features.
OLD = Level("armv8-a", "cortex-a72")
KERNELS = {Type.Q4_0, Type.Q8_0, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_NL, Type.MXFP4}


@pytest.fixture(scope="module", params=LEVELS.values(), ids=LEVELS)
def level(request: pytest.FixtureRequest) -> Level:
    return request.param


@pytest.fixture(scope="module")
def emulated(level: Level) -> Build:
    return level.build()


# Each type has its turn at each place of a layer. Kernels cannot interleave the rows of the output, because of their
# number.
@pytest.fixture(scope="module", params=[0, 4], ids=["dense", "experts"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    return write_quantised(path, TYPES, layers=len(TYPES), experts=request.param)[0]


def said(
    program: Build,
    model: Path,
    *ports: int,
    under: tuple[str, ...] = (),
    threads: int = 2,
    options: tuple[str, ...] = (),
) -> Logits:
    """Return the logits of a text, computed by a program here, emulated or not, or by it on workers."""
    return results(program, model, ports, text=SHORT, under=under, threads=threads, options=(*BATCHES, *options))


def weights(model: Path) -> tuple[int, int]:
    """Return how many weights of a model have kernels, and how many are multiplied."""
    multiplied = [t for t in gguf.GGUFReader(model).tensors if len(t.shape) > 1 and t.name != "token_embd.weight"]
    return sum(t.tensor_type in KERNELS and t.shape[1] % 8 == 0 for t in multiplied), len(multiplied)


def near(first: Logits, second: Logits) -> None:
    found = compare(first, second, OTHER_KERNELS)
    assert found.is_rounding, str(found)


def test_a_worker_says_what_its_processor_says_by_itself(
    level: Level, emulated: Build, stock: Build, model: Path, tmp_path: Path
) -> None:
    """Check also that results without repacking and results of this machine differ by rounding only."""
    here = said(emulated, model, under=level.under)
    same(here, said(emulated, model, under=level.under, threads=1))
    with watched(emulated, tmp_path / "on", under=level.under) as worker:
        there = said(stock, model, worker.port)
        assert worker.layouts == level.layouts
        assert (worker.repack["weights"], worker.repack["of_weights"]) == weights(model)
    same(here, there)
    with watched(emulated, tmp_path / "off", "GGML_RPC_REPACK=0", under=level.under) as worker:
        plain = said(stock, model, worker.port)
        assert worker.repack["weights"] == 0
    same(said(emulated, model, under=level.under, options=("--no-repack",)), plain)
    assert not np.array_equal(plain.values, there.values)
    near(plain, there)
    near(said(stock, model), there)


@pytest.mark.parametrize("rows", [64, 12, 10])
def test_each_type_is_multiplied_and_had_back(level: Level, emulated: Build, tmp_path: Path, rows: int) -> None:
    """Check that weights of whole groups of rows are interleaved, of four for some types and of eight for others."""
    with watched(emulated, tmp_path, under=level.under) as worker:
        for kind in TYPES:
            groups = [int(group) for group in re.findall(rf"(?i)\b{kind.name}_(\d+)x", " ".join(level.layouts))]
            with closing(Session(worker.port)) as session:
                m = Multiplication(session, kind)
                weight, m.stored = m.arena.place(kind, COLUMNS, rows), m.random(rows)
                session.set(weight, m.stored)
                product = m.results.place(Type.F32, rows, BATCH, op=Op.MUL_MAT, src=(weight, m.x))
                m.check(product)
                assert session.get(weight) == m.stored
                m.check(product)
                assert worker.repack["weights"] == any(rows % group == 0 for group in groups)
                assert worker.repack["of_weights"] == 1


def test_a_weight_is_right_whatever_happens_to_it(level: Level, emulated: Build, tmp_path: Path) -> None:
    with watched(emulated, tmp_path, under=level.under, options=("-c",)) as worker:
        for kind in TYPES:
            assert (kind in worker.kernels) is (kind in KERNELS)
            is_right_whatever_happens(worker, kind)


def test_models_that_come_and_go_on_several_workers_are_right(
    level: Level, emulated: Build, stock: Build, model: Path, tmp_path: Path
) -> None:
    """Use one to three workers, also after a client that was killed, and after another model."""
    tied = write_quantised(tmp_path / "tied.gguf", (Type.Q4_0,), tied=True)[0]
    wanted = {path: said(emulated, path, under=level.under) for path in (model, tied)}
    with ExitStack() as stack:
        workers = [stack.enter_context(watched(emulated, tmp_path / str(n), under=level.under)) for n in range(3)]
        for path, many in (model, 3), (tied, 2), (model, 2):
            same(wanted[path], said(stock, path, *(worker.port for worker in workers[:many])))
        for path in tied, model:
            killed_in_a_run(stock, path, workers[-1])
            # Upstream's worker ends if a client is gone while the worker writes to it.
            if not workers[-1].worker.alive:
                workers.append(stack.enter_context(watched(emulated, tmp_path / path.stem, under=level.under)))
            same(wanted[model], said(stock, model, workers[-1].port))


def test_a_worker_without_kernels_says_so_and_is_as_upstreams(stock: Build, model: Path, tmp_path: Path) -> None:
    old = OLD.build()
    with watched(old, tmp_path / "on", under=OLD.under) as worker:
        there = said(stock, model, worker.port)
        assert worker.log.count("none, as there is no kernel for this CPU") == 1
        assert "Repacked" not in worker.log
        assert worker.repack["kernels"] is False
        assert worker.repack["weights"] == 0
    same(said(old, model, under=OLD.under), there)
    with watched(old, tmp_path / "off", "GGML_RPC_REPACK=0", under=OLD.under) as worker:
        assert np.array_equal(said(stock, model, worker.port).values, there.values)
    near(said(stock, model), there)
