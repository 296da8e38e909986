# SPDX-License-Identifier: GPL-3.0-or-later
"""The image of leaders and workers, made by the playbooks that users run, and unpacked for test hosts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support.kubernetes import MIRROR
from support.lab.hosts import CACHE, play
from support.other_machine import NEOVERSE_N1, masquerade

SHARE = CACHE / "lab/kubernetes"
OPTIMISED = "-O1 -DNDEBUG"


@dataclass(frozen=True)
class Image:
    """An OCI archive, and the digest by which a registry knows the image in it."""

    path: Path
    digest: str


def built(folder: Path) -> list[Path]:
    """Return the programs of leaders and workers, as playbook build makes them.

    They are for the processors of this machine, and for those of an aarch64 machine, which a host only imitates.
    """
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    arm = {**here, "ansible_python_interpreter": masquerade(folder / "arm", cpuinfo=NEOVERSE_N1, machine="aarch64")}
    groups = {name: {"hosts": {"here": here, "arm": arm}} for name in ("llama_masters", "llama_workers")}
    variables = {
        "llama_cpp_builder": "localhost",
        "llama_cpp_targets": ["llama-server", "rpc-server"],
        "llama_cpp_cmake_options": {"CMAKE_C_FLAGS_RELEASE": OPTIMISED, "CMAKE_CXX_FLAGS_RELEASE": OPTIMISED},
        "llama_cpp_artifact_folder": str(folder / "artifacts"),
    }
    (folder / "here.json").write_text(json.dumps({"all": {"children": groups}}))
    (folder / "build.json").write_text(json.dumps(variables))
    play("build", "-e", f"@{folder}/build.json", inventory=folder / "here.json", timeout=7200)
    return sorted((folder / "artifacts").glob("*.tar.gz"))


def make_image(artifacts: list[Path], path: Path) -> Image:
    """Make the image."""
    variables = {
        "kubernetes_image_archive": str(path),
        "kubernetes_image_mirror": MIRROR,
        "kubernetes_image_artifacts": [str(it) for it in artifacts],
    }
    given = path.with_suffix(".json")
    given.write_text(json.dumps(variables))
    said = play("image", "-e", f"@{given}").stdout
    return Image(path, "sha256:" + said.partition("@sha256:")[2][:64])


def unpack(image: Image, architecture: str, work: Path, place: Path) -> Path:
    """Unpack the image for an architecture, as a container runtime does; return its root folder."""
    layout = f"oci:{work}:llama"
    copy = ["skopeo", "--insecure-policy", f"--override-arch={architecture}", "copy", "--quiet"]
    subprocess.run([*copy, f"oci-archive:{image.path}", layout], check=True)
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run(["umoci", "unpack", "--image", layout.removeprefix("oci:"), place], check=True, capture_output=True)
    return place / "rootfs"


def shared(image: Image, work: Path) -> Path:
    """Unpack the image for this machine where all test hosts see it; return its root folder."""
    root = unpack(image, "amd64", work, SHARE / "image")
    # A container runtime makes the mount points of volumes.
    for name in ("models", "etc/llama_server", "var/cache/llama_rpc"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "etc/hosts").touch()
    root.parent.chmod(0o755)
    return root
