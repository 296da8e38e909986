# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of docs/how-to/size.md are what a release says."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import read_model
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.shapes import SHAPES, Shape
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.choice import choose
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.estimate import ByHeader
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.inputs import Cluster, Worker

from integration import sizes
from support.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from support.harness import Release

pytestmark = pytest.mark.llama

PAGE = (ROOT / "docs/how-to/size.md").read_text(encoding="utf-8")
QUICK = ("8B", "gpt-oss-120b")


@pytest.mark.parametrize(
    "shape",
    [pytest.param(it, marks=() if it.name in QUICK else pytest.mark.long) for it in SHAPES],
    ids=lambda it: it.name,
)
def test_the_tables_are_what_the_release_says(release_7: Release, tmp_path: Path, shape: Shape) -> None:
    rows = sizes.by_hosts(release_7.plan, tmp_path, shape), sizes.by_memory(release_7.plan, tmp_path, shape)
    print("\n".join(rows))
    assert [row for row in rows if f"\n{row}\n" not in PAGE] == []


def test_the_estimate_is_as_far_off_as_the_page_says(release_7: Release, tmp_path: Path) -> None:
    cluster = Cluster((Worker("worker0:50052", 1 << 50), Worker("worker1:50052", 1 << 50)))
    found = {}
    for shape in SHAPES:
        with sizes.asking(release_7.plan, tmp_path, shape, 2) as engine:
            shares, exact = choose(engine, sizes.LOAD, cluster)
        headers = read_model(tmp_path / "shape.gguf")
        estimate = ByHeader(headers, tail=1, why="there is none").sizes(sizes.LOAD, 2, shares)
        assert estimate.parts == exact.parts
        most = max(need.total for need in estimate.held) / max(need.total for need in exact.held)
        found[shape.name] = round(100 * most, 1)
    print(found)
    page = (ROOT / "docs/explanation/planning.md").read_text(encoding="utf-8")
    assert f"it says between {int(min(found.values()))} % and {math.ceil(max(found.values()))} % of what" in page
