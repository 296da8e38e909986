# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests that only a hostile client sends, each by itself, and similar ones that clients do send.

malformed_sessions.py spoils whole sessions at random. Here each request is known to end upstream's worker, or to make
it read or write beside its tensors.
"""

from __future__ import annotations

import struct
from contextlib import closing
from typing import TYPE_CHECKING, Callable

import numpy as np

from support.rpc_session import Command, Op, Session, Tensor, Type

if TYPE_CHECKING:
    from collections.abc import Iterable

Attack = Callable[[Session], None]
NOWHERE = 0x4141414141414141
# The parameters of ACC and SET: three strides, an offset, and whether the result takes the place of the first source.
PART = struct.Struct("<5i")


def tensor(session: Session, kind: Type, *ne: int, numbers: Iterable[float] | None = None) -> Tensor:
    """Store a tensor in a buffer of exactly its size, so that a sanitizer sees any access beyond it."""
    made = Tensor(kind, ne)
    made.buffer = session.alloc(made.nbytes)
    made.data = made.buffer.base
    values = np.zeros(made.ne[::-1]) if numbers is None else np.array(list(numbers)).reshape(made.ne[::-1])
    session.set(made, values.astype({Type.F32: "<f4", Type.I32: "<i4", Type.I64: "<i8"}[kind]).tobytes())
    return made


def node(session: Session, op: Op, src: tuple[Tensor, ...], *ne: int, params: bytes = b"") -> Tensor:
    made = tensor(session, Type.F32, *ne)
    made.op, made.src, made.params = op, src, params
    return made


def over(target: Tensor, op: Op, src: tuple[Tensor, ...], params: bytes = b"") -> Tensor:
    """Return a node that writes into a tensor."""
    return Tensor(target.type, target.ne, target.buffer, target.data, op, src, target, params=params)


def computed(session: Session, *nodes: Tensor) -> None:
    session.compute(*nodes)
    # A graph has no answer. This request has one, and so waits for the graph.
    session.get(nodes[-1], 0, 4)


def custom(op: Op) -> Attack:
    """Upstream's issue 25289."""

    def attack(session: Session) -> None:
        src = tuple(tensor(session, Type.F32, 16) for _source in range(3))
        computed(session, node(session, op, src, 16, params=struct.pack("<QiQ", NOWHERE, 1, 0)))

    return attack


def rows_of_more_matrices_than_there_are(session: Session) -> None:
    """Upstream's issue 26825."""
    rows, which = tensor(session, Type.F32, 16, 4), tensor(session, Type.I32, 1, 64)
    computed(session, node(session, Op.GET_ROWS, (rows, which), 16, 1, 64))


def rows_that_are_longer_than_those_of_the_result(session: Session) -> None:
    """Upstream's pull request 25542."""
    rows, which = tensor(session, Type.F32, 64, 4), tensor(session, Type.I32, 1)
    computed(session, node(session, Op.GET_ROWS, (rows, which), 16, 1))


def more_rows_than_the_result_has(session: Session) -> None:
    rows, which = tensor(session, Type.F32, 16, 4), tensor(session, Type.I32, 64)
    computed(session, node(session, Op.GET_ROWS, (rows, which), 16, 1))


def rows_whose_numbers_have_no_distance(session: Session) -> None:
    rows, which = tensor(session, Type.F32, 16), tensor(session, Type.I32, 1)
    rows.ne, rows.nb = (1 << 16, 1, 1, 1), (0, 0, 0, 0)
    computed(session, node(session, Op.GET_ROWS, (rows, which), 1 << 16, 1))


def rows_without_a_buffer(session: Session) -> None:
    which = tensor(session, Type.I32, 1, numbers=[1000])
    computed(session, node(session, Op.GET_ROWS, (Tensor(Type.F32, (16, 1 << 20)), which), 16, 1))


def rows_whose_size_is_too_large_for_a_number(session: Session) -> None:
    """The size is 0 modulo 2**64, and 0 bytes are in any buffer."""
    rows, which = tensor(session, Type.F32, 1), tensor(session, Type.I32, 1, 4, numbers=[1000, 0, 0, 0])
    rows.ne, rows.nb = (1, (1 << 32) - 1, 4, 1), (4, (1 << 32) - 1, (1 << 32) - 2, 0)
    computed(session, node(session, Op.GET_ROWS, (rows, which), 1, 1, 4))


def rows_into_more_matrices_than_there_are(session: Session) -> None:
    """Upstream's issue 26912."""
    target, rows = tensor(session, Type.F32, 4), tensor(session, Type.F32, 4, 1, 2)
    computed(session, over(target, Op.SET_ROWS, (rows, tensor(session, Type.I64, 1), target)))


def rows_into_shorter_ones(session: Session) -> None:
    target, rows = tensor(session, Type.F32, 4), tensor(session, Type.F32, 64)
    computed(session, over(target, Op.SET_ROWS, (rows, tensor(session, Type.I64, 1), target)))


