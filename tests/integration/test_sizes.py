# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of docs/how-to/size.md are what a release says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.shapes import SHAPES, Shape

from support import sizes
from support.tree import ROOT, load_yaml

if TYPE_CHECKING:
    from pathlib import Path

    from support.harness import Release

pytestmark = pytest.mark.llama

PAGE = (ROOT / "docs/how-to/size.md").read_text(encoding="utf-8")
QUICK = ("8B", "gpt-oss-120b")


def test_the_playbook_takes_every_shape() -> None:
    assert load_yaml(ROOT / "playbooks/size.yml")[0]["vars"]["__size_shapes"] == [shape.name for shape in SHAPES]


@pytest.mark.parametrize(
    "shape",
    [pytest.param(it, marks=() if it.name in QUICK else pytest.mark.long) for it in SHAPES],
    ids=lambda it: it.name,
)
def test_the_tables_are_what_the_release_says(release_7: Release, tmp_path: Path, shape: Shape) -> None:
    rows = sizes.by_hosts(release_7.plan, tmp_path, shape), sizes.by_memory(release_7.plan, tmp_path, shape)
    print("\n".join(rows))
    assert [row for row in rows if f"\n{row}\n" not in PAGE] == []


@pytest.mark.parametrize("rows", [sizes.by_speed(), sizes.shapes()], ids=["speed", "shapes"])
def test_the_other_tables_are_those_of_the_shapes(rows: list[str]) -> None:
    assert "\n".join(rows) in PAGE, "write these rows into the page:\n" + "\n".join(rows)
    performance = (ROOT / "docs/explanation/performance.md").read_text(encoding="utf-8")
    assert all(f"{bandwidth} GB/s" in performance for bandwidth in sizes.BANDWIDTHS)
