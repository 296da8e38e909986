# SPDX-License-Identifier: GPL-3.0-or-later
"""One table of the role llama_cpp has the data of each llama.cpp version; every copy of that data matches it."""

from __future__ import annotations

import re
import subprocess
from functools import cache

import pytest

from support.tree import ROOT, load_yaml

ROLE = ROOT / "roles/llama_cpp"
ARCHIVES = load_yaml(ROLE / "vars/main.yml")["__llama_cpp_archives"]
DEFAULT = load_yaml(ROLE / "defaults/main.yml")["llama_cpp_version"]
PIN = ARCHIVES[DEFAULT]
VERSION = r"(\d+\.\d+\.\d+)"


@cache
def texts() -> dict[str, str]:
    """Return the files that git tracks or would add, without recorded output and the changelog."""
    listing = [
        "git",
        "ls-files",
        "-coz",
        "--exclude-standard",
        "--",
        ":!tests/fixtures",
        ":!CHANGELOG.md",
        ":!changelogs",
    ]
    names = subprocess.check_output(listing, cwd=ROOT, text=True).split("\0")
    paths = {name: ROOT / name for name in names if name and (ROOT / name).is_file()}
    return {name: path.read_text(encoding="utf-8", errors="ignore") for name, path in paths.items()}


def found(pattern: str, suffix: str = "") -> list[tuple[str, tuple[str, ...]]]:
    """Return each file in which a pattern is, with its groups; it is an error if the pattern is nowhere."""
    places = [
        (name, match.groups())
        for name, text in texts().items()
        if name.endswith(suffix)
        for match in re.finditer(pattern, text)
    ]
    assert places, f"nothing says {pattern} any more: take it out of this test"
    return places


def test_the_default_version_is_patched() -> None:
    """A new pin must not silently become a build without patches."""
    assert PIN.get("patches"), f"{DEFAULT} is the default and has no patches: port them (docs/maintaining.md)"


def test_a_version_has_all_that_belongs_to_it() -> None:
    for version, archive in ARCHIVES.items():
        assert archive.keys() - {"patches", "plans"} == {"sha256", "commit", "protocol", "holes"}, version
        assert re.fullmatch("[0-9a-f]{64}", archive["sha256"]), version
        assert re.fullmatch("[0-9a-f]{40}", archive["commit"]), version
        assert re.fullmatch(VERSION, archive["protocol"]), version
    assert list(ARCHIVES) == sorted(ARCHIVES, key=lambda version: [int(part) for part in version.split(".")])


def test_the_patches_of_a_version_are_the_files_there() -> None:
    folder = ROLE / "files/patches"
    files = {path.name: sorted(patch.stem for patch in path.iterdir()) for path in folder.iterdir()}
    assert files == {
        version: sorted(archive["patches"]) for version, archive in ARCHIVES.items() if "patches" in archive
    }


def test_versions_that_can_be_asked_for() -> None:
    option = load_yaml(ROLE / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]["llama_cpp_version"]
    assert (option["choices"], option["default"]) == (list(ARCHIVES), DEFAULT)


def test_a_version_and_a_commit_belong_together() -> None:
    places = found(VERSION + r"-([0-9a-f]{9})\b")
    assert [(name, said) for name, said in places if not ARCHIVES[said[0]]["commit"].startswith(said[1])] == []


@pytest.mark.parametrize(
    ("pattern", "suffix"),
    [
        pytest.param(rf'Release\("{VERSION}", "{VERSION}"\)', ".py", id="releases-under-test"),
        pytest.param(rf"version: {VERSION}, targets: .*# protocol {VERSION}", ".yml", id="releases-that-are-built"),
        pytest.param(
            rf"\(llama-cpp-python {VERSION}\) \| {VERSION}", "docs/reference/compatibility.md", id="compatibility"
        ),
    ],
)
def test_a_version_and_a_protocol_belong_together(pattern: str, suffix: str) -> None:
    places = found(pattern, suffix)
    assert [(name, said) for name, said in places if ARCHIVES[said[0]]["protocol"] != said[1]] == []


def test_the_page_of_what_works_with_which_names_commits_of_the_table() -> None:
    for _page, (commit, version) in found(
        rf"\| ([0-9a-f]+) \(llama-cpp-python {VERSION}\)", "docs/reference/compatibility.md"
    ):
        assert ARCHIVES[version]["commit"].startswith(commit), version
    assert PIN["protocol"] in (ROOT / "docs/reference/compatibility.md").read_text()


