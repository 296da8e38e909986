# SPDX-License-Identifier: GPL-3.0-or-later
"""Pin the packages of requirements/*.in, each with the digests of the files that a machine may install.

It needs uv. A version stays if the list still permits it; `lock.py --upgrade` takes the newest versions.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import tomllib

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Kind:
    """A list: where it goes, options of uv, and the platforms and the CPythons whose files it has."""

    path: Path
    options: tuple[str, ...] = ()
    platforms: str = r"manylinux\w*_(x86_64|aarch64)"
    pythons: str = "31[1-4]"
    joint: str = " \\\n    "

    def fits(self, url: str) -> bool:
        """Return whether the list has this file."""
        python = rf"(cp{self.pythons}-cp{self.pythons}|cp3\d+-abi3|[\w.]*py3-none)"
        return bool(re.search(rf"-({python}-([\w.]*\.)?{self.platforms}[\w.]*|none-any)\.whl$", url))


KINDS = {
    "run": Kind(FOLDER / "run.txt", platforms=r"(manylinux|musllinux|macosx)\w*_(x86_64|aarch64|arm64|universal2)"),
    "dev": Kind(FOLDER / "dev.txt"),
    # lxml: cyclonedx-py takes it for XML only.
    "tools": Kind(FOLDER / "tools.txt", options=("--no-emit-package", "lxml")),
    "eda": Kind(FOLDER / "eda.txt"),
    "converter": Kind(
        FOLDER.parent / "roles/gguf_model/files/converter_requirements.txt",
        platforms=r"(many)?linux\w*_(x86_64|aarch64)",
        pythons="31[123]",
        joint=" ",
    ),
}


def pinned(name: str, kind: Kind, before: str) -> list[str]:
    """Return the packages of a list: the name with the version, the marker and the digests."""
    with TemporaryDirectory() as folder:
        output, kept = Path(folder, "pylock.toml"), Path(folder, "kept.txt")
        kept.write_text("\n".join(re.findall(r"^[\w.\[\]-]+==(?:(?! --hash| \\)[^\n])*", before, re.MULTILINE)))
        subprocess.run(
            ["uv", "pip", "compile", "--quiet", "--universal", "--python-version=3.11", "--format=pylock.toml",
             f"--output-file={output}", f"--constraint={kept}", *kind.options, FOLDER / f"{name}.in"],
            check=True,
        )  # fmt: skip
        packages = tomllib.loads(output.read_text())["packages"]
    found = []
    for package in packages:
        marker = package.get("marker", "")
        if re.search("== 'win(32|dows)'", marker) and " or " not in marker:
            continue
        # A package without a fitting wheel is built from its source.
        files = [wheel for wheel in package.get("wheels", []) if kind.fits(wheel["url"])] or [package["sdist"]]
        pin = f"{package['name']}=={package['version']}" + (f" ; {marker}" if marker else "")
        found.append(kind.joint.join([pin, *(f"--hash=sha256:{file['hashes']['sha256']}" for file in files)]))
    return found


def main() -> int:
    """Write the lists."""
    installed: list[str] = []
    for name, kind in KINDS.items():
        before = kind.path.read_text() if kind.path.exists() else ""
        head = "".join(re.findall("^#.*\n", before, re.MULTILINE))
        found = pinned(name, kind, "" if "--upgrade" in sys.argv else before)
        if name == "run":
            installed = [package.partition(" \\")[0] for package in found]
        # pip gets the lists run and dev together.
        new = [package for package in found if name != "dev" or package.partition(" \\")[0] not in installed]
        kind.path.write_text(head + "\n".join(new) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
