# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the image of leaders and workers from artifacts of a release, as an OCI archive, without a container engine.

For each architecture, the image has the programs and the Debian packages that they need. mmdebstrap unpacks these from
a mirror that does not change (a snapshot). The same artifacts, mirror and collection give the same bytes. The program
prints the digest by which a registry knows the image.

No packaged tool does this: umoci writes no index for several architectures, buildah needs root or user namespaces, and
skopeo gives the entries of an archive the current time.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Sequence

SUITE = "trixie"
# stdbuf is in coreutils. The programs of the release are linked to the two libraries.
PACKAGES = ("base-files", "coreutils", "libgomp1", "libstdc++6", "python3")
# Files that no program reads. The copyright file of each package stays.
_LEFT_OUT = re.compile(r"\./(usr/share/(locale|man|info|zoneinfo|lintian|bash-completion)|var/(cache|lib/apt)|dev)/.")
_DOCUMENTATION = re.compile(r"\./usr/share/doc/[^/]+/(?!copyright$).")
# The files of a release that a pod needs.
_PROGRAMS = re.compile(
    r"\./(bin|lib|libexec|manifest\.json|bin/(llama-server|rpc-server)|libexec/(rpc-cache|llama-plan)|lib/.*)$"
)
# e_machine of an ELF file (include/uapi/linux/elf-em.h), as Go and Debian call it.
ARCHITECTURES = {62: "amd64", 183: "arm64"}
NEEDED = ("./bin/llama-server", "./bin/rpc-server")
UID = 10001
COLLECTION = Path(__file__).resolve().parents[3]
PLACE = "./usr/local/lib/llama_server"
PARTS = ("_gguf", "_host", "_plan", "_rpc", "_status")
_OCI = "application/vnd.oci.image"


class Archive:
    """The blobs of an image layout (github.com/opencontainers/image-spec, image-layout.md)."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def add(self, data: bytes, kind: str, **more: object) -> dict[str, Any]:
        """Keep a blob, and return its descriptor."""
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return {"mediaType": f"{_OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(data), **more}

    def add_json(self, data: dict[str, Any], kind: str, **more: object) -> dict[str, Any]:
        """Keep a JSON document as a blob, and return its descriptor."""
        return self.add(json.dumps(data, sort_keys=True).encode(), kind, **more)

    def write(self, index: dict[str, Any], path: Path) -> bool:
        """Write the archive if the file does not have the same content yet; return whether it was written."""
        top = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": [index]}
        files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(top).encode()}
        files.update((f"blobs/sha256/{digest}", data) for digest, data in sorted(self.blobs.items()))
        text = packed(lambda tar: [add_file(tar, name, data) for name, data in files.items()])
        if path.exists() and path.read_bytes() == text:
            return False
        partial = path.with_name(f".{path.name}.partial")
        partial.write_bytes(text)
        partial.replace(path)
        return True


def add_file(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    """Add a file that belongs to root and has the time 0."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def add_link(tar: tarfile.TarFile, name: str, target: str) -> None:
    """Add a symbolic link."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
    tar.addfile(entry)


def packed(fill: Callable[[tarfile.TarFile], object]) -> bytes:
    """Return a tar archive with the entries that `fill` adds."""
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w", format=tarfile.GNU_FORMAT) as tar:
        fill(tar)
    return text.getvalue()


def base_layer(architecture: str, mirror: str) -> bytes:
    """Return the layer with Debian's packages, unpacked; raises ValueError with a sentence."""
    program = shutil.which("mmdebstrap")
    if program is None:
        raise ValueError("mmdebstrap is not here: install the package of this name.")
    # Unpacking runs no program of the packages, so it needs no root. A snapshot's signatures are as old as itself.
    command = [
        program,
        "--quiet",
        "--variant=extract",
        "--mode=chrootless",
        # Newer versions refuse this mode to root, because of what other variants run.
        "--skip=check/chrootless",
        "--format=tar",
        f"--architectures={architecture}",
    ]
    command += ['--aptopt=Acquire::Check-Valid-Until "false"', f"--include={','.join(PACKAGES)}", SUITE, "-", mirror]
    done = subprocess.run(command, env={**os.environ, "SOURCE_DATE_EPOCH": "0"}, capture_output=True, check=False)
    if done.returncode:
        said = re.findall(r"^E: (.+?)\.?$", done.stderr.decode(errors="replace"), re.MULTILINE) or ["nothing"]
        raise ValueError(f"mmdebstrap could not get the packages for {architecture} from {mirror}: {said[0]}.")

    def fill(tar: tarfile.TarFile) -> None:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as unpacked:
            for entry in unpacked:
                if not _LEFT_OUT.match(entry.name) and not _DOCUMENTATION.match(entry.name):
                    # Root owns each file, whoever unpacked it. No file is setuid, and only root may write to it.
                    entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, "", ""
                    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
                    tar.addfile(entry, unpacked.extractfile(entry) if entry.isreg() else None)

    return packed(fill)


@dataclass
class Release:
    """The manifest and files of one release for one architecture, from one or several artifacts."""

    architecture: str
    manifest: dict[str, Any]
    files: dict[str, tuple[tarfile.TarInfo, bytes]]


