# SPDX-License-Identifier: GPL-3.0-or-later
"""Manifests as role kubernetes writes them, and their meaning: who is let in."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import yaml

from support.harness import play_over

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping
    from pathlib import Path

# This may be a date of snapshot.debian.org if that can be reached, because Debian's mirror moves on.
MIRROR = os.environ.get("KUBERNETES_IMAGE_MIRROR") or "http://deb.debian.org/debian"
IMAGE = f"registry.example.com/llama@sha256:{'0123456789abcdef' * 4}"
# The minimum that a user gives.
GIVEN: dict[str, Any] = {
    "kubernetes_image": IMAGE,
    "kubernetes_worker_cpu": 8,
    "kubernetes_worker_memory": "24Gi",
    "kubernetes_model_volume": {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
    "gguf_model_path": "/models/m.gguf",
    "llama_server_api_keys": ["key-of-this-test-alone"],
}
GATEWAY: dict[str, Any] = {
    "kubernetes_replicas": 2,
    "kubernetes_gateway_image": IMAGE.replace("llama", "haproxy"),
    "kubernetes_monitoring_peers": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
    "kubernetes_trusted_peers": [{"podSelector": {"matchLabels": {"app": "chat"}}}],
    "llama_gateway_group_key": "key-of-this-test-alone",
    "llama_gateway_api_keys": [{"name": "first", "key": "key-of-the-first-client"}],
}
Labels = dict[str, str]
INSTANCE = "app.kubernetes.io/instance"
INDEX = "leaderworkerset.sigs.k8s.io/group-index"


def given(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the minimum with these variables; leave out those that are None."""
    return {name: it for name, it in {**GIVEN, **variables}.items() if it is not None}


def play(folder: Path, variables: Mapping[str, Any], *options: str) -> subprocess.CompletedProcess[str]:
    """Run the playbook with the minimum and these variables."""
    (folder / "cluster.json").write_text(json.dumps(given(variables)))
    return play_over("kubernetes.yml", folder, {}, "-e", "@cluster.json", *options)


def rendered(folder: Path, variables: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the manifests."""
    done = play(folder, {"kubernetes_state": "rendered", "kubernetes_folder": "manifests", **variables})
    assert done.returncode == 0, done.stdout + done.stderr
    named = yaml.safe_load((folder / "manifests/kustomization.yaml").read_text())["resources"]
    return [it for name in named for it in yaml.safe_load_all((folder / "manifests" / name).read_text())]


def of_kind(manifests: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def the_set(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    [found] = of_kind(manifests, "LeaderWorkerSet")
    return found


def templates(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the templates of pods, by the part of the cluster."""
    groups = the_set(manifests)["spec"]["leaderWorkerTemplate"]
    found = {"leader": groups["leaderTemplate"], "worker": groups["workerTemplate"]}
    for deployment in of_kind(manifests, "Deployment"):
        found["gateway"] = deployment["spec"]["template"]
    return found


def labels(manifests: list[dict[str, Any]], part: str, group: int | None = None) -> Labels:
    """Return the labels of a pod, with those that LeaderWorkerSet adds."""
    own = {} if group is None else {INDEX: str(group)}
    return {**templates(manifests)[part]["metadata"]["labels"], **own}


def lets_through(manifests: list[dict[str, Any]], source: Labels, target: Labels, port: int) -> bool:
    """Return whether a connection between pods of the namespace is established, by the policies of both ends."""
    return _allowed(manifests, "Egress", source, target, port) and _allowed(manifests, "Ingress", target, source, port)


def _allowed(manifests: list[dict[str, Any]], direction: str, own: Labels, other: Labels, port: int) -> bool:
    rules, peers = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
    policies = [
        policy["spec"]
        for policy in of_kind(manifests, "NetworkPolicy")
        if _selects(policy["spec"]["podSelector"], own) and direction in policy["spec"]["policyTypes"]
    ]
    # A pod that no policy selects is open.
    return not policies or any(
        (
            peers not in rule
            or any("namespaceSelector" not in peer and _selects(peer["podSelector"], other) for peer in rule[peers])
        )
        and any(entry["port"] == port for entry in rule["ports"])
        for policy in policies
        for rule in policy.get(rules, [])
    )


def _selects(selector: Mapping[str, Any], found: Labels) -> bool:
    assert selector.keys() <= {"matchLabels"}
    return all(found.get(name) == value for name, value in selector.get("matchLabels", {}).items())
