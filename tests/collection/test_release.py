# SPDX-License-Identifier: GPL-3.0-or-later
"""A release is the same bytes each time, lists what is in it, and is installed only with its own signature."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from support.tree import ROOT, load_yaml, run

EPOCH = "1700000000"


def release(*arguments: str | Path) -> Path:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/release.py", *arguments],
        env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    return Path(done.stdout.strip())


def build(folder: Path) -> Path:
    result = run("ansible-galaxy", "collection", "build", ROOT, "--output-path", folder / "built", cwd=folder)
    assert result.returncode == 0, result.stderr
    (built,) = (folder / "built").iterdir()
    (folder / "out").mkdir()
    return release("archive", built, folder / "out")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def bill(archive: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(release("sbom", archive).read_text())
    return found


@pytest.fixture
def gpg_home() -> Iterator[Path]:
    """Not below tmp_path, as the path of the socket of gpg-agent has at most 108 bytes."""
    with TemporaryDirectory(prefix="gpg-") as folder:
        yield Path(folder)
        subprocess.run(["gpgconf", "--homedir", folder, "--kill", "gpg-agent"], check=False, timeout=60)


def test_two_builds_are_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    assert build(tmp_path).read_bytes() == archive.read_bytes()
    with tarfile.open(archive) as content:
        assert {member.mtime for member in content.getmembers()} == {int(EPOCH)}


def test_the_bill_lists_every_file_with_its_digest(archive: Path, bill: dict[str, Any]) -> None:
    listed = {part["name"]: part["hashes"][0]["content"] for part in bill["components"] if part["type"] == "file"}
    with tarfile.open(archive) as content:
        files = [member for member in content.getmembers() if member.isfile()]
        streams = {member.name: content.extractfile(member) for member in files}
        digests = {
            name: hashlib.sha256(stream.read() if stream else b"").hexdigest() for name, stream in streams.items()
        }
    assert listed == {name: digest for name, digest in digests.items() if name not in ("MANIFEST.json", "FILES.json")}
    assert bill["metadata"]["component"]["hashes"][0]["content"] == hashlib.sha256(archive.read_bytes()).hexdigest()


def test_the_bill_lists_the_pinned_source_with_its_patches(bill: dict[str, Any]) -> None:
    table = load_yaml(ROOT / "roles/llama_cpp/vars/main.yml")["__llama_cpp_archives"]
    sources = {part["version"]: part for part in bill["components"] if part["name"] == "llama-cpp-python"}
    assert sorted(sources) == sorted(table)
    version = str(load_yaml(ROOT / "roles/llama_cpp/defaults/main.yml")["llama_cpp_version"])
    assert sources[version]["hashes"][0]["content"] == table[version]["sha256"]
    assert sources[version]["pedigree"]["commits"] == [{"uid": table[version]["commit"]}]
    patches = [patch["diff"]["url"] for patch in sources[version]["pedigree"]["patches"]]
    assert len(patches) == len(table[version]["patches"])
    assert set(patches) <= {part["name"] for part in bill["components"] if part["type"] == "file"}


def test_the_bill_lists_what_galaxy_and_the_controller_need(bill: dict[str, Any]) -> None:
    names = {part["name"] for part in bill["components"]}
    assert {"ansible-core", "jmespath", "torch", *load_yaml(ROOT / "galaxy.yml")["dependencies"]} <= names
    references = [part["bom-ref"] for part in bill["components"]]
    assert len(references) == len(set(references))


def test_files_of_the_execution_environment_ship(archive: Path) -> None:
    with tarfile.open(archive) as content:
        names = set(content.getnames())
    needs = load_yaml(ROOT / "meta/execution-environment.yml")["dependencies"]
    assert {"meta/execution-environment.yml", *needs.values()} <= names


def test_only_the_signature_of_a_trusted_key_installs(archive: Path, gpg_home: Path, tmp_path: Path) -> None:
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

    def install(manifest: Path, keyring: Path) -> subprocess.CompletedProcess[str]:
        signature = tmp_path / "signature.asc"
        signature.unlink(missing_ok=True)
        gpg("--local-user", "release", "--armor", "--detach-sign", "--output", signature, manifest)
        return run(
            "ansible-galaxy", "collection", "install", archive, "--offline", "--no-deps", "--force",
            "--keyring", keyring, "--signature", signature.as_uri(), "-p", tmp_path / "collections",
            cwd=tmp_path,
        )  # fmt: skip

    gpg("--quick-generate-key", "release", "ed25519", "sign", "never")
    other = tmp_path / "other.json"
    other.write_text((archive.parent / "MANIFEST.json").read_text() + " ")
    refused = install(other, gpg_home / "pubring.kbx")
    assert refused.returncode != 0, refused.stdout
    assert "signature" in refused.stdout + refused.stderr
    accepted = install(archive.parent / "MANIFEST.json", gpg_home / "pubring.kbx")
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
