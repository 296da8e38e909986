# SPDX-License-Identifier: GPL-3.0-or-later
"""The role `llama_cpp` applies patches to the source, and results contain what a patched worker reports.

The source, the patches and the worker's report are stand-ins; releases.yml builds the real ones.
"""

from __future__ import annotations

import subprocess
from difflib import unified_diff
from pathlib import Path

import pytest

from support.fleet import Fleet
from support.stand_in_source import FAKE, archive

MAIN = (FAKE / "main.cpp").read_text()
# The program prints a text that is in a file of the first patch.
FIRST = MAIN.replace("const char * commit", '#include "words/first.h"\nconst char * commit').replace(
    "0 (", '0" FIRST " ('
)
SECOND = FIRST.replace("FIRST", 'FIRST " and second"')


def diff(old: str, new: str, path: str = "main.cpp") -> str:
    return "".join(unified_diff(old.splitlines(True), new.splitlines(True), f"a/{path}", f"b/{path}"))


def words(text: str) -> str:
    """Return the diff that adds the file with these words."""
    lines = unified_diff([], [f'#define FIRST " {text}"\n'], "/dev/null", "b/words/first.h")
    return "".join(lines)


def said(fleet: Fleet, host: str) -> str:
    """Return the first line that a host's program prints."""
    server = fleet.current(host) / "bin/rpc-server"
    return subprocess.run([server], capture_output=True, text=True, check=True, timeout=10).stderr.splitlines()[0]


@pytest.mark.long
def test_patches_are_applied_or_refused_before_anything_is_built(tmp_path: Path) -> None:
    """Each host but the first has patches that are refused, each for another reason."""
    fleet = Fleet(tmp_path, archive(tmp_path / "source.tar.gz"))
    sha256 = fleet.variables["llama_cpp_archive_sha256"]
    # Tasks look for their files in the folder of the playbook.
    folder = tmp_path / "files"
    folder.mkdir()

    def patch(name: str, text: str, origin: str = f"sha256:{sha256}") -> str:
        (folder / f"{name}.patch").write_text(f"SPDX-License-Identifier: MIT\nMade-for: {origin}\nWhy.\n{text}")
        return f"{folder}/{name}.patch"

    first = patch("first", diff(MAIN, FIRST) + words("first"))
    second = patch("second", diff(FIRST, SECOND))
    bad = {
        "swapped": [second, first],
        "other": [patch("other", diff(MAIN, FIRST), f"commit:{'1' * 40}")],
        "missing": ["nowhere.patch"],
        "unknown": ["rpc-unpack"],
        "evil": [patch("evil", diff(MAIN, FIRST, "../../main.cpp"))],
        "text": first,
    }
    artifact = {"llama_cpp_build_strategy": "artifact", "llama_cpp_artifact": "x", "llama_cpp_artifact_sha256": sha256}
    fleet.hosts = {
        "both": {"llama_cpp_patches": [first, "second.patch"]},
        **{host: {"llama_cpp_patches": patches} for host, patches in bad.items()},
        "given": {**artifact, "llama_cpp_patches": [first]},
    }
    refused = list(fleet.hosts)[1:]
    for host in refused:
        fleet.has_an_older_release(host)
    run = fleet.run(*fleet.hosts)
    fleet.failed(
        run, "swapped", "No artifact could be made for the class", "The patch second does not apply to main.cpp: hunk 1"
    )
    fleet.failed(
        run,
        "other",
        f"The patch other is made for commit:{'1' * 40}, and the pinned source is",
        f"(sha256:{sha256}, commit:a",
    )
    fleet.failed(run, "missing", "The patch nowhere.patch does not exist on the controller")
    fleet.failed(run, "unknown", "There is no patch rpc-unpack of this collection's own")
    fleet.failed(run, "evil", "The patch evil is refused: it changes 'a/../../main.cpp'")
    fleet.failed(run, "text", "llama_cpp_patches lists; on the command line give them as JSON")
    fleet.failed(run, "given", "llama_cpp_patches is for what is built")
    for host in refused:
        assert fleet.is_as_it_was(host), host
    assert run.text.count("failed=0") == 1, run.text
    version = "version: 0{} (abcdef012)"
    assert said(fleet, "both") == version.format(" first and second")
    made = fleet.record("both")["manifest"]["patches"]
    assert [patch["name"] for patch in made] == ["first", "second"]

    # After a failure, the next run begins with a clean source. Other words make another release, and so does stock.
    fleet.hosts["swapped"] = {**fleet.hosts["both"], "llama_cpp_build_strategy": "per_class"}
    patch("first", diff(MAIN, FIRST) + words("other"))
    run = fleet.run("swapped")
    assert run.code == 0, run.text
    assert said(fleet, "swapped") == version.format(" other and second")
    assert fleet.release("swapped") != fleet.release("both")
    changed = fleet.record("swapped")["manifest"]["patches"]
    assert (changed[0] != made[0], changed[1]) == (True, made[1])
    run = fleet.run("swapped", options=("--check",), llama_cpp_patches=[])
    assert run.holds("would be built with rpc-server"), run.text
