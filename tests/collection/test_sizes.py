# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of docs/how-to/size.md match the planner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.shapes import SHAPES

from support import sizes
from support.tree import ROOT, load_yaml

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = (ROOT / "docs/how-to/size.md").read_text(encoding="utf-8")


def test_the_playbook_takes_every_shape() -> None:
    assert load_yaml(ROOT / "playbooks/size.yml")[0]["vars"]["__size_shapes"] == [shape.typed for shape in SHAPES]


@pytest.mark.parametrize("rows", [sizes.by_hosts, sizes.by_memory, sizes.shapes], ids=lambda rows: rows.__name__)
def test_the_table_is_the_planner_s(rows: Callable[[], list[str]]) -> None:
    wanted = rows()
    assert "\n".join(wanted) in PAGE, "write these rows into the page:\n" + "\n".join(wanted)
