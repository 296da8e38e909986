# SPDX-License-Identifier: GPL-3.0-or-later
"""Imports of plugins/module_utils go one way: packages import only from lower floors, and files in no circle."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from graphlib import CycleError, TopologicalSorter

from support.tree import ROOT

NAME = "ansible_collections.llama_cpp.cluster.plugins.module_utils"
# The floors of the packages, by docs/development.md.
FLOORS = {
    package: int(floor)
    for floor, packages in re.findall(
        r"^\| (\d) \| (.*) \|$", (ROOT / "docs/development.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    for package in re.findall(r"`(_\w+)`", packages)
}


def imported(path: Path, folder: Path) -> set[tuple[str, ...]]:
    """Return the imports of a file from module_utils, also those for types only, as paths: ("_rpc", "units")."""
    found = set()
    here = [*NAME.split("."), *path.relative_to(folder).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*here[: -node.level], *filter(None, [node.module])] if node.level else [node.module or ""]
            names = [".".join([*base, alias.name]) for alias in node.names]
        found |= {tuple(name[len(NAME) + 1 :].split(".")[:2]) for name in names if name.startswith(f"{NAME}.")}
    return found


def against_the_floors(folder: Path) -> list[str]:
    """Return a sentence for each import that goes up, stays on a floor, or is part of a circle."""
    problems = []
    for package in sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"):
        within = {}
        for path in sorted((folder / package).rglob("*.py")):
            name = f"{package}/{path.name}"
            imports = imported(path, folder)
            within[path.stem] = {file for other, file in imports if other == package and file != path.stem}
            problems += [
                f"{name} imports {other}, which is on no lower floor."
                for other in sorted({other for other, _file in imports} - {package})
                if FLOORS.get(other, 99) >= FLOORS.get(package, 0)
            ]
        try:
            TopologicalSorter(within).prepare()
        except CycleError as error:
            problems.append(f"{package} imports in a circle: {', '.join(sorted(set(error.args[1])))}.")
    return problems


def test_imports_go_down_the_floors_and_never_round() -> None:
    assert against_the_floors(ROOT / "plugins/module_utils") == []


def test_every_file_is_in_a_package_whose_init_is_a_docstring() -> None:
    folder = ROOT / "plugins/module_utils"
    assert {path.parent.name for path in folder.rglob("*.py")} == set(FLOORS), "a file outside of the packages"
    for package in FLOORS:
        # A module ships it with each package of which it needs a file, so it imports nothing.
        [docstring] = ast.parse((folder / package / "__init__.py").read_text(encoding="utf-8")).body
        assert isinstance(docstring, ast.Expr), f"{package}/__init__.py holds more than a docstring"


@pytest.mark.parametrize("name", ["keepalive", "listeners", "units"])
def test_what_is_installed_on_hosts_by_itself_needs_no_other_file(name: str) -> None:
    folder = ROOT / "plugins/module_utils"
    assert imported(folder / f"_rpc/{name}.py", folder) == set()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"_rpc/units.py": "from {}._gguf.model import describe"}, []),
        ({"_gguf/model.py": "from {}._rpc.a import x"}, ["_gguf/model.py imports _rpc, which is on no lower floor."]),
        ({"_rpc/units.py": "from .._plan import need"}, ["_rpc/units.py imports _plan, which is on no lower floor."]),
        ({"_rpc/units.py": "from {}._new.x import y"}, ["_rpc/units.py imports _new, which is on no lower floor."]),
        (
            {"_rpc/units.py": "if TYPE_CHECKING:\n    from {}._run.watch import Watch"},
            ["_rpc/units.py imports _run, which is on no lower floor."],
        ),
        (
            {"_rpc/units.py": "from {}._rpc import prober", "_rpc/prober.py": "def f():\n    from . import units"},
            ["_rpc imports in a circle: prober, units."],
        ),
    ],
    ids=["down", "up", "along", "unknown", "up-for-types", "circle"],
)  # fmt: skip
def test_an_import_against_the_floors_is_found(tmp_path: Path, files: dict[str, str], said: list[str]) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text.format(NAME))
    assert [*map(str, against_the_floors(tmp_path))] == said
