# SPDX-License-Identifier: GPL-3.0-or-later
"""The name of each play and task begins with a verb: in the code, and in the examples of pages and plugins."""

from __future__ import annotations

import re

from support.examples import PAGES
from support.tree import ROOT

# Add a verb if none of them says what a play or task does.
VERBS = frozenset(
    """
    add apply ask assemble bring build change check choose claim clear close collect compare complete compute configure
    connect contact continue convert copy create disable divide download drain enable end fail fetch find give install
    kill leave let look mask measure move note pack plan prepare protect put quantise read record reload remove replace
    report restart restore return run say send set share show size start stop switch try tune unmask unpack verify wait
    write
    """.split()
)
# Names of several words, but for those that begin with an expression.
NAME = re.compile(r"^ *- name: (?![\"']?\{\{)[\"']?(\S+ .+)$", re.MULTILINE)


def test_names_begin_with_a_verb() -> None:
    code = [path for folder in ("roles", "playbooks", "extensions") for path in (ROOT / folder).rglob("*.yml")]
    names: dict[str, str] = {}
    for path in [*code, *(ROOT / "plugins").rglob("*.py"), *PAGES]:
        names |= dict.fromkeys(NAME.findall(path.read_text(encoding="utf-8")), str(path.relative_to(ROOT)))
    assert names
    assert {name: file for name, file in names.items() if re.split(r"\W", name.lower())[0] not in VERBS} == {}
