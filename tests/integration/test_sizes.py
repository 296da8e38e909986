# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of docs/how-to/size.md are what a release says of models of some shapes, before anybody has such a model.

A model here is only its header, and a hole in place of its weights, because a plan reads nothing else of a model.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import read_model
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.shapes import SHAPES, Shape, encoded
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.choice import choose
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.estimate import ByHeader
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.inputs import Cluster, Load, Worker
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.sizes import ByEngine

from support.gguf_headers import header_only
from support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.harness import Release

pytestmark = pytest.mark.llama

PAGE = (ROOT / "docs/how-to/size.md").read_text(encoding="utf-8")
QUICK = ("8B", "gpt-oss-120b")
GIB, MIB = 1 << 30, 1 << 20
# The load is an API with the defaults of role llama_server, and the reserve is that of module split_plan_info.
LOAD = Load(("-c", str(4 * 4096), "-np", "4", "-ngl", "999"), other_bytes=1024 * MIB)
RESERVE_BYTES, RESERVE_PERCENT = 256 * MIB, 5.0
COUNTS, HOSTS_GIB, MOST = (1, 2, 3, 4, 8), (7, 15, 31, 63, 125), 15


@contextmanager
def asking(program: Path, folder: Path, shape: Shape, workers: int) -> Iterator[ByEngine]:
    """Ask a release about a model of this shape over so many workers."""
    path = header_only(folder / "shape.gguf", shape)
    engine = ByEngine(str(program), str(path), [1] * workers, one_run=False, tail=1, bits=4.5)
    try:
        yield engine
    finally:
        engine.close()


def available(need: int) -> float:
    """Return the bytes that must be available for so many, with the reserve."""
    return max(need + RESERVE_BYTES, need / (1 - RESERVE_PERCENT / 100))


def of_each(engine: ByEngine, workers: int) -> float:
    """Return the bytes that each of so many equal workers must have available."""
    cluster = Cluster(tuple(Worker(f"worker{number}:50052", 1 << 50) for number in range(workers)))
    _shares, sizes = choose(engine, LOAD, cluster)
    return available(max(need.total for need in sizes.held))


def of_master(engine: ByEngine) -> float:
    """Return the bytes that the master must have available, with two workers."""
    return available(engine.sizes(LOAD, 2, [1, 1]).master.total)


def tenths(size: float) -> str:
    """Return bytes in GiB, rounded up to tenths."""
    return f"{math.ceil(10 * size / GIB) / 10:.1f}"


def by_memory(program: Path, folder: Path, shape: Shape) -> str:
    """Return a row: model, file, the memory that each worker needs for so many workers, and the master's."""
    with asking(program, folder, shape, max(COUNTS)) as engine:
        cells = [tenths(of_each(engine, count)) for count in COUNTS]
        master = tenths(of_master(engine))
    return f"| {shape.name} | {encoded(shape)[1] / 1e9:.1f} GB | {' | '.join(cells)} | {master} |"


def by_hosts(program: Path, folder: Path, shape: Shape) -> str:
    """Return a row: the number of equal workers that a model needs, by the memory available on each."""
    cells = dict.fromkeys(HOSTS_GIB, "")
    with asking(program, folder, shape, MOST) as engine:
        for count in range(1, MOST + 1):
            each = of_each(engine, count)
            for host in HOSTS_GIB:
                cells[host] = cells[host] or (str(count) if each <= host * GIB else "")
            if all(cells.values()):
                break
    return f"| {shape.name} | {' | '.join(cell or f'more than {MOST}' for cell in cells.values())} |"


@pytest.mark.parametrize(
    "shape",
    [pytest.param(it, marks=() if it.name in QUICK else pytest.mark.long) for it in SHAPES],
    ids=lambda it: it.name,
)
def test_the_tables_are_what_the_release_says(release: Release, tmp_path: Path, shape: Shape) -> None:
    rows = by_hosts(release.plan, tmp_path, shape), by_memory(release.plan, tmp_path, shape)
    print("\n".join(rows))
    assert [row for row in rows if f"\n{row}\n" not in PAGE] == []


@pytest.mark.long
def test_the_estimate_is_as_far_off_as_the_page_says(release: Release, tmp_path: Path) -> None:
    cluster = Cluster((Worker("worker0:50052", 1 << 50), Worker("worker1:50052", 1 << 50)))
    found = {}
    for shape in SHAPES:
        with asking(release.plan, tmp_path, shape, 2) as engine:
            shares, exact = choose(engine, LOAD, cluster)
        headers = read_model(tmp_path / "shape.gguf")
        estimate = ByHeader(headers, tail=1, why="there is none").sizes(LOAD, 2, shares)
        assert estimate.parts == exact.parts
        most = max(need.total for need in estimate.held) / max(need.total for need in exact.held)
        found[shape.name] = round(100 * most, 1)
    print(found)
    page = (ROOT / "docs/explanation/planning.md").read_text(encoding="utf-8")
    assert f"it says between {int(min(found.values()))} % and {math.ceil(max(found.values()))} % of what" in page
