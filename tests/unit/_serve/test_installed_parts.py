# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that role llama_server installs beside its programs are all that these import."""

from __future__ import annotations

import ast

from support.tree import ROOT, load_yaml

ROLE = ROOT / "roles/llama_server"
PACKAGE = ROOT / "plugins/module_utils/_rpc"


def imported(name: str) -> set[str]:
    """Return the files of the package that one of its files imports."""
    tree = ast.parse((PACKAGE / f"{name}.py").read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {node.module} if node.module else {alias.name for alias in node.names}
        assert not (isinstance(node, ast.ImportFrom) and node.level > 1), f"{name} needs another package"
    return found


def test_all_files_that_the_programs_need_are_installed() -> None:
    needed = {"__init__"}
    for program in ROLE.glob("files/*.py"):
        tree = ast.parse(program.read_text(encoding="utf-8"))
        modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        needed |= {module.partition(".")[2] for module in modules if module.startswith("_rpc.")}
    while True:
        more = set().union(*(imported(name) for name in needed)) - needed
        if not more:
            break
        needed |= more
    assert sorted(needed) == sorted(load_yaml(ROLE / "vars/main.yml")["__llama_server_parts"])
