# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the statements of docs/reference/compatibility.md about masters and workers of different generations.

By default, the generations that other tests also run meet here, and any others that are built. `make test-matrix`
builds all of them and sets ALL_GENERATIONS, so that each meets each.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from integration.compatibility import READS, REFUSED, WORKS, documented, meet, reads, row, said_of
from support.harness import GENERATIONS, RELEASES

pytestmark = pytest.mark.llama

HERE = [
    protocol
    for protocol, generation in GENERATIONS.items()
    if protocol in RELEASES or generation.rpc_server.exists() or os.environ.get("ALL_GENERATIONS")
]
AGAIN = "`scripts/matrix.sh write` writes docs/reference/compatibility.md anew"


@pytest.fixture(autouse=True)
def built() -> None:
    for protocol in HERE:
        version = GENERATIONS[protocol].version
        if not GENERATIONS[protocol].rpc_server.exists():
            pytest.fail(f"llama.cpp of archive {version} is not built: run `make test-matrix`, which builds it first")


@pytest.mark.parametrize("protocol", HERE)
def test_what_is_read_of_a_generation_is_documented(protocol: str, model: Path) -> None:
    said, *cells = reads(GENERATIONS[protocol], model)
    assert cells[0] == protocol
    assert documented()[READS][said] == cells, AGAIN


@pytest.mark.parametrize(("master", "worker"), list(itertools.product(HERE, repeat=2)))
def test_what_two_generations_make_of_each_other_is_documented(master: str, worker: str, model: Path) -> None:
    ends = meet(master, worker, model)
    works = master == worker
    assert [end["kind"] for end in ends.values()] == [None if works else REFUSED] * 2
    tables = documented()
    assert tables[WORKS][master][list(GENERATIONS).index(worker)] == ("works" if works else "refused"), AGAIN
    assert said_of(tables, master, worker) == ([] if works else [row(ends)]), AGAIN


def test_the_page_has_every_meeting() -> None:
    tables = documented()
    assert [cells[0] for cells in tables[READS].values()] == list(tables[WORKS]) == list(GENERATIONS)
    for master, worker in itertools.product(GENERATIONS, repeat=2):
        assert len(said_of(tables, master, worker)) == (master != worker), f"{master} with {worker}"
