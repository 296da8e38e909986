# SPDX-License-Identifier: GPL-3.0-or-later
"""Run ansible-lint on the roles and YAML files that have changed since they passed; with CI set, on everything.

Linting everything takes over a minute. CI finds what one file needs from another, such as a new option of a module.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

KEPT_S = 30 * 24 * 3600


def lintables(paths: list[Path]) -> dict[Path, list[Path]]:
    """Return the YAML files, by the role that they are in; a file of no role stands alone."""
    found: dict[Path, list[Path]] = {}
    for path in paths:
        if path.suffix in (".yml", ".yaml") and path.is_file():
            found.setdefault(Path(*path.parts[:2]) if path.parts[0] == "roles" else path, []).append(path)
    return found


def digest(files: list[Path], common: bytes) -> str:
    """Return a digest of files, their names, and what all of them share."""
    text = b"".join(b"%s\0%s\0" % (bytes(file), file.read_bytes()) for file in sorted(files))
    return hashlib.sha256(common + text).hexdigest()[:40]


def ansible_lint(*names: str) -> int:
    """Lint these; without names it finds out by itself what there is to lint."""
    return subprocess.run(["ansible-lint", "-q", *names], check=False).returncode


def main() -> int:
    """Return the exit status of ansible-lint; 0 if nothing has changed."""
    if os.environ.get("CI"):
        return ansible_lint()
    passed = Path(os.environ["LLAMA_CPP_CLUSTER_CACHE"], "passed")
    passed.mkdir(parents=True, exist_ok=True)
    for stamp in passed.iterdir():
        if time.time() - stamp.stat().st_mtime > KEPT_S:
            stamp.unlink()
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], stdout=subprocess.PIPE, check=False)
    if listed.returncode:  # without git, nobody knows what is ours
        return ansible_lint()
    linters = b"".join(sorted(map(bytes, Path(".venv").glob(".requirements-*"))))
    common = linters + Path(".ansible-lint").read_bytes() + Path(".yamllint").read_bytes()
    found = lintables([Path(os.fsdecode(name)) for name in listed.stdout.split(b"\0") if name])
    stamps = {lintable: passed / f"ansible-lint-{digest(files, common)}" for lintable, files in found.items()}
    changed = sorted(str(lintable) for lintable, stamp in stamps.items() if not stamp.exists())
    status = ansible_lint(*(changed if len(changed) < len(stamps) else [])) if changed else 0
    if status:
        return status
    for stamp in stamps.values():
        stamp.touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
