# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of the collection, found by listing, and a way to run Ansible's programs on it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from support.collection_loader import COLLECTIONS

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = "llama_cpp.cluster"
NO_DOCUMENTATION = {"action", "doc_fragments", "module_utils", "plugin_utils"}

ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
PLAYBOOKS = sorted(path.stem for path in (ROOT / "playbooks").glob("*.yml"))


@dataclass(frozen=True)
class Plugin:
    """A module, filter or other plugin that a user can name."""

    kind: str
    name: str

    @property
    def fqcn(self) -> str:
        return f"{COLLECTION}.{self.name}"

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}"


def load_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def dictionaries(value: object) -> Iterator[dict[str, Any]]:
    """Yield each dictionary in the content of a YAML file: plays, tasks, and what is in them."""
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from dictionaries(one)


def _plugins() -> list[Plugin]:
    found = set()
    for folder in (ROOT / "plugins").iterdir():
        kind = {"modules": "module"}.get(folder.name, folder.name)
        for path in folder.glob("*"):
            if folder.name in NO_DOCUMENTATION or path.suffix not in (".py", ".yml") or path.stem.startswith("_"):
                continue
            if kind in ("filter", "test") and path.suffix == ".py":
                # A file holds any number of filters or tests, under names of their own.
                code = importlib.import_module(f"ansible_collections.{COLLECTION}.plugins.{kind}.{path.stem}")
                provider = code.FilterModule().filters() if kind == "filter" else code.TestModule().tests()
                found.update(Plugin(kind, name) for name in provider)
            else:
                found.add(Plugin(kind, path.stem))
    return sorted(found, key=str)


PLUGINS = _plugins()


def run(
    *command: str | Path, cwd: Path, collections: Path = COLLECTIONS, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run one of Ansible's programs without any settings of this user; the caller judges the result."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "XDG_"))}
    return subprocess.run(
        [Path(sys.executable).parent / command[0], *command[1:]],
        cwd=cwd,
        env={
            **kept,
            "HOME": str(cwd),
            "ANSIBLE_HOME": str(cwd / ".ansible"),
            "ANSIBLE_COLLECTIONS_PATH": str(collections),
            "ANSIBLE_INJECT_FACT_VARS": "false",
            "ANSIBLE_LOCALHOST_WARNING": "false",
            "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false",
            "ANSIBLE_NOCOLOR": "1",
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@cache
def documentation(kind: str) -> dict[str, Any]:
    """Return the output of `ansible-doc` for all plugins of a kind ("role" too), by FQCN."""
    names = (
        [f"{COLLECTION}.{role}" for role in ROLES]
        if kind == "role"
        else [plugin.fqcn for plugin in PLUGINS if plugin.kind == kind]
    )
    with TemporaryDirectory() as folder:
        result = run("ansible-doc", "--json", "--type", kind, *names, cwd=Path(folder))
    assert result.returncode == 0, result.stderr
    # Later releases of ansible-core warn about a collection of their own.
    assert [line for line in result.stderr.splitlines() if "llama_cpp" in line and "_protomatter" not in line] == []
    return dict(json.loads(result.stdout))
