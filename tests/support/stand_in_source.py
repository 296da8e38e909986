# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for the source of llama.cpp, packed, and runs of roles on hosts that are folders of this machine."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.harness import ROOT

LIMIT_S = 900  # longer than this is a hang, however busy the machine is
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


def started(
    folder: Path,
    variables: dict[str, Any],
    *options: str,
    inventory: str = "node,",
    playbook: Path | None = None,
    **environment: str,
) -> subprocess.Popen[str]:
    """Start a playbook, which is the folder's play.yml unless another is named. The inventory sets what is None."""
    merged = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, **variables}
    given = json.dumps({name: value for name, value in merged.items() if value is not None})
    program = Path(sys.executable).with_name("ansible-playbook")
    return subprocess.Popen(
        [program, "-i", inventory, "-e", given, *options, playbook or folder / "play.yml"],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> Run:
    """Wait for the end of a run; return its status and output."""
    try:
        text, _errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        raise
    return Run(process.returncode, text)


def run_on_hosts(
    folder: Path, hosts: dict[str, dict[str, Any]], variables: dict[str, Any], *options: str, **environment: str
) -> Run:
    """Run the folder's play once, with a host for each case."""
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    return ended(started(folder, variables, "--forks", "4", *options, inventory=f"{folder}/hosts.json", **environment))


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
