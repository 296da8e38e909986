# SPDX-License-Identifier: GPL-3.0-or-later
"""The repository suits any machine: its files are licensed, pinned, and free of one machine's paths and hosts."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.tree import ROOT, dictionaries, load_yaml

# The patches of llama.cpp have its licence, so that it can take them.
PATCHES, OF_UPSTREAM = "roles/llama_cpp/files/patches/", "SPDX-License-Identifier: MIT"
LICENCE_LINE = "SPDX-License-Identifier: GPL-3.0-or-later"
# Files without comments, prose that names the licence in its own words, output of tools, and recorded output.
WITHOUT_LICENCE_LINE = re.compile(r"(^|/)LICENSE$|\.(md|json)$|^requirements/\w+\.txt$|^changelogs/changelog\.yaml$")
RECORDED = "tests/fixtures/"

# The patterns are put together here, so that this file does not match them.
MACHINE_PATH = re.compile(r"(?<![\w.$}/-])/(?:" + "|".join(["root", "work", r"home/\w+", r"tmp/\w+"]) + r")\b")
REGISTRIES = re.compile(
    "|".join(
        re.escape(".".join(parts))
        for parts in [
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("galaxy", "ansible", "com"),
            ("npmjs", "org"),
            ("crates", "io"),
            ("rubygems", "org"),
            ("docker", "io"),
            ("ghcr", "io"),
            ("quay", "io"),
            ("proxy", "golang", "org"),
        ]
    )
)
UNFINISHED = re.compile(r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3]) + r")\b")


def _files() -> dict[str, str]:
    """Return the text of every file that git tracks or would add."""
    listing = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    found = {}
    for name in sorted(filter(None, listing.split("\0"))):
        path = ROOT / name
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        if b"\0" not in data:
            # Recorded output of a model with random weights may not be valid text.
            found[name] = data.decode("utf-8", "replace" if name.startswith(RECORDED) else "strict")
    return found


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return _files()


def places(files: dict[str, str], pattern: re.Pattern[str]) -> Iterator[str]:
    for name, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            match = pattern.search(line)
            if match:
                yield f"{name}:{number}: {match[0]}"


def test_every_file_names_its_licence(files: dict[str, str]) -> None:
    missing = [
        name
        for name, text in files.items()
        if text
        and not name.startswith(RECORDED)
        and not WITHOUT_LICENCE_LINE.search(name)
        and (OF_UPSTREAM if name.startswith(PATCHES) else LICENCE_LINE)
        not in "".join(text.splitlines(keepends=True)[:5])
    ]
    assert missing == []


def test_no_path_of_a_machine(files: dict[str, str]) -> None:
    assert list(places(files, MACHINE_PATH)) == []


def test_no_host_of_a_package_registry(files: dict[str, str]) -> None:
    assert list(places(files, REGISTRIES)) == []


def test_nothing_is_left_for_later(files: dict[str, str]) -> None:
    assert list(places({name: text for name, text in files.items() if not name.startswith(RECORDED)}, UNFINISHED)) == []


@pytest.mark.parametrize(
    "path",
    [*sorted((ROOT / "requirements").glob("*.txt")), ROOT / "roles/gguf_model/files/converter_requirements.txt"],
    ids=lambda path: path.name,
)
def test_requirements_are_pinned_with_digests(path: Path) -> None:
    requirements = path.read_text().replace("\\\n", " ").splitlines()
    pinned = re.compile(r"^[\w.\[\],-]+==[\w.+!]+ .*--hash=sha256:[0-9a-f]{64}")
    assert [line for line in requirements if line and not line.startswith("#") and not pinned.match(line)] == []


def test_changelog_covers_the_version() -> None:
    version = load_yaml(ROOT / "galaxy.yml")["version"]
    releases = load_yaml(ROOT / "changelogs" / "changelog.yaml")["releases"]
    fragments = [*(ROOT / "changelogs" / "fragments").glob("*.yml")]
    assert fragments or version in releases
    if releases:
        newest = max(releases, key=lambda release: [int(part) for part in release.split(".")])
        assert version == newest or fragments


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _texts(key)
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def test_no_variable_of_a_hosts_environment_gets_into_a_script() -> None:
    """The module replaces $name in its arguments by what is exported on the host, also in a script for sh."""
    found = [
        f"{path.relative_to(ROOT)}: {command['argv']}"
        for folder in (ROOT / "roles", ROOT / "playbooks")
        for path in sorted(folder.rglob("*.yml"))
        for task in dictionaries(load_yaml(path))
        if isinstance(command := task.get("ansible.builtin.command"), dict)
        and {"sh", "-c"} <= set(command.get("argv", ()))
        and command.get("expand_argument_vars") is not False
    ]
    assert found == []


def test_a_host_that_answers_for_another_sets_no_facts_of_that_one() -> None:
    """What a module returns as facts otherwise goes to the host of the task, or to all hosts if that runs once."""
    found = [
        f"{path.relative_to(ROOT)}: {task.get('name', task)}"
        for folder in (ROOT / "roles", ROOT / "playbooks")
        for path in sorted(folder.rglob("*.yml"))
        for task in dictionaries(load_yaml(path))
        if task.get("delegate_to", "localhost") != "localhost" and task.get("delegate_facts") is not True
    ]
    # A builder is trusted, and localhost has no facts that others use.
    trusted = [
        "playbooks/size.yml: Size the cluster",
        "roles/llama_cpp/tasks/make_artifacts.yml: {'delegate_to': '{{ llama_cpp_builder }}'}",
    ]
    assert sorted(found) == trusted


def test_no_template_means_a_line_break_and_gets_two_characters() -> None:
    # In a block of YAML, Ansible takes such an escape in a template's text for a backslash and an n.
    escape = re.compile(r"\{\{(?:(?!\}\}).)*?'[^'\n]*\\n[^'\n]*'", re.DOTALL)
    assert escape.search("{{ text | split('\\n') }}")
    found = [
        f"{path.relative_to(ROOT)}: {text.strip()[:80]}"
        for folder in (ROOT / "roles", ROOT / "playbooks")
        for path in sorted(folder.rglob("*.yml"))
        for text in _texts(load_yaml(path))
        if escape.search(text)
    ]
    assert found == []
