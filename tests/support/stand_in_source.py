# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for the source of llama.cpp, packed, and the result of a run of role `llama_cpp` with it."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAKE = Path(__file__).parent / "fake_source"
MASTER = ["llama-bench", "llama-cli", "llama-completion", "llama-quantize", "llama-server"]
# The files of tools/ui, llama.cpp's chat page, that role llama_cpp changes before it builds the page.
PAGE_SOURCE = {
    "package-lock.json": "{}",
    "svelte.config.js": "export default { bundleStrategy: 'single' };\n",
    "vite.config.ts": "assetsInlineLimit: 32000, plugins: [SvelteKitPWA(SVELTEKIT_PWA_OPTIONS)]\n",
    "src/lib/assets/logo.svg": "<svg/>",
    "src/app.html": (
        '<html><head>\n<meta charset="utf-8" />\n<link rel="icon" href="favicon.ico" />\n'
        '<link rel="manifest" href="./manifest.webmanifest" />\n</head><body>hello</body></html>\n'
    ),
}


@dataclass
class Run:
    """The exit status and the output of an ansible-playbook run."""

    code: int
    text: str

    @property
    def changed(self) -> int:
        return sum(int(part.split("=")[1]) for part in self.text.split() if part.startswith("changed="))

    def holds(self, *words: str) -> bool:
        """Return whether the output has these words, however its lines were wrapped."""
        flat = " ".join(self.text.split())
        return all(word in flat for word in words)


def said_of(host: str, text: str) -> str:
    """Return the output about the task that failed on a host. In a list of rules, the failed item comes first."""
    told = [part for part in re.split(r"(?:fatal|failed): ", text)[1:] if part.startswith(f"[{host}]")]
    assert told, text
    return told[0].partition("TASK [")[0]


def pack(path: Path, *more: tarfile.TarInfo) -> str:
    """Pack the stand-in with some further members; return the archive's digest."""
    with tarfile.open(path, "w:gz") as tar:
        tar.add(FAKE, "src")
        for info in more:
            tar.addfile(info, io.BytesIO(b"\0" * info.size))
    return digest(path)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def archive(path: Path, *more: tarfile.TarInfo, **variables: Any) -> dict[str, Any]:
    return {
        "llama_cpp_archive": str(path),
        "llama_cpp_sha256": pack(path, *more),
        "llama_cpp_archive_subdir": "src",
        "llama_cpp_commit": "abcdef0123",
        **variables,
    }


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, size
    return info
