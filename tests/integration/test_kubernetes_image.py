# SPDX-License-Identifier: GPL-3.0-or-later
"""The image of leaders and workers: its content, and that it is always the same.

Most tests use a stand-in for mmdebstrap. One uses mmdebstrap itself, with root and without.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from support.harness import ROOT, completed

PROGRAM = ROOT / "roles/kubernetes/files/oci_image.py"
MANIFEST = {"id": "1.0-abc-0", "version": "1.0-abc", "cpu_class": {"name": "one"}, "patches": []}
# A stand-in for an extracted Debian, parts of which the image leaves out.
DEBIAN = """#!/bin/sh
cd "$(dirname "$0")" && mkdir -p d/usr/bin d/usr/share/man d/usr/share/doc/python3 d/var/cache/apt && cd d
doc=usr/share/doc/python3
for name in usr/bin/python3 usr/share/man/page $doc/copyright $doc/more var/cache/apt/x
do echo "$name" >"$name"; done
[ -e bin ] || ln -s usr/bin bin
exec tar --create --sort name --mtime @0 --owner 0 --group 0 .
"""


def artifact(folder: Path, name: str, *programs: str, machine: int = 62, **manifest: Any) -> Path:
    """Write an artifact as role llama_cpp packs it."""
    path = folder / f"{name}.tar.gz"
    files = {f"./bin/{program}": b"\x7fELF" + bytes(14) + bytes([machine, 0]) + bytes(40) for program in programs}
    files["./manifest.json"] = json.dumps({**MANIFEST, **manifest}).encode()
    with tarfile.open(path, "w:gz") as tar:
        for inside, data in files.items():
            entry = tarfile.TarInfo(inside)
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
    return path


def make(folder: Path, *artifacts: Path, name: str = "image.tar") -> subprocess.CompletedProcess[str]:
    program = folder / "mmdebstrap"
    program.write_text(DEBIAN)
    program.chmod(0o755)
    return subprocess.run(
        [sys.executable, PROGRAM, folder / name, "http://mirror.example.com/debian", *artifacts],
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def blobs(archive: Path) -> dict[str, bytes]:
    """Return the files of an archive by their names; assert that each blob has the digest that its name gives."""
    found = {}
    with tarfile.open(archive) as tar:
        for entry in tar:
            data = tar.extractfile(entry)
            assert data is not None
            found[entry.name] = data.read()
    for name, data in found.items():
        if name.startswith("blobs/"):
            assert hashlib.sha256(data).hexdigest() == name.rpartition("/")[2]
    return found


def unpacked(archive: Path, into: Path) -> dict[str, Path]:
    """Unpack each image as a container engine does; return the root folders by architecture."""
    found = blobs(archive)

    def blob(descriptor: dict[str, Any]) -> bytes:
        data = found[f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"]
        assert len(data) == descriptor["size"]
        return data

    roots = {}
    [top] = json.loads(found["index.json"])["manifests"]
    for image in json.loads(blob(top))["manifests"]:
        manifest = json.loads(blob(image))
        config = json.loads(blob(manifest["config"]))
        assert config["config"]["User"] == "10001:10001"
        root = into / image["platform"]["architecture"]
        for layer, digest in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
            text = gzip.decompress(blob(layer))
            assert f"sha256:{hashlib.sha256(text).hexdigest()}" == digest
            with tarfile.open(fileobj=io.BytesIO(text)) as tar:
                # Python 3.11.2 of Debian 12 has no filters yet, and extracts in the same way without one.
                tar.extractall(root, **({"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}))
        roots[image["platform"]["architecture"]] = root
    return roots


def test_the_same_is_made_twice_and_runs(tmp_path: Path) -> None:
    master = artifact(tmp_path, "master", "llama-server", "llama-bench")
    worker = artifact(tmp_path, "worker", "rpc-server")
    first = make(tmp_path, master, worker)
    assert first.returncode == 0, first.stderr
    again, other = make(tmp_path, master, worker), make(tmp_path, master, worker, name="other.tar")
    said = json.loads(first.stdout)
    assert json.loads(again.stdout) == {**said, "changed": False}
    assert json.loads(other.stdout) == said
    assert (tmp_path / "image.tar").read_bytes() == (tmp_path / "other.tar").read_bytes()
    assert json.loads(blobs(tmp_path / "image.tar")["index.json"])["manifests"][0]["digest"] == said["digest"]

    root = unpacked(tmp_path / "image.tar", tmp_path / "roots")["amd64"]
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert "usr/share/doc/python3/copyright" in files
    assert not [name for name in files if name.endswith(("/page", "/more", "/x", "/llama-bench"))]
    for name in ("llama-server", "rpc-server"):
        assert (root / "opt/llama_cpp/current/bin" / name).stat().st_mode & 0o777 == 0o755
    # Python finds all imports of the program if it starts as in a pod.
    program = root / "usr/local/lib/llama_server/llama_pod.py"
    done = completed(sys.executable, "-B", "-E", "-s", program, "--help")
    assert done.returncode == 0, done.stderr
    assert "leader,worker,listens,drain" in done.stdout


def test_two_architectures_are_one_image(tmp_path: Path) -> None:
    both = ("llama-server", "rpc-server")
    done = make(tmp_path, artifact(tmp_path, "x", *both), artifact(tmp_path, "arm", *both, machine=183))
    assert done.returncode == 0, done.stderr
    assert set(unpacked(tmp_path / "image.tar", tmp_path / "roots")) == {"amd64", "arm64"}


# The artifacts, given by their programs and other facts, and the message about them.
REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "master-alone": ([{"programs": ["llama-server"]}], "No artifact has rpc-server for amd64"),
    "neither": ([{"programs": ["llama-bench"]}], "has no llama-server or rpc-server: name what the playbook build"),
    "other-machine": ([{"programs": ["rpc-server"], "machine": 8}], "is of no architecture that there are images for"),
    "two-versions": (
        [{"programs": ["rpc-server"]}, {"programs": ["llama-server"], "version": "2.0"}],
        "has another version than the one before it",
    ),
    "two-patched": (
        [
            {"programs": ["rpc-server", "llama-server"]},
            {"programs": ["rpc-server", "llama-server"], "machine": 183, "patches": [{"name": "one"}]},
        ],
        "has another set of patches than the one before it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_image_is_said(tmp_path: Path, name: str) -> None:
    given, sentence = REFUSED[name]
    paths = [
        artifact(tmp_path, str(number), *one["programs"], **{key: it for key, it in one.items() if key != "programs"})
        for number, one in enumerate(given)
    ]
    done = make(tmp_path, *paths)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert done.stderr.strip().endswith(".")
    assert not (tmp_path / "image.tar").exists()
