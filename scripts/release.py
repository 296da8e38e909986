# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of `make release`: an archive that has the same bytes each time, and its bill of materials.

    release.py archive BUILT.tar.gz FOLDER    write the archive again, and its MANIFEST.json, to FOLDER
    release.py sbom ARCHIVE.tar.gz            write ARCHIVE.cdx.json (CycloneDX 1.6)

Both contain the time SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import sys
import tarfile
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
MANIFEST, FILES = "MANIFEST.json", "FILES.json"


def members_of(path: Path) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    """Return the members of an archive with their contents by name; folders have empty contents."""
    with tarfile.open(path) as archive:
        found = {}
        for member in archive.getmembers():
            stream = archive.extractfile(member) if member.isfile() else None
            found[member.name] = (member, stream.read() if stream else b"")
    return found


def rewrite(built: Path, folder: Path, epoch: int) -> Path:
    """Write an archive again, with its files in the order of their names and with one time, and return its path.

    ansible-galaxy uses the order of the file system and the time at which it runs.
    """
    members = members_of(built)
    manifest = json.loads(members[MANIFEST][1])
    files = json.loads(members[FILES][1])
    files["files"].sort(key=lambda entry: entry["name"])
    data = {FILES: json.dumps(files, indent=1).encode()}
    manifest["file_manifest_file"]["chksum_sha256"] = hashlib.sha256(data[FILES]).hexdigest()
    data[MANIFEST] = json.dumps(manifest, indent=1).encode()

    unpacked = io.BytesIO()
    with tarfile.open(fileobj=unpacked, mode="w", format=tarfile.PAX_FORMAT) as out:
        for name in [MANIFEST, FILES, *sorted(set(members) - {MANIFEST, FILES})]:
            member, content = members[name]
            content = data.get(name, content)
            member.mtime, member.size, member.pax_headers = epoch, len(content), {}
            out.addfile(member, io.BytesIO(content) if member.isfile() else None)
    target = folder / built.name
    target.write_bytes(gzip.compress(unpacked.getvalue(), mtime=epoch))
    (folder / MANIFEST).write_bytes(data[MANIFEST])
    return target


def requirements(path: Path) -> list[str]:
    """Return the requirements in a requirements file of pip, without digests and markers."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line and not line.startswith(("#", " "))]


def python_component(requirement: str, why: str) -> dict[str, Any]:
    """Return the component of a requirement such as `numpy==2.2.6` or `jmespath`."""
    name, _separator, version = requirement.partition("==")
    name = re.split(r"[<>=\[ ]", name)[0]
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}" + (f"@{version}" if version else "")
    component = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "purl": purl,
        "scope": "optional",
        "description": why,
    }
    return {**component, "version": version} if version else component


def llama_cpp_components() -> list[dict[str, Any]]:
    """Return the sources of llama.cpp that role llama_cpp knows by their digests, with the role's patches."""
    role = ROOT / "roles/llama_cpp"
    table = yaml.safe_load((role / "vars/main.yml").read_text(encoding="utf-8"))["__llama_cpp_archives"]
    default = yaml.safe_load((role / "defaults/main.yml").read_text(encoding="utf-8"))["llama_cpp_version"]
    components = []
    for version, source in table.items():
        pedigree: dict[str, Any] = {"commits": [{"uid": source["commit"]}]}
        paths = [f"roles/llama_cpp/files/patches/{version}/{name}.patch" for name in source.get("patches", [])]
        if paths:
            pedigree["patches"] = [{"type": "unofficial", "diff": {"url": path}} for path in paths]
        purl = f"pkg:pypi/llama-cpp-python@{version}"
        components.append(
            {
                "type": "library",
                "bom-ref": purl,
                "name": "llama-cpp-python",
                "version": version,
                "description": "The source archive of llama.cpp that hosts build"
                + (", by default" if version == default else ", if llama_cpp_version asks for it"),
                "scope": "required" if version == default else "optional",
                "hashes": [{"alg": "SHA-256", "content": source["sha256"]}],
                "purl": purl,
                "pedigree": pedigree,
            }
        )
    return components


def bill_of_materials(archive: Path, epoch: int) -> dict[str, Any]:
    """Return the bill of materials of an archive: its files, its requirements, and the sources that hosts build."""
    members = members_of(archive)
    info = json.loads(members[MANIFEST][1])["collection_info"]
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    name, version = f"{info['namespace']}.{info['name']}", info["version"]
    itself = f"pkg:generic/{name}@{version}"
    core = yaml.safe_load(members["meta/runtime.yml"][1])["requires_ansible"]
    needed: list[dict[str, Any]] = [
        {
            "type": "library",
            "bom-ref": "pkg:pypi/ansible-core",
            "name": "ansible-core",
            "purl": "pkg:pypi/ansible-core",
            "description": f"ansible-core {core}",
        },
        *(
            {
                "type": "library",
                "bom-ref": f"collection:{other}",
                "name": other,
                "description": f"Collection {other} {wanted}",
            }
            for other, wanted in info["dependencies"].items()
        ),
        *llama_cpp_components(),
        *(
            python_component(line, "On the machine that runs Ansible")
            for line in requirements(ROOT / "meta/ee-requirements.txt")
        ),
        *(
            python_component(line, "On a master that converts a model")
            for line in requirements(ROOT / "roles/gguf_model/files/converter_requirements.txt")
        ),
    ]
    needed = list({component["bom-ref"]: component for component in needed}.values())
    files = [
        {
            "type": "file",
            "bom-ref": f"file:{entry['name']}",
            "name": entry["name"],
            "hashes": [{"alg": "SHA-256", "content": entry["chksum_sha256"]}],
        }
        for entry in json.loads(members[FILES][1])["files"]
        if entry["ftype"] == "file"
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # The same archive always has the same serial number.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, timezone.utc).isoformat(),
            "component": {
                "type": "application",
                "bom-ref": itself,
                "name": name,
                "version": version,
                "purl": itself,
                "licenses": [{"license": {"id": "GPL-3.0-or-later"}}],
                "hashes": [{"alg": "SHA-256", "content": digest}],
            },
        },
        "components": needed + files,
        "dependencies": [{"ref": itself, "dependsOn": [component["bom-ref"] for component in needed]}],
    }


def main() -> int:
    """Run the command that the first argument names."""
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    path = Path(sys.argv[2])
    if sys.argv[1] == "archive":
        print(rewrite(path, Path(sys.argv[3]), epoch))
    else:
        target = path.with_name(path.name.replace(".tar.gz", ".cdx.json"))
        target.write_text(json.dumps(bill_of_materials(path, epoch), indent=1) + "\n", encoding="utf-8")
        print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
