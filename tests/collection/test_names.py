# SPDX-License-Identifier: GPL-3.0-or-later
"""What users read while a task runs: names that begin with a verb, and no line of Ansible's own loops."""

from __future__ import annotations

import re

from support.examples import PAGES, tasks
from support.tree import ROOT, load_yaml

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


def test_no_task_waits_with_lines_that_say_nothing() -> None:
    """For `FAILED - RETRYING` and `ASYNC POLL` there are watched_wait and modules that show their progress."""
    files = [*ROOT.glob("roles/*/tasks/**/*.yml"), *ROOT.glob("roles/*/handlers/*.yml")]
    files += [*ROOT.glob("playbooks/*.yml"), *ROOT.glob("playbooks/tasks/**/*.yml")]
    waits, asks = [], 0
    for path in files:
        for task in tasks(load_yaml(path) or []):
            asks += "llama_cpp.cluster.watched_wait" in task
            if {"until", "retries", "async", "poll"} & task.keys():
                waits.append((str(path.relative_to(ROOT)), task.get("name")))
    assert asks > 5
    assert waits == []
