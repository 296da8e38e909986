# SPDX-License-Identifier: GPL-3.0-or-later
"""Workers repack weights for the kernels of their CPU; nobody can tell, but by the time that it takes.

`make test-performance` has the long form: each type by itself, stock builds, perplexity, malformed requests.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

import gguf
import jinja2
import numpy as np
import pytest
from ansible.plugins.filter.core import to_bool
from harness import HANG_S, ROOT, AnyRelease, Release, Worker, over, running_worker
from logits import Logits, compare
from pinned_source import TESTED, released
from quantised_models import TYPES, random_blocks, write_quantised
from random_model import write_model
from rpc_session import Arena, Op, Session, Tensor, Type, WorkerClosedError, fnv_1a, view
from served_logits import served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.llama

COLUMNS, ROWS, BATCH = 512, 64, 6
# By which the product of a type of four bits and a row that is rounded to eight may be off, of the products' deviation.
ROUNDING = 0.03


@dataclass
class Watched:
    """A worker, and what it says of its weights."""

    worker: Worker
    status_file: Path

    @property
    def port(self) -> int:
        return self.worker.port

    @property
    def log(self) -> str:
        return self.worker.log.read_text()

    @property
    def repack(self) -> dict[str, float]:
        return dict(json.loads(self.status_file.read_text())["repack"])

    @property
    def layouts(self) -> set[str]:
        """Return how weights are interleaved for the kernels of this CPU, as the worker says at its start."""
        (line,) = [line for line in self.log.splitlines() if line.startswith("  repack  ")]
        return set(re.findall(r"\w+_\d+x\d+", line))

    @property
    def kernels(self) -> set[Type]:
        """Return the types for which this CPU has kernels."""
        types = {layout.rpartition("_")[0].lower() for layout in self.layouts}
        return {kind for kind in TYPES if kind.name.lower() in types}


@contextmanager
def watched(
    release: AnyRelease,
    folder: Path,
    *environment: str,
    threads: int = 1,
    options: tuple[str, ...] = (),
    under: tuple[str, ...] = (),
) -> Iterator[Watched]:
    """Start a worker whose cache, log and status are in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    status = folder / "status.json"
    prefix = ("env", f"GGML_RPC_STATUS={status}", f"LLAMA_CACHE={folder / 'cache'}", *environment, *under)
    with running_worker(release, folder / "log", "-d", "CPU", *options, threads=threads, prefix=prefix) as worker:
        yield Watched(worker, status)


@pytest.fixture(scope="module", params=TESTED)
def repacking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched(released(request.param), tmp_path_factory.mktemp("repacking"), options=("-c",)) as worker:
        yield worker


@pytest.fixture(scope="module")
def kernel(repacking: Watched) -> Type:
    """A type for which this CPU has a kernel."""
    if not repacking.kernels:
        pytest.skip("this CPU has no repacked kernel, and the worker says so")
    return sorted(repacking.kernels)[0]


class Multiplication:
    """A weight on a worker, and what comes of it."""

    def __init__(self, session: Session, kind: Type, experts: int = 0) -> None:
        self.rng = np.random.default_rng(7)
        self.session, self.kind, self.experts = session, kind, experts
        self.arena = Arena(session, 8 << 20)
        self.results = Arena(session, 1 << 20)
        shape = (COLUMNS, ROWS, experts) if experts else (COLUMNS, ROWS)
        self.weight = self.arena.place(kind, *shape, name="blk.0.ffn_up_exps.weight" if experts else "output.weight")
        self.stored = self.random(max(1, experts) * ROWS)
        self.inputs = self.rng.standard_normal((BATCH, COLUMNS), dtype=np.float32)
        self.x = self.results.place(Type.F32, COLUMNS, BATCH, name="x")
        self.product = self.results.place(Type.F32, ROWS, BATCH, op=Op.MUL_MAT, src=(self.weight, self.x))
        session.set(self.weight, self.stored)
        session.set(self.x, self.inputs.tobytes())

    def random(self, rows: int, columns: int = COLUMNS) -> bytes:
        return random_blocks(self.rng, self.kind, rows, columns).tobytes()

    def numbers(self, data: bytes | None = None, columns: int = COLUMNS) -> np.ndarray:
        raw = np.frombuffer(self.stored if data is None else data, np.uint8)
        return gguf.dequantize(raw, self.kind).reshape(-1, columns)

    def check(self, node: Tensor | None = None, weight: np.ndarray | None = None, *, again: bool = False) -> None:
        """The product is right: of what is stored and the inputs, if nothing else is said."""
        node = node or self.product
        if again:
            self.session.recompute()
        else:
            self.session.compute(node)
        near(
            self.session.values(node).reshape(BATCH, -1), self.inputs @ (self.numbers() if weight is None else weight).T
        )

    def check_all(self) -> None:
        """The weight is right for everyone who asks."""
        self.check()
        assert self.session.get(self.weight) == self.stored
        self.check()


