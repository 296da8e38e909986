# SPDX-License-Identifier: GPL-3.0-or-later
"""What Ansible's checklist for collections asks, beyond what other tests check: names, versions, workflows, policy."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from ansible.release import __version__ as core_version
from ansible_test._util.target.common.constants import CONTROLLER_PYTHON_VERSIONS, REMOTE_ONLY_PYTHON_VERSIONS

from support.examples import FENCE, PAGES
from support.tree import COLLECTION, PLUGINS, ROOT, documentation, load_yaml

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
RUNTIME = load_yaml(ROOT / "meta/runtime.yml")
MODULES = {plugin.name for plugin in PLUGINS if plugin.kind == "module"}
# Modules that change nothing, but do more than read.
CHECKS = {
    "llama_bench": "loads the workers, and measures",
    "llama_server_bench": "sends requests, and measures",
    "release_trial": "starts the programs of a release, and fails if one cannot run",
}
# The policy's row of an ansible-core: Pythons of controllers and hosts.
CORE_ROW = re.compile(r"^\| (2\.\d+) \| (3\.\d+) to (3\.\d+) \| (3\.\d+) to (3\.\d+) \| \w+ 20\d\d \|$", re.MULTILINE)
POLICY = {
    row[0]: row[1:] for row in CORE_ROW.findall((ROOT / "docs/reference/releases.md").read_text(encoding="utf-8"))
}


def number(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_modules_that_only_read_are_named_info() -> None:
    sources = {name: (ROOT / f"plugins/modules/{name}.py").read_text(encoding="utf-8") for name in MODULES}
    reads_only = {name for name, source in sources.items() if f"- {COLLECTION}.reads_only\n" in source}
    assert reads_only - set(CHECKS) == {name for name in MODULES if name.endswith("_info")}
    assert set(CHECKS) <= reads_only


def test_no_module_reads_because_of_a_state() -> None:
    pages = documentation("module")
    choices = {name: pages[f"{COLLECTION}.{name}"]["doc"].get("options", {}).get("state", {}) for name in MODULES}
    assert sum(bool(state) for state in choices.values()) > 1
    asked = {"get", "info", "list", "query", "read", "show"}
    assert {name for name, state in choices.items() if asked & set(state.get("choices", []))} == set()


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


def test_all_tests_run_for_each_change_and_each_week() -> None:
    # For YAML 1.1 the key `on` is a truth value.
    (events,) = (workflow(path)[True] for path in WORKFLOWS)
    assert set(events) == {"push", "pull_request", "schedule"}
    assert [re.fullmatch(r"\d+ \d+ \* \* [0-6]", entry["cron"]) is not None for entry in events["schedule"]] == [True]
    jobs = [job for path in WORKFLOWS for job in workflow(path)["jobs"].values()]
    assert [job for job in jobs if "if" in job] == []
    commands = "\n".join(step.get("run", "") for job in jobs for step in job["steps"])
    for wanted in (".ci/run", "make test-ansible"):
        assert re.search(rf"^\s*(sudo --set-home )?{re.escape(wanted)}$", commands, re.MULTILINE), wanted


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


def test_one_oldest_python_of_hosts() -> None:
    oldest = min((row[2] for row in POLICY.values()), key=number)
    assert f'target-version = "py{oldest.replace(".", "")}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    host = re.compile(r"(?:\bsudo and|\brun on|Needs|Works with) Python (3\.\d+)")
    found = {
        str(path.relative_to(ROOT)): set(host.findall(path.read_text(encoding="utf-8")))
        for path in [*PAGES, *(ROOT / "plugins").rglob("*.py")]
    }
    assert {"README.md", "docs/reference/support.md", "docs/development.md", "plugins/doc_fragments/reads_only.py"} <= {
        path for path, versions in found.items() if versions
    }
    assert {path: versions for path, versions in found.items() if versions - {oldest}} == {}


def test_the_newest_minor_version_gets_security_fixes() -> None:
    major, minor, _patch = load_yaml(ROOT / "galaxy.yml")["version"].split(".")
    rows = re.findall(r"^\| (\d+\.\d+) \| (yes|no)", (ROOT / "SECURITY.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [version for version, fixed in rows if fixed == "yes"] == [f"{major}.{minor}"]


def test_pages_name_the_archive_of_this_version() -> None:
    named = [name for page in PAGES for name in re.findall(r"llama_cpp-cluster-(\d[\w.]*)\.tar\.gz", page.read_text())]
    assert set(named) == {load_yaml(ROOT / "galaxy.yml")["version"]}


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


def test_policies_are_linked() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for target in ("CODE_OF_CONDUCT.md", "SECURITY.md", "docs/reference/releases.md"):
        assert f"]({target})" in contributing
    conduct = (ROOT / "CODE_OF_CONDUCT.md").read_text(encoding="utf-8")
    assert "https://docs.ansible.com/ansible/latest/community/code_of_conduct.html" in conduct
