# SPDX-License-Identifier: GPL-3.0-or-later
"""`make test-ansible`: unit tests and `ansible-test sanity`, with each ansible-core on each Python that it supports.

A session's name has both versions: `make test-ansible SESSIONS="unit(2.20-3.13) sanity(2.20-3.13)"`. nox skips a Python
that is not installed; with CI set, it fails instead. All other packages have the versions in requirements/dev.txt.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("LLAMA_CPP_CLUSTER_CACHE") or Path.home() / ".cache" / "llama_cpp_cluster")
# The Pythons that each ansible-core supports. "newest" may be a release that is not in the table yet.
PYTHONS = {
    "2.19": ["3.11", "3.12", "3.13"],
    "2.20": ["3.12", "3.13", "3.14"],
    "2.21": ["3.12", "3.13", "3.14"],
    "newest": ["3.14"],
}
TOOLS = ["pytest", "pytest-xdist", "hypothesis", "jsonschema", "gguf", "jmespath"]
MATRIX = [nox.param(core, python, id=f"{core}-{python}") for core, pythons in PYTHONS.items() for python in pythons]

nox.options.envdir = str(CACHE / "nox")
nox.options.error_on_missing_interpreters = bool(os.environ.get("CI"))
nox.options.reuse_existing_virtualenvs = True
# Find the Pythons of pyenv, and not its shims, which may have none.
FOLDERS = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep) if folder]
SHIMS = [folder for folder in FOLDERS if folder.name == "shims"]
PYENVS = [Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv"), *(folder.parent for folder in SHIMS)]
FOUND = [folder for pyenv in PYENVS for folder in sorted(pyenv.glob("versions/*/bin"))]
os.environ["PATH"] = os.pathsep.join(
    map(str, dict.fromkeys([*(folder for folder in FOLDERS if folder not in SHIMS), *FOUND]))
)


def install(session: nox.Session, core: str, *tools: str) -> None:
    """Install an ansible-core, and tools in their pinned versions."""
    pinned = (ROOT / "requirements/dev.txt").read_text() + (ROOT / "requirements/run.txt").read_text()
    # All pins except Ansible's, without digests: pip accepts digests only for all packages or for none.
    lines = re.findall(r"^(?!ansible\b)(?!ansible-core\b)[\w.\[\]-]+==[^\\\n]*", pinned, re.MULTILINE)
    constraints = Path(session.create_tmp()) / "constraints.txt"
    constraints.write_text("\n".join(lines) + "\n")
    ansible_core = "ansible-core" if core == "newest" else f"ansible-core~={core}.0"
    session.install("--constraint", str(constraints), ansible_core, *tools)
    session.run("ansible", "--version")


@nox.session(venv_backend="venv")
@nox.parametrize(["core", "python"], MATRIX)
def unit(session: nox.Session, core: str) -> None:
    """Run the unit tests, and check what ansible-doc shows."""
    install(session, core, *TOOLS)
    folders = [str(ROOT / "tests"), str(ROOT / "playbooks/files")]
    session.run(
        "pytest", "-q", "-n", "2", "-m", "not llama",
        *(session.posargs or ["tests/unit", "tests/collection/test_docs.py"]),
        env={"PYTHONPATH": os.pathsep.join(folders), "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
    )  # fmt: skip


@nox.session(venv_backend="venv")
@nox.parametrize(["core", "python"], MATRIX)
def sanity(session: nox.Session, core: str) -> None:
    """Run ansible-test sanity, without an ignore file."""
    install(session, core)
    session.run("python", "scripts/sanity.py", *session.posargs)
