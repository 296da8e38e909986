# SPDX-License-Identifier: GPL-3.0-or-later
"""The role's records of the real release that it built are true."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import yaml

from support.harness import RELEASE

VARS = Path(__file__).resolve().parents[2] / "roles" / "llama_cpp" / "vars" / "main.yml"


def test_manifest_table_and_program_agree() -> None:
    pinned = yaml.safe_load(VARS.read_text())["__llama_cpp_archives"][RELEASE.version]
    manifest = json.loads((RELEASE.prefix / "current" / "manifest.json").read_text())
    assert manifest["rpc_protocol"] == pinned["protocol"] == RELEASE.protocol
    assert manifest["source"]["commit"] == pinned["commit"]
    assert manifest["source"]["sha256"] == pinned["sha256"]
    assert [patch["name"] for patch in manifest.get("patches", [])] == pinned.get("patches", [])
    said = subprocess.run(
        [RELEASE.bin / "llama-cli", "--version"], check=True, capture_output=True, text=True, timeout=30
    )
    assert pinned["commit"][:7] in said.stdout + said.stderr
