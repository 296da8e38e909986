# SPDX-License-Identifier: GPL-3.0-or-later
"""A release is reproducible, lists its content, and verifies only with its own signature."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from support.tree import ROOT, load_yaml, run

EPOCH = "1700000000"


def release(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/release.py", *arguments],
        env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.strip()


def build(folder: Path) -> Path:
    result = run("ansible-galaxy", "collection", "build", ROOT, "--output-path", folder / "built", cwd=folder)
    assert result.returncode == 0, result.stderr
    (built,) = (folder / "built").iterdir()
    (folder / "out").mkdir()
    return Path(release("archive", built, folder / "out"))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("release"))


@pytest.fixture
def gpg_home() -> Iterator[Path]:
    """Yield a folder outside tmp_path, because the path of gpg-agent's socket has at most 108 bytes."""
    with TemporaryDirectory(prefix="gpg-") as folder:
        yield Path(folder)
        subprocess.run(["gpgconf", "--homedir", folder, "--kill", "gpg-agent"], check=False, timeout=60)


def test_two_builds_are_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    assert build(tmp_path).read_bytes() == archive.read_bytes()
    with tarfile.open(archive) as content:
        assert {member.mtime for member in content.getmembers()} == {int(EPOCH)}


def test_the_bill_is_made_of_the_pinned_sources_and_the_packages() -> None:
    listed = release("requirements").splitlines()
    for source in load_yaml(ROOT / "roles/llama_cpp/vars/main.yml")["__llama_cpp_archives"].values():
        assert f"{source['package']} --hash=sha256:{source['sha256']}" in listed
    assert {"jmespath", "torch"} <= {re.split("[= ]", line)[0] for line in listed}


def test_files_of_the_execution_environment_ship(archive: Path) -> None:
    with tarfile.open(archive) as content:
        names = set(content.getnames())
    needs = load_yaml(ROOT / "meta/execution-environment.yml")["dependencies"]
    assert {"meta/execution-environment.yml", *needs.values()} <= names


def test_only_the_right_signature_verifies_what_is_installed(archive: Path, gpg_home: Path, tmp_path: Path) -> None:
    collections = tmp_path / "collections"
    result = run(
        "ansible-galaxy", "collection", "install", "--force", archive, "--offline", "--no-deps", "-p", collections,
        cwd=tmp_path, collections=collections,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr

    def gpg(*arguments: str | Path) -> None:
        command = [
            "gpg",
            "--homedir",
            gpg_home,
            "--batch",
            "--quiet",
            "--passphrase",
            "",
            "--pinentry-mode",
            "loopback",
        ]
        subprocess.run([*command, *arguments], check=True, capture_output=True, timeout=120)

    def verify(manifest: Path) -> subprocess.CompletedProcess[str]:
        signature = manifest.with_suffix(".asc")
        gpg("--local-user", "release", "--armor", "--yes", "--detach-sign", "--output", signature, manifest)
        return run(
            "ansible-galaxy", "collection", "verify", "llama_cpp.cluster", "--offline",
            "--keyring", gpg_home / "pubring.kbx", "--signature", signature.as_uri(),
            cwd=tmp_path, collections=collections,
        )  # fmt: skip

    gpg("--quick-generate-key", "release", "ed25519", "sign", "never")
    other = tmp_path / "other.json"
    other.write_text((archive.parent / "MANIFEST.json").read_text() + " ")
    refused = verify(other)
    assert refused.returncode != 0
    assert "Signature verification failed" in refused.stdout + refused.stderr
    accepted = verify(archive.parent / "MANIFEST.json")
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
    readme = collections / "ansible_collections/llama_cpp/cluster/README.md"
    readme.write_text("changed")
    assert verify(archive.parent / "MANIFEST.json").returncode != 0


@pytest.mark.parametrize("passes", [True, False])
def test_nothing_is_built_before_sanity_passes(passes: bool, tmp_path: Path) -> None:
    """In a repository with stand-ins for the programs, which note what is run."""
    top, cache, out = tmp_path / "top", tmp_path / "cache", tmp_path / "out"
    noted = tmp_path / "noted"
    stand_in = (
        f'#!/bin/sh\necho "$(basename "$0") $1" >>{noted}\n[ "$1" != scripts/sanity.py ] || exit {0 if passes else 3}\n'
    )
    for name in ("python", "ansible-galaxy"):
        program = top / ".venv/bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(stand_in)
        program.chmod(0o755)
    (top / "scripts").mkdir()
    (top / "requirements").mkdir()
    for name in ("release.sh", "tools.sh"):
        (top / "scripts" / name).write_text((ROOT / "scripts" / name).read_text())
    (top / "requirements/tools.txt").write_text("")
    (top / ".gitignore").write_text("/.venv/\n")
    tools = cache / f"tools-{hashlib.sha256(b'').hexdigest()[:12]}"
    tools.mkdir(parents=True)
    (tools / "complete").touch()
    who = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    for words in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "--quiet", "--message", "all"]):
        subprocess.run(["git", "-C", str(top), *words], check=True, timeout=60)
    done = subprocess.run(
        ["sh", top / "scripts/release.sh"],
        env={**os.environ, "LLAMA_CPP_CLUSTER_CACHE": str(cache), "OUT": str(out)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    # The stand-ins build nothing, so the script also ends early if sanity passes.
    assert done.returncode != 0
    ran = noted.read_text().splitlines()
    assert ran[0] == "python scripts/sanity.py"
    assert ("ansible-galaxy collection" in ran) is passes
    assert ("error: ansible-test sanity failed, so there is no archive" in done.stderr) is not passes
    assert out.exists() is passes
