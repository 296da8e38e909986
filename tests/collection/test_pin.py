# SPDX-License-Identifier: GPL-3.0-or-later
"""One table of the role llama_cpp has the data of each llama.cpp version; copies of that data match it."""

from __future__ import annotations

import re
import subprocess
from functools import cache

from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.ggml_types import TABLES_OF

from support.pinned_source import label
from support.tree import ROOT, load_yaml

ROLE = ROOT / "roles/llama_cpp"
ARCHIVES = load_yaml(ROLE / "vars/main.yml")["__llama_cpp_archives"]
DEFAULT = load_yaml(ROLE / "defaults/main.yml")["llama_cpp_version"]
PIN = ARCHIVES[DEFAULT]
VERSION = r"(\d+\.\d+\.\d+|b\d+)"


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
        assert archive.keys() - {"patches", "plans"} == {"package", "sha256", "commit", "protocol"}, version
        assert re.fullmatch("[0-9a-f]{64}", archive["sha256"]), version
        assert re.fullmatch("[0-9a-f]{40}" if archive["package"].startswith("llama-cpp") else "", archive["commit"])
        assert archive["package"].endswith(version.replace("b", ".") if version[0] == "b" else f"=={version}")
        assert re.fullmatch(VERSION, archive["protocol"]), version
    assert list(ARCHIVES) == sorted(ARCHIVES, key=lambda version: [int(part) for part in re.findall(r"\d+", version)])


def test_the_patches_of_a_version_are_the_files_there() -> None:
    folder = ROLE / "files/patches"
    files = {path.name: sorted(patch.stem for patch in path.iterdir()) for path in folder.iterdir()}
    assert files == {
        version: sorted(archive["patches"]) for version, archive in ARCHIVES.items() if "patches" in archive
    }


def test_the_page_for_upstream_counts_the_hunks_of_each_patch() -> None:
    page = (ROOT / "docs/upstream/README.md").read_text()
    patches = (ROLE / "files/patches" / DEFAULT).iterdir()
    counted = {path.stem: str(len(re.findall("^@@ ", path.read_text(), re.MULTILINE))) for path in patches}
    assert dict(re.findall(r"^\| \[`([a-z-]+)`\]\([^)]*\) \| (\d+) \|", page, re.MULTILINE)) == counted


def test_versions_that_can_be_asked_for() -> None:
    option = load_yaml(ROLE / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]["llama_cpp_version"]
    assert option["default"] == DEFAULT
    assert f"V({DEFAULT})" in option["description"][0]


def test_a_version_and_a_commit_belong_together() -> None:
    places = found(VERSION + r"-([0-9a-f]{9})\b")
    assert [(name, said) for name, said in places if label(said[0]) != "-".join(said)] == []


def test_output_of_the_default_version_is_recorded() -> None:
    folder = ROOT / "tests/fixtures"
    assert list((folder / "logs").glob(f"*-{PIN['commit'][:9] or DEFAULT}-rpc{PIN['protocol']}*"))
    for name in ("capabilities/llama-completion-{}-help.txt", "capabilities/llama-bench-{}-help.txt"):
        assert (folder / name.format(DEFAULT)).exists(), name
    assert (folder / f"bench/llama-bench-{DEFAULT}.jsonl").exists()


def test_tables_of_types_are_of_the_default_version() -> None:
    assert TABLES_OF == DEFAULT


def test_each_patch_is_described() -> None:
    for page, pattern in (
        (ROLE / "README.md", r"^\| `([a-z-]+)` \|"),
        (ROOT / "docs/upstream/README.md", r"^## `([a-z-]+)`"),
    ):
        assert set(PIN["patches"]) <= set(re.findall(pattern, page.read_text(), re.MULTILINE)), page
