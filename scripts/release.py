# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of `make release`: an archive that has the same bytes each time, and what its bill of materials is made of.

release.py archive BUILT.tar.gz FOLDER    write the archive again, and its MANIFEST.json, to FOLDER; all files get
                                          the time SOURCE_DATE_EPOCH
release.py requirements                   print what hosts and the controller get from a package index
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from pathlib import Path

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


def requirements() -> str:
    """Return what hosts and the controller get from a package index, as requirements of pip."""
    sources = yaml.safe_load((ROOT / "roles/llama_cpp/vars/main.yml").read_text(encoding="utf-8"))[
        "__llama_cpp_archives"
    ]
    lines = [f"{source['package']} --hash=sha256:{source['sha256']}" for source in sources.values()]
    lists = ("meta/ee-requirements.txt", "roles/gguf_model/files/converter_requirements.txt")
    return "\n".join([*lines, *((ROOT / name).read_text(encoding="utf-8") for name in lists)])


def main() -> int:
    """Run the command that the first argument names."""
    if sys.argv[1] == "archive":
        print(rewrite(Path(sys.argv[2]), Path(sys.argv[3]), int(os.environ["SOURCE_DATE_EPOCH"])))
    else:
        print(requirements())
    return 0


if __name__ == "__main__":
    sys.exit(main())
