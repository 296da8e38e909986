# SPDX-License-Identifier: GPL-3.0-or-later
"""The messages of playbooks about an inventory and their arguments before they ask any host.

These hosts do not exist.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.harness import ansible
from support.tree import PLAYBOOKS

ROOT = Path(__file__).resolve().parents[2]
# TEST-NET-1: nobody has these addresses, and no playbook may ask them.
NODES = {f"w{i}": {"ansible_host": f"192.0.2.{i}"} for i in range(1, 17)}


def play(
    folder: Path, playbook: str, inventory: dict[str, Any], *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a playbook over these hosts; return the result with its lines joined, since Ansible folds sentences."""
    path = folder / "hosts.json"
    path.write_text(json.dumps({group: {"hosts": hosts} for group, hosts in inventory.items()}))
    done = ansible("-i", path, ROOT / f"playbooks/{playbook}.yml", *options, **environment)
    done.stdout = re.sub(r"\s+", " ", done.stdout)
    return done


# Each takes seconds. These are one of each kind: over a cluster, over groups of it, over a gateway, and over no host.
QUICK = ("site", "upgrade", "gateway", "size")
SHAPES = {
    "nobody": ({}, [], ["There is no master: put a host into the group llama_masters", "There are no workers"]),
    "no-master-for-a-worker-that-is-limited-to": (
        {"llama_workers": NODES},
        ["--limit", "w1"],
        ["There is no master: put a host into the group llama_masters", "llama.cpp takes at most 15 in one run"],
    ),
    "one-host-twice-and-a-port-that-is-none": (
        {
            "llama_masters": {"m": {}},
            "llama_workers": {
                "w1": {"ansible_host": "192.0.2.1", "rpc_server_port": 70000},
                "w2": {"ansible_host": "192.0.2.1"},
            },
        },
        [],
        ["w1 and w2 are the same host (192.0.2.1)", "host w1, rpc_server_port: port 70000 is not a number"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("playbook", "shape"), [*(("site", shape) for shape in SHAPES), ("verify", "nobody"), ("infer", "nobody")]
)
def test_an_inventory_that_is_no_cluster_is_explained_at_once(tmp_path: Path, playbook: str, shape: str) -> None:
    inventory, options, sentences = SHAPES[shape]
    done = play(tmp_path, playbook, inventory, *options)
    assert done.returncode == 2
    for sentence in sentences:
        assert sentence in done.stdout
    assert "UNREACHABLE" not in done.stdout
    assert done.stdout.count("TASK [") == 1


@pytest.mark.parametrize(
    "playbook", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in PLAYBOOKS]
)
def test_a_misspelt_variable_stops_every_playbook_at_its_start(tmp_path: Path, playbook: str) -> None:
    inventory = {
        "llama_masters": {"m": {"ansible_host": "192.0.2.17", "rpc_server_treads": 4}},
        "llama_workers": {"w1": {**NODES["w1"], "rpc_server_memory_mx": "90%", "their_rpc_server_treads": 1}},
        "llama_gateways": {"g": {"ansible_host": "192.0.2.18"}},
    }
    names = ("-e", "replace_old=w1 replace_new=w1 kubernetes_verbose=1 gguf_model_pth=/m.gguf")
    done = play(tmp_path, playbook, inventory, *names)
    assert done.returncode == 2
    assert "knows gguf_model_pth (of " in done.stdout
    assert "): write gguf_model_path, or list gguf_model_pth in llama_cpp_allow_unknown_variables." in done.stdout
    if playbook not in {"demo", "image", "kubernetes", "size"}:  # these use no workers of the inventory
        assert "knows rpc_server_treads (of m): write rpc_server_threads," in done.stdout
        assert "knows rpc_server_memory_mx (of w1): write rpc_server_memory_max," in done.stdout
    assert "their_rpc" not in done.stdout
    assert "kubernetes_verbose" not in done.stdout
    assert "UNREACHABLE" not in done.stdout
    assert done.stdout.count("TASK [") == 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("192.0.2.1:50052", "w1", "Name two workers, as -e replace_old=a-worker"),
        ("192.0.2.1:50052", "w2", "w1 and w2 are of different groups"),
        ("w1", "192.0.2.3:50060", "w1 answers, so it is not lost, and nothing was changed"),
        ("192.0.2.1:50060", "w2", "has the endpoint 192.0.2.1:50060. They have 192.0.2.1:50052, 192.0.2.2:50052,"),
        ("192.0.2.1:50052", "w4", "host w4, ansible_host: endpoint 192.0.2.1:50052 is already a worker of host w1"),
    ],
)
def test_a_replacement_takes_endpoints(tmp_path: Path, old: str, new: str, said: str) -> None:
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    workers: dict[str, Any] = {
        "w1": {**NODES["w1"], **local},
        "w2": {**NODES["w2"], "llama_group": "b"},
        "w3": {**NODES["w3"], "rpc_server_port": 50060},
    }
    if new == "w4":
        workers["w4"] = NODES["w1"]
    inventory = {"llama_masters": {"m": {"ansible_host": "192.0.2.17"}}, "llama_workers": workers}
    done = play(tmp_path, "replace", inventory, "-e", f"replace_old={old} replace_new={new} replace_only_lost=true")
    assert done.returncode == 2
    assert said in done.stdout
    assert "UNREACHABLE" not in done.stdout


