# SPDX-License-Identifier: GPL-3.0-or-later
"""The capabilities of builds, from the recorded output of real builds of each generation."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.capabilities import (
    BinaryError,
    Program,
    describe,
    find_program,
    read_manifest,
)

RECORDED = Path(__file__).parents[2] / "fixtures" / "capabilities"
# The name of a fixture: the program, and the archive that it was built from.
NEW = "llama-completion-b11549"


def described(recorded: str, manifest: dict[str, object] | None = None, version: str | None = None) -> Program:
    version = version or (RECORDED / f"{recorded}-version.txt").read_text()
    return describe(f"/opt/{recorded}", version, (RECORDED / f"{recorded}-help.txt").read_text(), manifest or {})


# Since b9151, lines have a time and a level, and lines about devices have the level "trace".
@pytest.mark.parametrize(
    ("archive", "version", "build_number", "commit", "protocol", "verbosity"),
    [
        ("0.3.20", None, 0, "f49e91787", None, ()),
        ("b11549", "0.6.0-dev", 11549, None, None, ("-lv", "4")),
    ],
)
def test_a_build_is_known_by_what_it_says(
    archive: str,
    version: str | None,
    build_number: int,
    commit: str | None,
    protocol: str | None,
    verbosity: tuple[str, ...],
) -> None:
    found = described(f"llama-completion-{archive}")
    assert (found.version, found.build_number, found.commit) == (version, build_number, commit)
    assert (found.protocol, found.verbosity) == (protocol, verbosity)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("version: 6209 (fb22dd07a)\nbuilt with cc", (None, 6209, "fb22dd07a")),
        ("version: 0.1.1-dev (build 10470, commit 8eb1be3b5)\n", ("0.1.1-dev", 10470, "8eb1be3b5")),
        ("version: 0 (unknown)\n", (None, 0, None)),
        ("ggml_init: found 1 device\nversion: 7000 (0123abc)\n", (None, 7000, "0123abc")),
    ],
    ids=["b6209", "b10470", "no-git", "after-a-backend's-banner"],
)
def test_version_texts_of_all_generations(version: str, expected: tuple[str | None, int, str | None]) -> None:
    found = described(NEW, version=version)
    assert (found.version, found.build_number, found.commit) == expected


@pytest.mark.parametrize("version", ["", "GNU coreutils 9.1\n", "version: \n", "usage: x\n"])
def test_a_program_that_is_not_llama_cpp_is_refused(version: str) -> None:
    with pytest.raises(BinaryError, match=r"does not answer --version as llama\.cpp does"):
        describe("/bin/true", version, "", {})


def test_a_build_without_rpc_is_refused_with_the_switch_to_build_it() -> None:
    usage = (RECORDED / f"{NEW}-help.txt").read_text().replace("--rpc SERVERS", "")
    with pytest.raises(BinaryError, match="GGML_RPC=ON"):
        describe("/opt/x", (RECORDED / f"{NEW}-version.txt").read_text(), usage, {})


@pytest.mark.parametrize(
    ("manifest", "protocol", "commit"),
    [
        ({}, "7.0.0", "0c1e570"),
        ({"rpc_protocol": "9.1.0"}, "9.1.0", "0c1e570"),
        ({"source": {"commit": "0c1e570" + "9" * 33}}, "7.0.0", "0c1e570" + "9" * 33),
        ({"source": {"commit": "f" * 40}}, "7.0.0", "0c1e570"),
        ({"rpc_protocol": 7, "source": "x"}, "7.0.0", "0c1e570"),
        ({"rpc_protocol": "unknown"}, "7.0.0", "0c1e570"),
        ({"rpc_protocol": "7"}, "7.0.0", "0c1e570"),
    ],
    ids=["none", "protocol", "commit", "commit-of-another-build", "of-other-types", "no-version", "part-of-one"],
)
def test_the_manifest_says_more_but_not_otherwise(
    manifest: dict[str, object], protocol: str | None, commit: str | None
) -> None:
    found = described(NEW, manifest, "version: 0.5.0-dev (build 1, commit 0c1e570)\n")
    assert (found.protocol, found.commit) == (protocol, commit)


ELF = b"\x7fELF\x02" + (b"\x01" if sys.byteorder == "little" else b"\x02") + bytes(12)
OURS = Path(sys.executable).resolve().read_bytes()[:64]
OTHER = ELF + (62 if platform.machine() != "x86_64" else 183).to_bytes(2, sys.byteorder) + bytes(44)


def program(folder: Path, name: str, content: bytes, mode: int = 0o755) -> str:
    path = folder / name
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("content", [OURS, b"#!/bin/sh\n"], ids=["binary", "wrapper"])
def test_a_program_is_found(tmp_path: Path, content: bytes) -> None:
    path = program(tmp_path, "llama-completion", content)
    assert find_program(str(tmp_path)) == path


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (b"not a program\n", 0o755, "is not a program; install"),
        (b"", 0o755, "is not a program; install"),
        (b"\x7fELF", 0o755, "is not a program; install"),
        (OTHER, 0o755, f"another kind of machine than this one .{platform.machine()}."),
        (OURS, 0o644, "may not be run by this user; correct its permissions"),
    ],
    ids=["text", "empty", "cut-off", "other-architecture", "not-executable"],
)
def test_what_cannot_run_is_refused_before_it_is_started(
    tmp_path: Path, content: bytes, mode: int, message: str
) -> None:
    path = program(tmp_path, "llama-completion", content, mode)
    with pytest.raises(BinaryError, match=message) as caught:
        find_program(str(tmp_path))
    assert path in str(caught.value)


def test_a_missing_folder_program_and_target_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(BinaryError, match=r"There is no folder .*set bin_folder"):
        find_program(str(tmp_path / "nowhere"))
    with pytest.raises(BinaryError, match="There is no llama-completion in"):
        find_program(str(tmp_path))
    (tmp_path / "llama-completion").symlink_to("gone")
    with pytest.raises(BinaryError, match="is not a file"):
        find_program(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "expected"),
    [('{"rpc_protocol": "7.0.0"}', {"rpc_protocol": "7.0.0"}), (None, {}), ("[]", {}), ("{", {}), ("\x00", {})],
    ids=["manifest", "none", "a-list", "cut-off", "binary"],
)
def test_the_manifest_is_found_through_the_link_to_the_current_release(
    tmp_path: Path, content: str | None, expected: dict[str, object]
) -> None:
    release = tmp_path / "releases" / "one"
    (release / "bin").mkdir(parents=True)
    (tmp_path / "current").symlink_to(release)
    if content is not None:
        (release / "manifest.json").write_text(content)
    assert read_manifest(str(tmp_path / "current" / "bin")) == expected
