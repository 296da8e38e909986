# SPDX-License-Identifier: GPL-3.0-or-later
"""The patches of llama.cpp apply in every choice that the docs allow, and match what scripts/patches.py exports."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from ansible.plugins.loader import lookup_loader
from ansible_collections.llama_cpp.cluster.plugins.lookup.source_patches import CORE
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.source_patch import apply, touched

from support.harness import ARCHIVES, CACHE, DEFAULT, ROOT, completed
from support.pinned_source import ROLE, choices, patches, source, unpack

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

needs_git = pytest.mark.skipif(not shutil.which("git"), reason="needs git")


def patches_py(*arguments: str) -> subprocess.CompletedProcess[str]:
    return completed(sys.executable, ROOT / "scripts/patches.py", *arguments, LLAMA_CPP_CLUSTER_CACHE=str(CACHE))


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the pinned source."""
    tree = tmp_path_factory.mktemp("stock") / "tree"
    unpack(DEFAULT, tree)
    return tree


def applied(stock: Path, names: Sequence[str]) -> dict[str, bytes | None]:
    """Return the files that the role's patches change in a source, with their new content."""
    paths = {path: stock / path for path in touched(patches(DEFAULT, names))}
    return apply(patches(DEFAULT, names), {n: p.read_bytes() for n, p in paths.items() if p.exists()}.get)


def test_each_choice_applies(stock: Path) -> None:
    for names in choices(DEFAULT):
        assert bool(applied(stock, names)) == bool(names)


@needs_git
def test_the_files_are_what_is_exported_from_a_tree(stock: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    made = patches_py("tree", str(tree))
    assert made.returncode == 0, made.stderr
    for path, content in applied(stock, ARCHIVES[DEFAULT]["patches"]).items():
        assert (tree / path).read_bytes() == content, "git and the role apply them alike"
    before = {path: path.read_bytes() for path in (ROLE / "files/patches" / DEFAULT).iterdir()}
    place = tmp_path / "exported"
    done = patches_py("export", str(tree), str(place))
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_bytes() for path in place.iterdir()} == {
        path.name: content for path, content in before.items()
    }


@needs_git
def test_patches_are_merged_into_a_source_that_differs(tmp_path: Path) -> None:
    """If somebody has changed the same lines, the script names the file, and the rest fits."""
    other = tmp_path / "other"
    unpack(DEFAULT, other)
    changed = other / "ggml/src/ggml-rpc/transport.cpp"
    head, send, tail = changed.read_text().partition(
        "        ssize_t n = send(fd, (const char *)data + bytes_sent, size_to_send, 0);"
    )
    assert send
    changed.write_text("// moved\n" * 50 + head + send.replace("0);", "1);") + tail)
    done = patches_py("rebase", str(other), str(tmp_path / "tree"))
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("conflicts in ggml/src/ggml-rpc/transport.cpp\n") == done.stdout.count("conflicts") == 1, (
        done.stdout
    )
    log = subprocess.check_output(["git", "log", "--format=%s"], cwd=tmp_path / "tree", text=True)
    assert len(log.splitlines()) == 1 + len(ARCHIVES[DEFAULT]["patches"])
    assert "<<<<<<<" in (tmp_path / "tree/ggml/src/ggml-rpc/transport.cpp").read_text()


@pytest.mark.parametrize(
    ("change", "left_out"),
    [
        ({}, {}),
        ({"tools/server/server-http.cpp": "// other\n"}, {"programs": "hunk 1 of it, at line"}),
        (
            {"ggml/include/ggml-rpc.h": "#define RPC_PROTO_MAJOR_VERSION 9\n"},
            dict.fromkeys(CORE, "protocol 9, and"),
        ),
    ],
    ids=["alike", "file changed", "newer protocol"],
)
def test_another_build_gets_the_patches_of_the_core_that_fit_it(
    tmp_path: Path, change: dict[str, str], left_out: dict[str, str]
) -> None:
    tree = tmp_path / "tree"
    unpack(DEFAULT, tree)
    for path, text in change.items():
        (tree / path).write_text(text)
    archive = tmp_path / "source.tar"
    subprocess.run(["tar", "-cf", archive, "-C", tmp_path, "tree"], check=True)
    lookup = lookup_loader.get("llama_cpp.cluster.source_patches")
    options = {"own": str(ROLE / "files/patches"), "archive": str(archive), "subdir": "tree", "fitting": True}
    (found,) = lookup.run([], variables={}, protocol=ARCHIVES[DEFAULT]["protocol"], **options)
    assert found["problem"] == ""
    assert {patch["name"] for patch in found["patches"]} == {*CORE} - {*left_out}
    assert [(each["name"], left_out[each["name"]] in each["why"]) for each in found["left_out"]] == [
        (name, True) for name in CORE if name in left_out
    ]


def test_what_a_new_pin_is_compared_by_is_found_in_a_source() -> None:
    code = "import sys; sys.path.insert(0, 'scripts'); import pin; print(pin.facts(sys.argv[1]))"
    done = completed(sys.executable, "-c", code, source(DEFAULT))
    assert done.returncode == 0, done.stderr
    found = ast.literal_eval(done.stdout)
    assert found.pop("RPC protocol") == {ARCHIVES[DEFAULT]["protocol"]}
    assert all(len(names) > 20 for names in found.values()), found
