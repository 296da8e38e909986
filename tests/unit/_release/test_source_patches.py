# SPDX-License-Identifier: GPL-3.0-or-later
"""The lookup source_patches: the patches of the collection that a source may have, by name."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.plugins.loader import lookup_loader
from ansible_collections.llama_cpp.cluster.plugins.lookup.source_patches import CORE

from support.archives import member, pack

ROOT = Path(__file__).resolve().parents[3]
ROLE = ROOT / "roles/llama_cpp"
ARCHIVES = yaml.safe_load((ROLE / "vars/main.yml").read_text())["__llama_cpp_archives"]
DEFAULT = yaml.safe_load((ROLE / "defaults/main.yml").read_text())["llama_cpp_version"]
OWN = ARCHIVES[DEFAULT]["patches"]


def found(*names: str, version: str = DEFAULT) -> dict[str, Any]:
    lookup = lookup_loader.get("llama_cpp.cluster.source_patches")
    options = {"own": str(ROLE / "files/patches"), "sha256": ARCHIVES[version]["sha256"], "pinned": version}
    (result,) = lookup.run(list(names), variables={}, **options)
    return dict(result)


CHOICES = {"all": OWN, "core": [name for name in OWN if name in CORE], "none": []}


@pytest.mark.parametrize("names", CHOICES.values(), ids=CHOICES.keys())
def test_all_the_core_and_none_are_allowed(names: list[str]) -> None:
    result = found(*names)
    assert result["problem"] == ""
    assert [(patch["name"], Path(patch["path"]).parent.name) for patch in result["patches"]] == [
        (name, DEFAULT) for name in names
    ]


@pytest.mark.parametrize("names", [OWN[:1], OWN[1:], OWN[2:]], ids=["one", "one-left-out", "two-left-out"])
def test_fewer_are_refused_with_what_is_missing(names: list[str]) -> None:
    missing = sorted(set(OWN) - set(names))
    assert found(*names)["problem"].startswith(
        f"llama_cpp_patches leaves out {' and '.join(missing)}: of the collection's"
    )


def test_a_version_without_patches_has_none_of_another_one() -> None:
    assert found(*OWN, version="0.3.35")["problem"].startswith(f"The patch {OWN[0]} is made for sha256:")


def test_an_unknown_name_is_told_what_there_is() -> None:
    problem = found("rpc-unpack")["problem"]
    assert problem.startswith("There is no patch rpc-unpack of this collection's own (there is ")
    assert all(name in problem for name in OWN)


MADE_FOR = f"Made-for: commit:{'a' * 40}\n"
PATCH = MADE_FOR + "--- a/x.c\n+++ b/x.c\n@@ -1 +1 @@\n-text\n+other\n"
ARCHIVES_TRIED = {
    "fits": ([member("src/x.c")], "w:gz", ""),
    "below-a-point": ([member("./src/x.c")], "w", ""),
    "with-links": ([member("src/x.c"), member("src/sub/l", tarfile.SYMTYPE, "../x.c")], "w:bz2", ""),
    "other-lines": ([member("src/x.c", text="more\n")], "w:xz", "The patch mine does not apply to x.c: hunk 1 of it"),
    "other-folder": ([member("x.c")], "w", "The patch mine does not apply to x.c: there is no such file"),
    "absolute-path": ([member("/etc/evil")], "w", "is refused: its member /etc/evil leads out of its root."),
    "parent-path": ([member("src/../../evil")], "w", "is refused: its member src/../../evil leads out"),
    "link-out": ([member("src/l", tarfile.SYMTYPE, "../../x")], "w", "is refused: its member src/l leads out"),
    "absolute-link": ([member("src/l", tarfile.SYMTYPE, "/etc")], "w", "is refused: its member src/l leads out"),
    "hard-link-out": ([member("src/l", tarfile.LNKTYPE, "../x")], "w", "is refused: its member src/l leads out"),
    "truncated": (None, "w:gz", "is not a whole archive (tar, plain or with gzip, bzip2 or xz)"),
}


@pytest.mark.parametrize(("members", "how", "said"), ARCHIVES_TRIED.values(), ids=ARCHIVES_TRIED)
def test_patches_are_tried_in_a_whole_archive(tmp_path: Path, members: Any, how: str, said: str) -> None:
    (tmp_path / "1.0").mkdir()
    (tmp_path / "1.0/mine.patch").write_text(PATCH)
    archive = tmp_path / "archive"
    pack(archive, *(members or [member("src/x.c")]), how=how)
    if members is None:
        archive.write_bytes(archive.read_bytes()[:60])
    lookup = lookup_loader.get("llama_cpp.cluster.source_patches")
    options = {"commit": "a" * 40, "own": str(tmp_path), "archive": str(archive), "subdir": "src"}
    (result,) = lookup.run(["mine"], variables={}, **options)
    assert said in result["problem"]
    assert bool(said) == bool(result["problem"]), result
