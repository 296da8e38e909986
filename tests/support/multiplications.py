# SPDX-License-Identifier: GPL-3.0-or-later
"""A weight on a worker, the events that change it there, and its products."""

from __future__ import annotations

from contextlib import closing
from typing import Callable

import gguf
import numpy as np

from support.quantised_models import random_blocks
from support.rpc_session import Arena, Op, Session, Tensor, Type, view
from support.watched_worker import Watched

COLUMNS, ROWS, BATCH = 512, 64, 6
# The error that a product may have, as a share of the products' deviation, if the weight has four bits and the row is
# rounded to eight.
ROUNDING = 0.03


class Multiplication:
    """A weight on a worker, and its product with inputs."""

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
        """Assert that the product is right: by default that of the stored weight and the inputs."""
        node = node or self.product
        if again:
            self.session.recompute()
        else:
            self.session.compute(node)
        near(
            self.session.values(node).reshape(BATCH, -1), self.inputs @ (self.numbers() if weight is None else weight).T
        )

    def check_all(self) -> None:
        """Assert that the weight is right in a product and when it is read."""
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
    # Write a whole tensor beside the weight, and then another one over half of each.
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
    # Copy it back, when both are repacked.
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
    # The worker knows the first target already. The second one comes with this graph.
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
    # The inputs are every other row of twice as many rows.
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
EXPERTS, USED = 4, 2


def experts(session: Session, kind: Type) -> Multiplication:
    """Multiply each token by some experts, and read the experts back; return the multiplication."""
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
    """Multiply the experts as matrices of a batch, which no kernel multiplies."""
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
    """Name experts more than once, as GroveMoE does. Upstream's kernels had no room for that."""
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


def is_had_from_the_cache(worker: Watched, kind: Type) -> None:
    """Keep a weight, and give it to another client that does not send it."""
    with closing(Session(worker.port)) as session:
        m = Multiplication(session, kind)
        assert not session.set_by_hash(m.weight, m.stored[::-1])
        session.set(m.weight, m.stored, keep=True)
        m.check_all()
    with closing(Session(worker.port)) as session:
        m = Multiplication(session, kind)
        session.set(m.weight, m.random(ROWS))
        assert session.set_by_hash(m.weight, m.stored)
        m.check_all()
        assert worker.repack["weights"] == (kind in worker.kernels)


def is_right_whatever_happens(worker: Watched, kind: Type) -> None:
    """Try everything that can happen to a weight of one type, for workers that no test here starts."""
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
