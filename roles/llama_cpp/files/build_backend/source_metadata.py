# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell `pip download` the name and version of the source archive that it has downloaded, as a build backend would.

pip would otherwise install the real backend, unpinned, and run it. The archive already has the answer in PKG-INFO.
"""

from __future__ import annotations

from email.parser import HeaderParser
from pathlib import Path


def prepare_metadata_for_build_wheel(metadata_directory: str, _config_settings: dict[str, str] | None = None) -> str:
    """Write the archive's own metadata where pip wants it (PEP 517); pip calls this in the unpacked archive."""
    text = Path("PKG-INFO").read_text(encoding="utf-8")
    about = HeaderParser().parsestr(text)
    folder = Path(metadata_directory, f"{about['Name'].replace('-', '_')}-{about['Version']}.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text(text, encoding="utf-8")
    return folder.name
