# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of the manifests with a policy checker (checkov): Kubernetes' own kinds, and the pods of a set."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from support.kubernetes import GATEWAY, rendered, templates

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("variables", [{}, GATEWAY], ids=["least", "gateway"])
def test_a_policy_checker_finds_nothing(tmp_path: Path, variables: dict[str, object]) -> None:
    manifests = rendered(tmp_path, {**variables, "kubernetes_namespace": "prod"})
    looked_at = [it for it in manifests if it["kind"] not in ("LeaderWorkerSet", "ServiceMonitor")]
    for part, template in templates(manifests).items():
        if part != "gateway":
            metadata = {**template["metadata"], "name": part, "namespace": "prod"}
            looked_at.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    (tmp_path / "all.yml").write_text(yaml.safe_dump_all(looked_at))
    # Without this, the checker would ask its maker's service.
    options = ["--skip-download", "--framework", "kubernetes", "--output", "json"]
    done = subprocess.run(
        [os.environ["CHECKOV"], "--file", tmp_path / "all.yml", *options], capture_output=True, text=True, check=False
    )
    said = json.loads(done.stdout)
    assert said["summary"]["passed"] > 100
    failed = said["results"]["failed_checks"]
    assert [f"{it['check_id']} {it['check_name']}: {it['resource']}" for it in failed] == []