def test_an_allowed_variable_stops_nothing(tmp_path: Path) -> None:
    inventory = {"llama_masters": {"m": {"rpc_server_rack": 7}}, "llama_workers": {"w1": {}}}
    options = ("-e", '{"llama_cpp_allow_unknown_variables": ["rpc_server_rack"]}', "-e", "size_host_memory=")
    done = play(tmp_path, "size", inventory, *options, "-e", "rpc_server_rack=8")
    assert "size_host_memory is empty" in done.stdout
    done = play(tmp_path, "size", inventory, "-e", "size_host_memory=", "-e", "rpc_server_rack=8")
    assert "knows rpc_server_rack (of localhost): " in done.stdout


@pytest.mark.parametrize("playbook", ["verify", "infer"])
def test_a_limit_without_a_master_is_refused(tmp_path: Path, playbook: str) -> None:
    """Otherwise Ansible would skip all plays of the masters, and the exit status would report success."""
    inventory = {"llama_masters": {"m": {}}, "llama_workers": {"w1": NODES["w1"]}}
    done = play(tmp_path, playbook, inventory, "--limit", "w1")
    assert done.returncode == 2
    assert "No master takes part" in done.stdout
    assert "name it in --limit too" in done.stdout


def test_half_a_prompt_is_refused(tmp_path: Path) -> None:
    inventory = {"llama_masters": {"m": {}}, "llama_workers": {"w1": NODES["w1"]}}
    done = play(tmp_path, "infer", inventory, "-e", "prompt=Tell me a joke")
    assert done.returncode == 2
    assert "A value on the command line ends at its first blank" in done.stdout


def test_hosts_that_cannot_be_reached_are_named_and_nothing_else_is_tried(tmp_path: Path) -> None:
    inventory = {
        "llama_masters": {"m": {"ansible_host": "127.0.0.1"}},
        "llama_workers": {"w1": {"ansible_host": "127.0.0.2"}},
    }
    # Nothing listens on the discard port.
    options = ("-e", "ansible_port=9", "-e", "ansible_ssh_retries=0")
    for playbook in ("site", "reset"):
        done = play(tmp_path, playbook, inventory, *options)
        assert done.returncode == 4
        for host in ("m", "w1"):
            assert f"[{host}]: UNREACHABLE!" in done.stdout
        assert done.stdout.count("llama_cpp.cluster.") == 0, "a role was entered"
