# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook kubernetes against a stand-in for an API server: what it applies, waits for, and reports."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from integration.stand_in_kubernetes import KINDS, Cluster, running_cluster
from support.kubernetes import play

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GIB_IN_KIB = 1 << 20
# Makes Ansible print all that it can print.
EVERYTHING = ("-vvv", "--diff")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with running_cluster(tmp_path) as (found, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        found.add("namespaces", "default")
        for number in range(3):
            found.add_node(f"node{number}", "15900m", f"{60 * GIB_IN_KIB}Ki", **{"example.com/class": "v4"})
        yield found


@pytest.mark.long
def test_it_shows_applies_and_removes(cluster: Cluster, tmp_path: Path) -> None:
    shown = play(tmp_path, {}, "--check", *EVERYTHING)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "LeaderWorkerSet llama" in shown.stdout
    assert cluster.writes == []

    done = play(tmp_path, {}, *EVERYTHING)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {name for plural, name in cluster.objects if plural == "leaderworkersets"} == {"llama"}

    # Of the existing objects, only the settings change, and the set that tells its pods of them.
    again = play(tmp_path, {"llama_server_parallel": 2})
    changed = re.findall(r"changed: \[localhost\] => \(item=(.+?)\)", again.stdout)
    assert changed == ["ConfigMap llama-settings", "LeaderWorkerSet llama"]

    gone = play(tmp_path, {"kubernetes_state": "absent"}, *EVERYTHING)
    assert gone.returncode == 0, gone.stdout + gone.stderr
    for run in (shown, done, gone):
        assert "key-of-this-test-alone" not in run.stdout + run.stderr
    assert {plural for plural, _name in cluster.objects} == {"namespaces", "nodes"}


# The obstacles by name: the variables that lead to each one, and the parts of its message.
OBSTACLES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no-lws": ({}, ["LeaderWorkerSet is not installed in this cluster", "kubectl apply --server-side -f"]),
    "no-keys": (
        {"llama_server_api_keys": []},
        ["There is no Secret llama-keys in namespace default", "kubectl create"],
    ),
    "no-node": (
        {"kubernetes_node_selector": {"example.com/class": "v5"}},
        ["No node has the labels of kubernetes_node_selector", "kubectl label node"],
    ),
    "no-memory": (
        {"kubernetes_worker_memory": "61Gi", "kubernetes_node_selector": {"example.com/class": "v4"}},
        [
            "kubernetes_worker_memory is 61Gi, and no node that may be used can give more than 61440Mi",
            "kubernetes_size",
        ],
    ),
    "no-cpu": (
        {"kubernetes_worker_cpu": 16},
        ["kubernetes_worker_cpu is 16, and no node that may be used can give more than 15 whole processors"],
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "no-memory" else pytest.mark.long) for name in OBSTACLES]
)
def test_what_stands_in_the_way_is_said_before_the_first_change(cluster: Cluster, tmp_path: Path, name: str) -> None:
    variables, words = OBSTACLES[name]
    if name == "no-lws":
        cluster.kinds = KINDS
    done = play(tmp_path, variables)
    assert done.returncode == 2
    assert [word for word in words if word not in done.stdout] == []
    assert cluster.writes == []


def test_keys_that_kubectl_has_applied_are_not_printed(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add("secrets", "llama-keys")
    note = {"kubectl.kubernetes.io/last-applied-configuration": '{"stringData": {"keys": "key-of-this-test-alone"}}'}
    cluster.objects["secrets", "llama-keys"]["metadata"]["annotations"] = note
    variables, words = OBSTACLES["no-node"]
    done = play(tmp_path, {**variables, "llama_server_api_keys": []}, *EVERYTHING)
    assert words[0] in done.stdout
    assert "key-of-this-test-alone" not in done.stdout + done.stderr


def test_a_cluster_that_cannot_be_asked_is_said(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    done = play(tmp_path, {})
    assert done.returncode == 2
    assert "The cluster could not be asked (" in done.stdout
    assert "KUBECONFIG or ~/.kube/config has to lead to the cluster" in done.stdout
    assert cluster.writes == []


@pytest.mark.long
def test_why_a_group_does_not_serve_is_said(cluster: Cluster, tmp_path: Path) -> None:
    cluster.serves = False
    cluster.log = "It does not fit, llama-0-1.llama.default:50052 lacks 2.0 GiB.\n"
    cluster.add("pods", "llama-0")
    hasty = {"llama_server_ready_timeout": 5}
    done = play(tmp_path, hasty)
    assert done.returncode == 2
    assert "0 of 1 groups serve after 5 s. Pod llama-0 says: It does not fit, llama-0-1" in done.stdout
    condition = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient cpu."}
    labels = {"app.kubernetes.io/name": "llama-cpp", "app.kubernetes.io/instance": "llama"}
    cluster.add("pods", "llama-0-2", status={"conditions": [condition]})
    cluster.objects["pods", "llama-0-2"]["metadata"]["labels"] = labels
    assert "Kubernetes says: 0/3 nodes are available: 3 Insufficient cpu." in play(tmp_path, hasty).stdout