def near(found: np.ndarray, wanted: np.ndarray) -> None:
    difference = np.sqrt(((found - wanted) ** 2).mean())
    assert difference <= ROUNDING * max(float(wanted.std()), 1e-6), f"off by {difference} of {wanted.std()}"


def is_read(m: Multiplication) -> None:
    assert m.session.get(m.weight) == m.stored
    part = (len(m.stored) // 3) // 2 * 2
    m.check()
    assert m.session.get(m.weight, part, 1000) == m.stored[part : part + 1000]


def is_read_and_computed_again(m: Multiplication) -> None:
    assert m.session.get(m.weight, 0, 10) == m.stored[:10]
    m.check(again=True)


def changes_in_part(m: Multiplication) -> None:
    row = len(m.stored) // ROWS
    rows = m.random(5)
    m.session.set(m.weight, rows, 3 * row)
    m.stored = m.stored[: 3 * row] + rows + m.stored[8 * row :]
    m.check(again=True)


def changes_as_a_whole(m: Multiplication) -> None:
    m.stored = m.random(ROWS)
    m.session.set(m.weight, m.stored)
    m.check(again=True)


def changes_often(m: Multiplication) -> None:
    for _round in range(8):
        changes_as_a_whole(m)
        m.check_all()


def becomes_another(m: Multiplication) -> None:
    # Over half of it, and all of another beside it.
    m.session.set(Tensor(m.kind, (COLUMNS, ROWS), m.arena.buffer, m.weight.data + len(m.stored)), m.random(ROWS))
    other = Tensor(m.kind, (2 * COLUMNS, ROWS // 2), m.arena.buffer, m.weight.data + len(m.stored) // 2)
    stored = m.random(ROWS // 2, 2 * COLUMNS)
    m.session.set(other, stored)
    assert m.session.get(other) == stored
    m.stored = m.stored[: len(m.stored) // 2] + stored[: len(m.stored) // 2]


def is_wiped_in_part(m: Multiplication) -> None:
    m.session.memset(m.weight, 0, 0, len(m.stored) // 2)
    m.stored = bytes(len(m.stored) // 2) + m.stored[len(m.stored) // 2 :]
    m.check(again=True)


def is_cleared(m: Multiplication) -> None:
    m.session.clear(m.arena.buffer)
    m.stored = bytes(len(m.stored))
    m.check(again=True)


def is_copied(m: Multiplication) -> None:
    copy = m.arena.place(m.kind, COLUMNS, ROWS)
    m.session.copy(m.weight, copy)
    assert m.session.get(copy) == m.stored
    m.check(m.results.place(Type.F32, ROWS, BATCH, op=Op.MUL_MAT, src=(copy, m.x)))


def is_copied_over(m: Multiplication) -> None:
    other, m.stored = m.arena.place(m.kind, COLUMNS, ROWS), m.random(ROWS)
    m.session.set(other, m.stored)
    m.session.copy(other, m.weight)
    m.check(again=True)


def is_copied_between_buffers(m: Multiplication) -> None:
    elsewhere = Arena(m.session, 1 << 20)
    copy = elsewhere.place(m.kind, COLUMNS, ROWS, name="copy.weight")
    product = m.results.place(Type.F32, ROWS, BATCH, op=Op.MUL_MAT, src=(copy, m.x))
    m.session.copy(m.weight, copy)
    m.check(product)
    assert m.session.get(copy) == m.stored
    # And back, when both are repacked.
    m.stored = m.random(ROWS)
    m.session.set(copy, m.stored)
    m.check(product)
    m.session.copy(copy, m.weight)
    m.check()
    m.session.free(elsewhere.buffer)


def is_copied_by_a_graph(m: Multiplication) -> None:
    target = m.arena.place(Type.F32, COLUMNS, ROWS)
    copied = Tensor(Type.F32, (COLUMNS, ROWS), target.buffer, target.data, Op.CPY, (m.weight, target), target)
    m.session.compute(copied)
    assert np.array_equal(m.session.values(target).reshape(ROWS, COLUMNS), m.numbers())


def is_written_by_the_graph_that_multiplies(m: Multiplication) -> None:
    other, m.stored = m.arena.place(m.kind, COLUMNS, ROWS), m.random(ROWS)
    m.session.set(other, m.stored)
    # Once where it is known, and once where it comes with this graph.
    for target in m.weight, m.arena.place(m.kind, COLUMNS, ROWS):
        written = Tensor(m.kind, (COLUMNS, ROWS), target.buffer, target.data, Op.CPY, (other, target), target)
        product = m.results.place(Type.F32, ROWS, BATCH, op=Op.MUL_MAT, src=(target, m.x))
        for _round in range(2):
            m.session.compute(written, product)
            near(m.session.values(product).reshape(BATCH, ROWS), m.inputs @ m.numbers().T)


def has_rows_read(m: Multiplication) -> None:
    numbers = np.array([5, 0, ROWS - 1], np.int32)
    which = m.results.place(Type.I32, 3)
    m.session.set(which, numbers.tobytes())
    rows = m.results.place(Type.F32, COLUMNS, 3, op=Op.GET_ROWS, src=(m.weight, which))
    for nodes in [rows], [m.product, rows], [rows, m.product]:
        m.session.compute(*nodes)
        assert np.array_equal(m.session.values(rows).reshape(3, COLUMNS), m.numbers()[numbers])
        if m.product in nodes:
            near(m.session.values(m.product).reshape(BATCH, ROWS), m.inputs @ m.numbers().T)


def is_viewed(m: Multiplication) -> None:
    row = len(m.stored) // ROWS
    for first, rows in (0, 32), (8, 24), (3, 9), (0, ROWS):
        part = view(m.weight, m.kind, (COLUMNS, rows), first * row)
        of_part = m.results.place(Type.F32, rows, BATCH, op=Op.MUL_MAT, src=(part, m.x))
        m.check(of_part, m.numbers()[first : first + rows])


def is_multiplied_beside_a_part_of_it(m: Multiplication) -> None:
    part = Tensor(m.kind, (COLUMNS, 32), m.arena.buffer, m.weight.data + 8 * len(m.stored) // ROWS)
    of_part = m.results.place(Type.F32, 32, BATCH, op=Op.MUL_MAT, src=(part, m.x))
    for nodes in [of_part, m.product], [m.product, of_part]:
        m.session.compute(*nodes)
        near(m.session.values(of_part).reshape(BATCH, 32), m.inputs @ m.numbers()[8:40].T)
        near(m.session.values(m.product).reshape(BATCH, ROWS), m.inputs @ m.numbers().T)


def is_multiplied_with_more_dimensions(m: Multiplication) -> None:
    inputs = view(m.x, Type.F32, (COLUMNS, 1, 2, BATCH // 2), op=Op.RESHAPE)
    m.check(m.results.place(Type.F32, ROWS, 1, 2, BATCH // 2, op=Op.MUL_MAT, src=(m.weight, inputs)))


def is_multiplied_with_rows_apart(m: Multiplication) -> None:
    # Every other row of twice as many.
    apart = m.results.place(Type.F32, COLUMNS, 2 * BATCH)
    m.session.set(apart, np.repeat(m.inputs, 2, axis=0).tobytes())
    row = COLUMNS * 4
    inputs = Tensor(
        Type.F32, (COLUMNS, BATCH), apart.buffer, apart.data, Op.VIEW, (apart,), apart,
        nb=(4, 2 * row, 2 * row * BATCH, 2 * row * BATCH),
    )  # fmt: skip
    m.check(m.results.place(Type.F32, ROWS, BATCH, op=Op.MUL_MAT, src=(m.weight, inputs)))


def goes_and_others_come(m: Multiplication) -> None:
    size = m.arena.buffer.size
    for _round in range(4):
        m.session.free(m.arena.buffer)
        m.arena = Arena(m.session, size)
        plain = m.arena.place(Type.F32, COLUMNS, ROWS)
        numbers = m.rng.standard_normal((ROWS, COLUMNS), dtype=np.float32)
        m.session.set(plain, numbers.tobytes())
        m.check(m.results.place(Type.F32, ROWS, BATCH, op=Op.MUL_MAT, src=(plain, m.x)), numbers)
        assert m.session.get(plain) == numbers.tobytes()
        m.session.free(m.arena.buffer)
        m.arena = Arena(m.session, size)
        m.weight = m.arena.place(m.kind, COLUMNS, ROWS)
        m.stored = m.random(ROWS)
        m.session.set(m.weight, m.stored)
        m.product = m.results.place(Type.F32, ROWS, BATCH, op=Op.MUL_MAT, src=(m.weight, m.x))
        m.check()


HAPPENINGS: list[Callable[[Multiplication], None]] = [
    is_read,
    is_read_and_computed_again,
    changes_in_part,
    changes_as_a_whole,
    changes_often,
    becomes_another,
    is_wiped_in_part,
    is_cleared,
    is_copied,
    is_copied_over,
    is_copied_between_buffers,
    is_copied_by_a_graph,
    is_written_by_the_graph_that_multiplies,
    has_rows_read,
    is_viewed,
    is_multiplied_beside_a_part_of_it,
    is_multiplied_with_more_dimensions,
    is_multiplied_with_rows_apart,
    goes_and_others_come,
]


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


EXPERTS, USED = 4, 2


def experts(session: Session, kind: Type) -> Multiplication:
    """Some experts are multiplied by each token, and had back."""
    m = Multiplication(session, kind, EXPERTS)
    chosen = m.rng.integers(0, EXPERTS, size=(BATCH, USED), dtype=np.int32)
    ids = m.results.place(Type.I32, USED, BATCH)
    session.set(ids, chosen.tobytes())
    x = view(m.x, Type.F32, (COLUMNS, 1, BATCH), op=Op.RESHAPE)
    product = m.results.place(Type.F32, ROWS, USED, BATCH, op=Op.MUL_MAT_ID, src=(m.weight, x, ids))
    wanted = np.einsum("tuij,tj->tui", m.numbers().reshape(EXPERTS, ROWS, COLUMNS)[chosen], m.inputs)
    for _round in range(2):
        session.compute(product)
        near(session.values(product).reshape(BATCH, USED, ROWS), wanted)
        assert session.get(m.weight) == m.stored
    return m


def experts_as_a_batch(m: Multiplication) -> None:
    """They are multiplied as matrices of a batch, which no kernel multiplies."""
    inputs = m.results.place(Type.F32, COLUMNS, BATCH, EXPERTS)
    m.session.set(inputs, np.tile(m.inputs, (EXPERTS, 1)).tobytes())
    batch = m.results.place(Type.F32, ROWS, BATCH, EXPERTS, op=Op.MUL_MAT, src=(m.weight, inputs))
    m.session.compute(batch)
    near(
        m.session.values(batch).reshape(EXPERTS, BATCH, ROWS),
        np.einsum("eij,tj->eti", m.numbers().reshape(EXPERTS, ROWS, COLUMNS), m.inputs),
    )
    assert m.session.get(m.weight) == m.stored


def experts_named_more_than_once(session: Session, kind: Type, tokens: int) -> None:
    """As GroveMoE's are. Upstream's kernels had no room for that."""
    m = Multiplication(session, kind, 8)
    x = view(m.x, Type.F32, (COLUMNS, 1, tokens))
    for named in (2, 2, 3, 3), (7, 7, 7, 7):
        chosen = np.tile(np.array(named, np.int32), (tokens, 1))
        ids = m.results.place(Type.I32, len(named), tokens)
        session.set(ids, chosen.tobytes())
        product = m.results.place(Type.F32, ROWS, len(named), tokens, op=Op.MUL_MAT_ID, src=(m.weight, x, ids))
        session.compute(product)
        near(
            session.values(product).reshape(tokens, len(named), ROWS),
            np.einsum("tuij,tj->tui", m.numbers().reshape(8, ROWS, COLUMNS)[chosen], m.inputs[:tokens]),
        )


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


def test_a_weight_is_right_on_several_devices(release_7: Release, kernel: Type, tmp_path: Path) -> None:
    """A graph for each, of which the second one multiplies with a weight of the first and with a copy of its own."""
    with watched(release_7, tmp_path, options=("-d", "CPU")) as worker, closing(Session(worker.port)) as session:
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


def is_had_from_the_cache(worker: Watched, kind: Type) -> None:
    """A weight is kept, and another client has it without sending it."""
    with closing(Session(worker.port)) as session:
        m = Multiplication(session, kind)
        assert not session.set_by_hash(m.weight, m.stored[::-1])
        session.set(m.weight, m.stored, keep=True)
        if session.major < 7:  # there a worker keeps only what is larger than 10 MiB
            (worker.status_file.parent / "cache/rpc" / f"{fnv_1a(m.stored):016x}").write_bytes(m.stored)
        m.check_all()
    with closing(Session(worker.port)) as session:
        m = Multiplication(session, kind)
        session.set(m.weight, m.random(ROWS))
        assert session.set_by_hash(m.weight, m.stored)
        m.check_all()
        assert worker.repack["weights"] == (kind in worker.kernels)


def test_a_weight_from_the_cache_is_as_one_that_was_sent(repacking: Watched, kernel: Type) -> None:
    is_had_from_the_cache(repacking, kernel)


def is_right_whatever_happens(worker: Watched, kind: Type) -> None:
    """All that can happen to a weight of one type; for workers that no test here starts."""
    for happening in HAPPENINGS:
        with closing(Session(worker.port)) as session:
            m = Multiplication(session, kind)
            m.check()
            assert worker.repack["weights"] == (kind in worker.kernels)
            happening(m)
            m.check_all()
    is_had_from_the_cache(worker, kind)
    with closing(Session(worker.port)) as session:
        experts_as_a_batch(experts(session, kind))
        experts_named_more_than_once(session, kind, BATCH)
    assert worker.worker.alive


def test_what_a_worker_repacked_stays_to_be_read(repacking: Watched, kernel: Type) -> None:
    with closing(Session(repacking.port)) as session:
        Multiplication(session, kernel).check()
        before = repacking.repack
    with closing(Session(repacking.port)):
        assert repacking.repack == before
    assert (repacking.status_file.stat().st_mode & 0o777) == 0o644
    assert "Repacked 1 of 1 weights" in repacking.log


def test_without_it_a_worker_is_as_upstream_has_it(release_7: Release, tmp_path: Path) -> None:
    with watched(release_7, tmp_path, "GGML_RPC_REPACK=0") as plain, closing(Session(plain.port)) as session:
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
        # Its values are said to have no distance, which makes its bytes one block fewer.
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


# Models as people's are: types mixed, a shape that no kernel takes (the rows of the output), experts, tied embeddings.
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


def settings(**variables: object) -> list[str]:
    """Return what the unit of role `rpc_server` sets in the environment of its process, but for places."""
    text = (ROOT / "roles/rpc_server/templates/llama-rpc-server.service.j2").read_text()
    chosen = {"rpc_server_cache": False, "rpc_server_repack": True, "rpc_server_spin": True, **variables}
    environment = jinja2.Environment(undefined=jinja2.ChainableUndefined, autoescape=False)
    environment.filters["bool"] = to_bool
    unit = environment.from_string(text).render(__rpc_server_systemd=257, **chosen)
    found = [line.partition("=")[2] for line in unit.splitlines() if line.startswith("Environment=")]
    return [setting for setting in found if "=/" not in setting]


def same(first: Logits, second: Logits) -> None:
    found = compare(first, second)
    assert found.is_rounding, str(found)


@pytest.mark.parametrize("name", MODELS)
def test_workers_say_what_local_inference_says(release_7: Release, models: Models, tmp_path: Path, name: str) -> None:
    """With as many workers as there are, and the ones that repack nothing say what upstream's do."""

    def said(*workers: Watched, threads: int = 2) -> Logits:
        return served(release_7, *models[name], [worker.port for worker in workers], threads=threads)

    here = said()
    same(here, said(threads=1))
    with watched(release_7, tmp_path / "1", threads=2) as first, watched(release_7, tmp_path / "2") as second:
        same(here, said(first))
        alone = first.repack
        same(here, said(first, second))
        for figure in "weights", "of_weights":
            assert first.repack[figure] + second.repack[figure] == alone[figure]
        if first.kernels:
            assert 0 < alone["weights"] <= alone["of_weights"]
            assert 0 < alone["mib"] <= alone["of_mib"]
            assert (alone["weights"] == alone["of_weights"]) is (name == "tied")
    assert set(settings(rpc_server_repack=False)) - set(settings()) == {"GGML_RPC_REPACK=0"}
    with watched(release_7, tmp_path / "3", *settings(rpc_server_repack=False)) as plain:
        found = compare(here, said(plain), 0.05)
        assert (plain.repack["enabled"], plain.repack["weights"], plain.repack["mib"]) == (False, 0, 0)
        assert found.typical < found.limit
        assert not first.kernels or found.largest > 0


def until(said: Callable[[], object]) -> None:
    deadline = time.monotonic() + HANG_S
    while not said():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def killed_in_a_run(release: Release, model: Path, worker: Watched) -> None:
    before = worker.log.count("Repacked")
    command: list[str | Path] = [release.bin / "llama-completion", "-m", model, "--rpc", f"127.0.0.1:{worker.port}"]
    command += ["-ngl", "99", "-fit", "off", "-c", "512", "-n", "-1", "--ignore-eos", "-no-cnv", "-p", "the"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
    )  # fmt: skip
    until(lambda: worker.log.count("Repacked") > before or process.poll() is not None)
    process.kill()
    assert process.wait(10) == -signal.SIGKILL
    until(lambda: not worker.worker.alive or worker.log.count("Accepted") == worker.log.count("connection closed"))


def test_a_client_that_is_killed_leaves_nothing_behind(release_7: Release, models: Models, tmp_path: Path) -> None:
    """And models one after another, the same again among them, do not get into each other's way."""
    wanted = {name: served(release_7, *models[name]) for name in MODELS}
    with ExitStack() as stack:
        worker = None
        for number, name in enumerate(["dense", "experts", "dense", "tied"]):
            worker = worker or stack.enter_context(watched(release_7, tmp_path / str(number)))
            killed_in_a_run(release_7, models[name][0], worker)
            if not worker.worker.alive:
                # Upstream's has no other answer to a client that is gone while it is written to.
                assert worker.worker.process.returncode == -signal.SIGPIPE
                worker = None
                continue
            same(wanted[name], served(release_7, *models[name], [worker.port]))


def write_adapter(path: Path, width: int, layers: int, rank: int = 4) -> None:
    """Write a LoRA adapter of random weights for the queries and the feed-forward output of a model of random_model."""
    rng = np.random.default_rng(3)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(rank))
    for layer in range(layers):
        for name, columns in ("attn_q", width), ("ffn_down", width * 11 // 4 // 32 * 32):
            down = rng.standard_normal((rank, columns), dtype=np.float32) / np.sqrt(columns)
            writer.add_tensor(f"blk.{layer}.{name}.weight.lora_a", down.astype(np.float32))
            writer.add_tensor(f"blk.{layer}.{name}.weight.lora_b", rng.standard_normal((width, rank), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_an_adapter_changes_what_workers_say_as_it_does_here(release_7: Release, tmp_path: Path) -> None:
    """Products with an adapter are of floats, beside those with the repacked weights that it belongs to."""
    width, layers = 512, 4
    eight, model, adapter = (tmp_path / name for name in ("eight.gguf", "four.gguf", "adapter.gguf"))
    write_model(eight, layers, width, context=512, seed=1)
    quantise = [release_7.bin / "llama-quantize", "--allow-requantize", eight, model, "Q4_0"]
    subprocess.run(quantise, capture_output=True, check=True, timeout=HANG_S)
    write_adapter(adapter, width, layers)

    def said(ports: list[int], *options: str | Path) -> str:
        command: list[str | Path] = [release_7.bin / "llama-completion", "-m", model, *over(ports), *options]
        command += ["-fit", "off", "-c", "512", "-n", "32", "--ignore-eos", "-no-cnv", "--no-display-prompt"]
        done = subprocess.run(
            [*command, "--temp", "0", "-t", "2", "-p", "the river of stone"], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=True, timeout=HANG_S,
        )  # fmt: skip
        return done.stdout

    here, adapted = said([]), said([], "--lora", adapter)
    assert len(adapted.split()) >= 32
    assert adapted != here
    with watched(release_7, tmp_path / "1", threads=2) as first, watched(release_7, tmp_path / "2") as second:
        for ports in [first.port], [first.port, second.port]:
            assert said(ports) == here
            assert said(ports, "--lora", adapter) == adapted
        for worker in first, second:
            assert (worker.repack["weights"] > 0) is (Type.Q4_0 in worker.kernels)