def rows_into_a_type_that_nothing_is_converted_to(session: Session) -> None:
    target, rows = tensor(session, Type.I64, 4), tensor(session, Type.F32, 4)
    computed(session, over(target, Op.SET_ROWS, (rows, tensor(session, Type.I64, 1), target)))


def part(op: Op, ne: tuple[int, ...], *params: int) -> Attack:
    """Return an attack that reaches outside a result of 64 numbers. One of them is upstream's issue 25764."""

    def attack(session: Session) -> None:
        target, source = tensor(session, Type.F32, 64), tensor(session, Type.F32, *ne)
        computed(session, over(target, op, (target, source), PART.pack(*params, 1)))

    return attack


def scan(session: Session, ids: tuple[int, int] = (0, 1)) -> Tensor:
    """Return a scan over two sequences of three tokens, with two heads."""
    shapes = (4, 4, 2, 2), (4, 2, 3, 2), (2, 3, 2), (1, 2), (4, 1, 3, 2), (4, 1, 3, 2)
    src = *(tensor(session, Type.F32, *ne) for ne in shapes), tensor(session, Type.I32, 2, numbers=ids)
    return node(session, Op.SSM_SCAN, src, 48 + 64, params=struct.pack("<i", 1))


def delta_net(session: Session, n_snapshots: int = 1) -> Tensor:
    """Return a gated delta net over two sequences of three tokens, with two heads."""
    shapes = (4, 2, 3, 2), (4, 2, 3, 2), (4, 2, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2), (4, 4, 2, 2)
    src = tuple(tensor(session, Type.F32, *ne) for ne in shapes)
    return node(session, Op.GATED_DELTA_NET, src, 8, 6 + 8, params=struct.pack("<i", n_snapshots))


def states_that_are_far_apart(session: Session) -> None:
    wrong = scan(session)
    states = wrong.src[0]
    states.ne, states.nb = (4, 4, 2, 1), (*states.nb[:3], 1 << 20)
    wrong.src = (*wrong.src[:-1], tensor(session, Type.I32, 2))
    computed(session, wrong)


def more_snapshots_than_the_result_has(session: Session) -> None:
    """Upstream's issue 25704."""
    computed(session, delta_net(session, 1000))


def a_tensor_outside_of_its_buffer(session: Session) -> None:
    outside = tensor(session, Type.F32, 16)
    outside.data += 1 << 20
    session.get(outside)


def a_shape_that_there_cannot_be(session: Session) -> None:
    wrong = tensor(session, Type.F32, 1)
    wrong.ne = ((1 << 32) - 1,) * 4
    session.get(wrong, 0, 4)


def more_bytes_than_a_tensor_has(session: Session) -> None:
    whole = tensor(session, Type.F32, 64)
    session.set(Tensor(Type.F32, (16,), whole.buffer, whole.data), bytes(256))
    session.get(whole)


def an_answer_of_more_bytes_than_a_tensor_has(session: Session) -> None:
    whole = tensor(session, Type.F32, 64)
    session.get(Tensor(Type.F32, (16,), whole.buffer, whole.data), 0, 256)


def rows_that_overlap(session: Session) -> None:
    """Their answer has more bytes than the tensor, and as many as the client likes."""
    session.get_rows(tensor(session, Type.F32, 64), 0, 4, 1 << 40, 0)


def a_copy_to_any_address(session: Session) -> None:
    """A tensor of no elements is in any buffer, and upstream compares only the copy's end with the buffer's."""
    whole = tensor(session, Type.F32, 64)
    session.copy(whole, Tensor(Type.F32, (0, 64), whole.buffer, 4096))


def a_copy_of_more_bytes_than_a_tensor_has(session: Session) -> None:
    whole = tensor(session, Type.F32, 64)
    session.copy(whole, Tensor(Type.F32, (16,), whole.buffer, whole.data))


def a_sum_with_no_other_worker(session: Session) -> None:
    session.send(Command.COMM_ALLREDUCE, struct.pack("<I", 0) + tensor(session, Type.F32, 16).wire())
    session.alloc(64)


def an_operation_that_there_is_not(session: Session) -> None:
    computed(session, node(session, Op.COUNT, (tensor(session, Type.F32, 16),), 16))


def a_node_that_there_is_not(session: Session) -> None:
    session.send(Command.GRAPH_COMPUTE, struct.pack("<IQIQI", 0, 1, 1, 0, 0))
    session.alloc(64)


def a_request_of_more_bytes_than_there_are_numbers_for(session: Session) -> None:
    session.socket.sendall(struct.pack("<BQ", Command.SET_TENSOR, 1 << 63))
    session.alloc(64)