def read_release(artifact: Path) -> Release:
    """Return the files of an artifact that pods need; raises ValueError with a sentence."""
    with tarfile.open(artifact) as found:
        files = {
            entry.name: (entry, b"".join(found.extractfile(entry) or [b""]) if entry.isreg() else b"")
            for entry in found
            if _PROGRAMS.match(entry.name)
        }
    programs = [data for name, (_entry, data) in files.items() if name in NEEDED]
    if "./manifest.json" not in files or not programs:
        raise ValueError(f"{artifact} has no llama-server or rpc-server: name what the playbook build has made.")
    machine = int.from_bytes(programs[0][18:20], "little")
    if machine not in ARCHITECTURES:
        raise ValueError(f"{artifact} is of no architecture that there are images for: x86-64 and aarch64.")
    return Release(ARCHITECTURES[machine], json.loads(files["./manifest.json"][1]), files)


def one_of_each(artifacts: Sequence[Path]) -> list[Release]:
    """Return one release per architecture, with the programs of all its artifacts.

    Hosts have separate artifacts for masters and for workers. An image needs both. Raises ValueError with a sentence.
    """
    found: dict[str, Release] = {}
    for artifact in artifacts:
        release = read_release(artifact)
        first = found.setdefault(release.architecture, release)
        # A group may have nodes of both architectures, so these two must be the same for both.
        any_first = next(iter(found.values()))
        same = (("version", any_first, "version"), ("patches", any_first, "set of patches"))
        for key, other, name in (*same, ("cpu_class", first, "CPU class")):
            if other.manifest.get(key) != release.manifest.get(key):
                raise ValueError(
                    f"{artifact} has another {name} than the one before it: all programs of an image have the same."
                )
        first.files = {**release.files, **first.files}
    for release in found.values():
        for name in NEEDED:
            if name not in release.files:
                raise ValueError(f"No artifact has {name[6:]} for {release.architecture}: name one that has it too.")
    return list(found.values())


def own_layer(release: Release) -> bytes:
    """Return the layer with the programs of a release and of the collection."""

    def fill(tar: tarfile.TarFile) -> None:
        place = f"./opt/llama_cpp/releases/{release.manifest['version']}"
        for name, (entry, data) in sorted(release.files.items()):
            entry.name = place + name[1:]
            tar.addfile(entry, io.BytesIO(data))
        add_link(tar, "./opt/llama_cpp/current", f"releases/{release.manifest['version']}")
        # Resolve names as on a host.
        add_file(tar, "./etc/nsswitch.conf", b"hosts: files dns\n")
        for name, path in own_programs():
            add_file(tar, f"{PLACE}/{name}", path.read_bytes())

    return packed(fill)


def own_programs() -> list[tuple[str, Path]]:
    """Return the name in the image and the path of each file of the collection that a pod needs."""
    utils, roles = COLLECTION / "plugins/module_utils", COLLECTION / "roles"
    names = [f"llama_server/files/llama_server_{name}.py" for name in ("service", "division", "prompts", "drain")]
    found = [(Path(name).name, roles / name) for name in [*names, "kubernetes/files/llama_pod.py"]]
    for part in PARTS:
        found += [(f"module_utils/{part}/{path.name}", path) for path in sorted((utils / part).glob("*.py"))]
    # The programs of role llama_server import _rpc from their own folder.
    return found + [(f"_rpc/{path.name}", path) for path in sorted((utils / "_rpc").glob("*.py"))]


def add_image(archive: Archive, release: Release, mirror: str) -> dict[str, Any]:
    """Add the image of a release, and return its descriptor."""
    layers = [base_layer(release.architecture, mirror), own_layer(release)]
    platform = {"architecture": release.architecture, "os": "linux"}
    labels = {
        "org.opencontainers.image.version": release.manifest["version"],
        "org.opencontainers.image.base.name": mirror,
    }
    config = {
        **platform,
        "created": "1970-01-01T00:00:00Z",
        "config": {"User": f"{UID}:{UID}", "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(it).hexdigest()}" for it in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": archive.add_json(config, "config.v1+json"),
        "layers": [archive.add(gzip.compress(it, mtime=0), "layer.v1.tar+gzip") for it in layers],
    }
    return archive.add_json(manifest, "manifest.v1+json", platform=platform)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the archive, and print its digest and whether it has changed; return the exit status."""
    parser = argparse.ArgumentParser(description="Make the image of leaders and workers from artifacts of releases.")
    parser.add_argument("archive", type=Path, help="the OCI archive")
    parser.add_argument("mirror", help="a mirror of Debian that stays as it is")
    parser.add_argument("artifacts", type=Path, nargs="+", help="what the playbook build has made, of one release")
    args = parser.parse_args(arguments)
    archive = Archive()
    try:
        images = [add_image(archive, release, args.mirror) for release in one_of_each(args.artifacts)]
        index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": images}
        descriptor = archive.add_json(index, "index.v1+json")
        changed = archive.write(descriptor, args.archive)
    except (OSError, ValueError, tarfile.TarError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"digest": descriptor["digest"], "changed": changed}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