def test_recorded_output_is_of_commits_of_the_table() -> None:
    names = [path.name for path in (ROOT / "tests/fixtures/logs").iterdir()]
    recorded = {said for name in names for said in re.findall(rf"-([0-9a-f]{{8,9}})-rpc{VERSION}", name)}
    known = {(archive["commit"], archive["protocol"]) for archive in ARCHIVES.values()}
    assert {
        (commit, protocol)
        for commit, protocol in recorded
        if not any(full.startswith(commit) and protocol == of for full, of in known)
    } == set()
    assert any(PIN["commit"].startswith(commit) for commit, _protocol in recorded), "nothing is recorded of the default"


def test_what_programs_say_of_themselves_is_recorded_of_versions_of_the_table() -> None:
    names = {path.name for folder in ("capabilities", "bench") for path in (ROOT / "tests/fixtures" / folder).iterdir()}
    assert {said for name in names for said in re.findall(VERSION, name)} <= set(ARCHIVES)
    wanted = {f"{program}-{DEFAULT}-help.txt" for program in ("llama-completion", "llama-cli", "llama-bench")}
    assert {*wanted, f"llama-bench-{DEFAULT}.jsonl"} <= names, "nothing is recorded of the default version"


def test_digests_in_examples() -> None:
    near = rf"llama-cpp-python=={VERSION}\n\s*sha256: ([0-9a-f]{{64}})"
    assert [said for _name, said in found(near) if ARCHIVES[said[0]]["sha256"] != said[1]] == []
    of_archive = rf"sha256: ([0-9a-f]{{64}})\n\s*subdir: llama_cpp_python-{VERSION}/"
    assert [said for _name, said in found(of_archive) if ARCHIVES[said[1]]["sha256"] != said[0]] == []


OF_THE_DEFAULT = {
    "readme": rf"source archive of `llama-cpp-python` {VERSION} \(llama\.cpp commit",
    "security": rf"the default version, {VERSION},",
    "tables-of-types": rf'TABLES_OF = "{VERSION}"',
    "modules": rf"llama\.cpp in release {VERSION}",
    "role": rf"By default version {VERSION}\s+gets all patches",
}


@pytest.mark.parametrize("pattern", OF_THE_DEFAULT.values(), ids=OF_THE_DEFAULT.keys())
def test_what_is_said_of_the_default_version(pattern: str) -> None:
    assert {said for _name, (said,) in found(pattern)} == {DEFAULT}


def test_the_readme_says_commit_and_protocol() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"(llama.cpp commit {PIN['commit'][:9]}, RPC protocol {PIN['protocol']})" in text


def test_the_role_says_which_patches_there_are() -> None:
    text = (ROLE / "README.md").read_text()
    assert set(re.findall(r"^\| `([a-z-]+)` \| (?:worker|master|both) \|", text, re.MULTILINE)) == set(PIN["patches"])
    for version, archive in ARCHIVES.items():
        if "patches" in archive and version != DEFAULT:
            assert f"{version} {' and '.join(f'`{name}`' for name in archive['patches'])}" in text


def test_patches_that_texts_name_are_there() -> None:
    named = {said for _name, (said,) in found(r"patch(?:es)? (?:\[)?[`(]*\b((?:rpc|log)-[a-z]+)\b(?!\.)")}
    assert named - set(PIN["patches"]) - {"rpc-unpack", "rpc-send"} == set()


UPSTREAM = ROOT / "docs/upstream"


def test_each_patch_has_its_page_for_upstream_and_each_page_its_patch() -> None:
    pages = {path.stem for path in UPSTREAM.glob("*.md")} - {"README"}
    assert pages == set(PIN["patches"])
    assert re.findall(r"^\| `([a-z-]+)` \|", (UPSTREAM / "README.md").read_text(), re.MULTILINE) == PIN["patches"]


@pytest.mark.parametrize("name", PIN["patches"])
def test_a_page_for_upstream_is_whole(name: str) -> None:
    """The page has all parts, its tests exist, and its figures are those of docs/explanation/performance.md."""
    text = (UPSTREAM / f"{name}.md").read_text()
    parts = ["Problem", "Change", "Measured", "Tests", "Risks"]
    assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == parts
    tests = re.findall(r"`(tests/\S+\.py)`", text)
    assert tests
    assert [test for test in tests if not (ROOT / test).exists()] == []
    measured = text.partition("**Measured.**")[2].partition("**Tests.**")[0]
    known = (ROOT / "docs/explanation/performance.md").read_text()
    assert [figure for figure in re.findall(r"\d+\.\d+", measured) if figure not in known] == []