ATTACKS: dict[str, Attack] = {
    **{f"a function of {op.name}": custom(op) for op in (Op.MAP_CUSTOM1, Op.MAP_CUSTOM2, Op.MAP_CUSTOM3, Op.CUSTOM)},
    # Some strides cancel each other out at the last number, where the kernel looks. One part ends a number too far.
    "added to before its begin": part(Op.ACC, (4, 2, 2), -16, 16, 0, 0),
    "stored before its begin": part(Op.SET, (4, 2, 2), -16, 16, 0, 0),
    "added to before its begin, by an offset": part(Op.ACC, (4, 2), 16, 0, 0, -16),
    "stored before its begin, by an offset": part(Op.SET, (4, 2), 16, 0, 0, -16),
    "stored beyond its end": part(Op.SET, (4,), 0, 0, 0, 256 - 12),
    **{
        attack.__name__.replace("_", " "): attack
        for attack in (
            rows_of_more_matrices_than_there_are,
            rows_that_are_longer_than_those_of_the_result,
            more_rows_than_the_result_has,
            rows_whose_numbers_have_no_distance,
            rows_without_a_buffer,
            rows_whose_size_is_too_large_for_a_number,
            rows_into_more_matrices_than_there_are,
            rows_into_shorter_ones,
            rows_into_a_type_that_nothing_is_converted_to,
            states_that_are_far_apart,
            more_snapshots_than_the_result_has,
            a_tensor_outside_of_its_buffer,
            a_shape_that_there_cannot_be,
            more_bytes_than_a_tensor_has,
            an_answer_of_more_bytes_than_a_tensor_has,
            rows_that_overlap,
            a_copy_to_any_address,
            a_copy_of_more_bytes_than_a_tensor_has,
            a_sum_with_no_other_worker,
            an_operation_that_there_is_not,
            a_node_that_there_is_not,
            a_request_of_more_bytes_than_there_are_numbers_for,
        )
    },
}  # fmt: skip


# Upstream's b11549 refuses these too, or they stay within a buffer.
HARMLESS_UPSTREAM = (
    "a tensor outside of its buffer",
    "a copy of more bytes than a tensor has",
    "a sum with no other worker",
)


def an_expert_that_there_is_not(session: Session) -> None:
    experts, x = tensor(session, Type.F32, 32, 4, 2), tensor(session, Type.F32, 32, 1, 1)
    which = tensor(session, Type.I32, 1, 1, numbers=[1 << 20])
    computed(session, node(session, Op.MUL_MAT_ID, (experts, x, which), 4, 1, 1))


def a_state_that_there_is_not(session: Session) -> None:
    """Upstream's issue 25765."""
    computed(session, scan(session, (1 << 20, 0)))


def a_row_that_there_is_not(session: Session) -> None:
    rows, which = tensor(session, Type.F32, 16, 4), tensor(session, Type.I32, 1, numbers=[1 << 20])
    computed(session, node(session, Op.GET_ROWS, (rows, which), 16, 1))


# These use numbers in a buffer, which only the kernel sees. They end the process.
DEADLY: list[Attack] = [an_expert_that_there_is_not, a_state_that_there_is_not, a_row_that_there_is_not]


def link(session: Session, rank: int, port: int) -> bool:
    """Ask for a link to another worker: rank 0 would listen on this port, rank 1 connect to it. Return the answer."""
    asked = struct.pack("<4I64s", 0, rank, 2, port, b"127.0.0.1")
    return bool(session.request(Command.COMM_INIT, asked, answer=1)[0])


def harmless(session: Session) -> list[tuple[Tensor, np.ndarray | None]]:
    """Return nodes that clients do send, and their results where those are easy to give."""
    numbers = np.arange(64, dtype=np.float32)
    rows = tensor(session, Type.F32, 8, 4, 2, numbers=numbers)
    which = tensor(session, Type.I32, 3, 2, numbers=[3, 0, 3, 1, 1, 2])
    taken = node(session, Op.GET_ROWS, (rows, which), 8, 3, 2)
    wanted = numbers.reshape(2, 4, 8)[[[0] * 3, [1] * 3], [[3, 0, 3], [1, 1, 2]]]

    target, source = tensor(session, Type.F32, 8, 4, 2), tensor(session, Type.F32, 8, 2, 2, numbers=range(32))
    stored = over(target, Op.SET_ROWS, (source, tensor(session, Type.I64, 2, numbers=[2, 0]), target))
    after = np.zeros((2, 4, 8), np.float32)
    after[:, [2, 0]] = np.arange(32).reshape(2, 2, 8)

    # The stride of a dimension of one may be anything: a stride of 4 GiB has lost its upper half in a parameter.
    columns = tensor(session, Type.F32, 2, 4, numbers=range(8))
    parts = []
    for op in Op.ACC, Op.SET:
        whole = tensor(session, Type.F32, 8, 4, numbers=[1] * 32)
        changed = np.ones((1, 4, 8), np.float32)
        changed[0, :, 6:] = np.arange(8).reshape(4, 2) + (op == Op.ACC)
        parts.append((over(whole, op, (whole, columns), PART.pack(32, 0, -(1 << 31), 24, 1)), changed))
    return [(taken, wanted), (stored, after), *parts, (scan(session), None), (delta_net(session), None)]


def served_well(port: int) -> None:
    """Assert that the worker on this loopback port serves a client, and that the client gets the right results."""
    with closing(Session(port)) as session:
        for asked, wanted in harmless(session):
            session.compute(asked)
            found = session.values(asked)
            assert np.isfinite(found).all()
            assert wanted is None or np.array_equal(found.reshape(wanted.shape), wanted), asked.op
