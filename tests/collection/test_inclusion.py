# SPDX-License-Identifier: GPL-3.0-or-later
"""What Ansible's checklist for collections asks, beyond what other tests check: old names, versions, workflows."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from ansible.release import __version__ as core_version
from ansible_test._util.target.common.constants import CONTROLLER_PYTHON_VERSIONS, REMOTE_ONLY_PYTHON_VERSIONS

from support.examples import FENCE, PAGES
from support.tree import ROOT, load_yaml

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
RUNTIME = load_yaml(ROOT / "meta/runtime.yml")
# The policy's row of an ansible-core: Pythons of controllers and hosts.
CORE_ROW = re.compile(r"^\| (2\.\d+) \| (3\.\d+) to (3\.\d+) \| (3\.\d+) to (3\.\d+) \| \w+ 20\d\d \|$", re.MULTILINE)
POLICY = {
    row[0]: row[1:] for row in CORE_ROW.findall((ROOT / "docs/reference/releases.md").read_text(encoding="utf-8"))
}


def number(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def workflow(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = load_yaml(path)
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_pin_actions_and_may_only_read(path: Path) -> None:
    used = re.findall(r"\buses:\s*(.*)", path.read_text(encoding="utf-8"))
    assert [line for line in used if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []
    assert workflow(path)["permissions"] == {}
    for name, job in workflow(path)["jobs"].items():
        assert job["permissions"] == {"contents": "read"}, name
        assert job["timeout-minutes"] <= 180, name
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, name


def test_the_workflow_installs_each_python_that_is_supported() -> None:
    steps = [step for path in WORKFLOWS for job in workflow(path)["jobs"].values() for step in job["steps"]]
    (installed,) = (step["with"]["python-version"].split() for step in steps if "setup-python" in step.get("uses", ""))
    oldest = min((row[2] for row in POLICY.values()), key=number)
    newest = max((row[3] for row in POLICY.values()), key=number)
    assert sorted(map(number, installed)) == [[3, minor] for minor in range(number(oldest)[1], number(newest)[1] + 1)]


def test_the_policy_names_each_ansible_core_with_its_pythons() -> None:
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    (tested,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PYTHONS"
    )
    del tested["newest"]
    assert {core: (row[0], row[1]) for core, row in POLICY.items()} == {
        core: (pythons[0], pythons[-1]) for core, pythons in tested.items()
    }
    assert RUNTIME["requires_ansible"] == f">={min(POLICY, key=number)}.0"
    here = ".".join(core_version.split(".")[:2])
    assert POLICY[here] == (
        CONTROLLER_PYTHON_VERSIONS[0],
        CONTROLLER_PYTHON_VERSIONS[-1],
        REMOTE_ONLY_PYTHON_VERSIONS[0],
        CONTROLLER_PYTHON_VERSIONS[-1],
    )


def test_ruff_checks_for_the_oldest_python_of_hosts() -> None:
    oldest = min((row[2] for row in POLICY.values()), key=number)
    assert f'target-version = "py{oldest.replace(".", "")}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_links_into_the_repository_lead_to_files() -> None:
    repository = load_yaml(ROOT / "galaxy.yml")["repository"]
    link = re.compile(re.escape(repository) + r"/(?:blob|tree|raw)/main/([^\s)#\"'>]+)")
    files = [ROOT / "galaxy.yml", *PAGES, *ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.*")]
    found = {target for path in files for target in link.findall(path.read_text(encoding="utf-8"))}
    assert "docs/reference/releases.md" in found
    assert {target for target in found if not (ROOT / target).exists()} == set()


def test_links_of_the_readme_are_absolute() -> None:
    """Galaxy shows it without the repository."""
    text = FENCE.sub("", (ROOT / "README.md").read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)\s]+)|\b(?:href|src)=[\"']([^\"']+)|^\[[^\]]+\]: (\S+)", text, re.MULTILINE)
    assert links
    assert [link for link in map("".join, links) if not re.match(r"https://|#", link)] == []
