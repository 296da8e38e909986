# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that role llama_server installs beside its programs are all that these import."""

from __future__ import annotations

import ast
from pathlib import Path

from support.tree import ROOT, load_yaml

ROLE = ROOT / "roles/llama_server"
UTILS = ROOT / "plugins/module_utils"


def imported(path: Path) -> set[str]:
    """Return the packages with their modules, such as _rpc/prober, that a file of the collection imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        place = path.parents[node.level - 1].relative_to(UTILS) if node.level else Path()
        name = (node.module or "").removeprefix("module_utils.")
        if node.level or name.startswith("_"):
            modules = [f"{name}.{alias.name}" for alias in node.names] if not (node.module or "") else [name]
            found |= {str(place / module.strip(".").replace(".", "/")) for module in modules}
    return {name for name in found if "/" in name and (UTILS / f"{name}.py").is_file()}


def test_all_files_that_the_programs_need_are_installed() -> None:
    needed = set().union(*(imported(program) for program in ROLE.glob("files/*.py")))
    while more := set().union(*(imported(UTILS / f"{name}.py") for name in needed)) - needed:
        needed |= more
    needed |= {f"{name.partition('/')[0]}/__init__" for name in needed}
    parts = load_yaml(ROLE / "vars/main.yml")["__llama_server_parts"]
    installed = {f"{folder.removeprefix('module_utils/')}/{name}" for folder, names in parts.items() for name in names}
    assert sorted(needed) == sorted(installed)
