# SPDX-License-Identifier: GPL-3.0-or-later
"""A shim of pyenv without an interpreter is passed over, whatever HOME and PYENV_ROOT say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.tree import ROOT

SHIM = '#!/bin/sh\necho "pyenv: ${0##*/}: command not found" >&2\nexit 127\n'
SEARCH = "import sys; sys.path.insert(0, 'scripts'); import sanity; print(sanity.search_path(sys.argv[1]))"

# nox itself is not among the requirements of the tests.
NOXFILE = """
import os, sys, unittest.mock
sys.modules["nox"] = unittest.mock.MagicMock()
import noxfile
print(os.environ["PATH"])
"""


@pytest.fixture
def pyenv(tmp_path: Path) -> Path:
    """Return the folder of a pyenv with one interpreter, and with shims that find none."""
    for name in ("python3", "python3.8", "python3.11"):
        shim = tmp_path / "pyenv/shims" / name
        shim.parent.mkdir(parents=True, exist_ok=True)
        shim.write_text(SHIM)
        shim.chmod(0o755)
    real = tmp_path / "pyenv/versions/3.11.99/bin"
    real.mkdir(parents=True)
    (real / "python3.11").symlink_to(sys.executable)
    return tmp_path / "pyenv"


def said(home: Path, *command: str | Path, path: str = os.environ["PATH"]) -> str:
    """Return what a program prints to a user with this home and this search path."""
    kept = {name: value for name, value in os.environ.items() if name != "PYENV_ROOT"}
    return subprocess.run(
        command, cwd=ROOT, env={**kept, "HOME": str(home), "PATH": path}, check=True, stdout=subprocess.PIPE, text=True,
        timeout=60,
    ).stdout.strip()  # fmt: skip


def test_sanity_gets_the_interpreters_that_run(pyenv: Path, tmp_path: Path) -> None:
    found = said(tmp_path, sys.executable, "-c", SEARCH, f"{pyenv}/shims:/usr/bin:/bin")
    assert found.split(":")[1:] == [f"{pyenv}/versions/3.11.99/bin", "/usr/bin", "/bin"]


def test_venv_is_made_with_the_first_interpreter_that_runs(pyenv: Path, tmp_path: Path) -> None:
    later = tmp_path / "later"
    later.mkdir()
    (later / "python3").symlink_to(sys.executable)
    path = f"{pyenv}/shims:{later}:/usr/bin:/bin"
    assert said(tmp_path, ROOT / "scripts/bootstrap.sh", "python", path=path) == f"{later}/python3"


def test_nox_gets_the_interpreters_of_pyenv_and_not_its_shims(pyenv: Path, tmp_path: Path) -> None:
    found = said(tmp_path, sys.executable, "-c", NOXFILE, path=f"{pyenv}/shims:/usr/bin")
    assert found == f"/usr/bin:{pyenv}/versions/3.11.99/bin"


def test_what_cannot_be_started_is_no_interpreter(tmp_path: Path) -> None:
    (tmp_path / "python3.11").write_text("no program")
    found = said(tmp_path, sys.executable, "-c", SEARCH, f"{tmp_path}:/usr/bin").split(":")
    assert found[-1] == "/usr/bin"
    assert str(tmp_path) not in found
