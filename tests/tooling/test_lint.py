# SPDX-License-Identifier: GPL-3.0-or-later
"""scripts/lint.py gives ansible-lint what has changed since it passed. A stand-in notes its arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.harness import ROOT

STAND_IN = '#!/bin/sh\necho "$*" >>"$SEEN"\n! grep -rqs wrong roles playbooks\n'


class Checkout:
    """A checkout with two roles and a playbook."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, folder / ".git/seen"
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
        for name in (".ansible-lint", ".yamllint", "roles/a/tasks/main.yml", "roles/a/README.md", "roles/b/vars.yml"):
            self.write(name, "right\n")
        self.write("playbooks/site.yml", "right\n")
        self.write(".git/programs/ansible-lint", STAND_IN).chmod(0o755)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def lint(self, **environment: str) -> tuple[bool, list[str]]:
        """Return whether it passed, and the arguments of ansible-lint in each run of it."""
        self.seen.write_text("")
        path = f"{self.folder}/.git/programs:{os.environ['PATH']}"
        cache = {"LLAMA_CPP_CLUSTER_CACHE": f"{self.folder}/.git/cache", "SEEN": str(self.seen), "CI": ""}
        command = [sys.executable, str(ROOT / "scripts/lint.py")]
        variables = {**os.environ, **cache, "PATH": path, **environment}
        run = subprocess.run(command, check=False, cwd=self.folder, env=variables)
        return run.returncode == 0, self.seen.read_text().splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_only_what_has_changed_since_it_passed_is_linted(checkout: Checkout) -> None:
    assert checkout.lint() == (True, ["-q"]), "everything, at first"
    assert checkout.lint() == (True, [])
    checkout.write("roles/a/README.md", "changed\n")
    assert checkout.lint() == (True, [])
    checkout.write("roles/a/tasks/more.yml", "new\n")
    checkout.write("playbooks/site.yml", "changed\n")
    assert checkout.lint() == (True, ["-q playbooks/site.yml roles/a"])
    assert checkout.lint(CI="true") == (True, ["-q"])
    checkout.write(".ansible-lint", "changed\n")
    assert checkout.lint() == (True, ["-q"])


def test_what_has_failed_is_linted_again(checkout: Checkout) -> None:
    checkout.lint()
    checkout.write("roles/b/vars.yml", "wrong\n")
    assert checkout.lint() == (False, ["-q roles/b"])
    assert checkout.lint() == (False, ["-q roles/b"])
    checkout.write("roles/b/vars.yml", "right\n")
    assert checkout.lint() == (True, []), "as it was when it passed"
