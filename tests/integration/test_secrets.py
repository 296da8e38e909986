# SPDX-License-Identifier: GPL-3.0-or-later
"""No secret is in what playbooks print, in the system's log, in arguments, or in files that others may read.

All secrets here have the same mark in them. The playbooks print all that they can, and all hosts are this machine.
Most runs are with --check, so that they do not change it. tests/serve, tests/gateway and tests/tunnel look at real
hosts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.gateway import PLAY, make_certificate, make_program
from support.harness import free_port, play_over
from support.hub_stand_in import running_hub
from support.kubernetes import GATEWAY, given
from support.tree import PLAYBOOKS

if TYPE_CHECKING:
    from collections.abc import Iterator

# Other runs of these tests on this machine have another mark.
MARK = f"nobodymayread{os.getpid()}"
KEYS: dict[str, Any] = {
    "llama_gateway_group_key": f"{MARK}.of-the-group",
    "llama_gateway_api_keys": [{"name": "first", "key": f"{MARK}.of-a-client"}],
}
ALL = ("-vvv", "--diff")
# Python runs this before a module, which then writes to a file what is for the system's log.
LOGGED = """
import os, syslog
def note(*words):
    with open(os.environ["SYSTEM_LOG"], "a") as log:
        print(*words, file=log)
syslog.syslog = note
"""
PEM = "-----BEGIN {0}-----\n{1}\n-----END {0}-----\n"
HOSTS = {
    "llama_masters": {"hosts": {"m": {}}},
    "llama_workers": {"hosts": {"m": {}}},
    "llama_gateways": {"hosts": {"g": {}}},
}
# The tasks that get a secret, but for a source's download, which no check does. These two playbooks have all of them.
WITH_SECRETS = {
    "site": [
        "rpc_tunnel : Read the state of the tunnel",
        "rpc_tunnel : Write the peers",
        "gguf_model : Download and verify the model",
    ],
    "serve": ["llama_server : Write the API keys", "llama_gateway : Write the configuration"],
}
# The others run on no hosts, and have tests of their own.
LESS = [name for name in PLAYBOOKS if name not in (*WITH_SECRETS, "demo", "image", "kubernetes", "size")]
# The tests themselves write these.
GIVEN_FILES = ("given.json", "hosts.json")


@pytest.fixture(autouse=True)
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Find the mark in arguments, in the log, and in files that others can read."""
    for name in ("home", "start"):
        (tmp_path / name).mkdir()
    (tmp_path / "start/sitecustomize.py").write_text(LOGGED)
    log = tmp_path / "log"
    log.touch()
    places = {"HOME": "home", "TMPDIR": "home", "LLAMA_CPP_CLUSTER_CACHE": "cache", "PYTHONPATH": "start"}
    for name, place in places.items():
        monkeypatch.setenv(name, str(tmp_path / place))
    monkeypatch.setenv("SYSTEM_LOG", str(log))
    ended, arguments = threading.Event(), set()

    def look() -> None:
        while not ended.wait(0.1):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    arguments.add(path.read_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    yield
    ended.set()
    thread.join()
    assert [it for it in arguments if MARK.encode() in it] == []
    assert found(log.read_text()) == []
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name not in GIVEN_FILES]
    readable = [path for path in files if path.stat().st_mode & 0o077]
    assert [path for path in readable if MARK.encode() in path.read_bytes()] == []


def found(text: str, *more: str) -> list[str]:
    """Return where the text has a secret."""
    return re.findall("|".join(f".{{0,150}}{re.escape(secret)}.{{0,9}}" for secret in (MARK, *more)), text)


def play(
    folder: Path, playbook: str, variables: dict[str, Any], *options: str, groups: dict[str, Any] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a playbook that prints everything; assert that this has no secret."""
    (folder / "given.json").write_text(json.dumps(variables))
    done = play_over(playbook, folder, groups or {}, "-e", "@given.json", *ALL, *options)
    assert found(done.stdout + done.stderr) == []
    return done


def succeeds(*arguments: Any, **more: Any) -> str:
    done = play(*arguments, **more)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.mark.long
def test_manifests(tmp_path: Path) -> None:
    variables = given({
        **GATEWAY,
        **KEYS,
        "kubernetes_folder": "manifests",
        "kubernetes_monitoring_peers": [],
        "llama_server_api_keys": [f"{MARK}.of-an-api"],
        "llama_gateway_tls_certificate": PEM.format("CERTIFICATE", "aaaa"),
        "llama_gateway_tls_key": PEM.format("PRIVATE KEY", MARK),
    })  # fmt: skip
    rendered = {**variables, "kubernetes_state": "rendered"}
    written = tmp_path / "manifests/llama-secrets.yml"
    assert "kind: LeaderWorkerSet" in succeeds(tmp_path, "kubernetes.yml", rendered, "--check")
    assert not written.exists()
    assert "+kind: LeaderWorkerSet" in succeeds(tmp_path, "kubernetes.yml", rendered)
    assert len(found(written.read_text())) == 4
    assert "changed=0" in succeeds(tmp_path, "kubernetes.yml", rendered)
    # The keys of before are secrets as well.
    other = {**rendered, "llama_server_api_keys": [f"{MARK}.of-another-api"], "kubernetes_leader_cpu": 7}
    said = succeeds(tmp_path, "kubernetes.yml", other)
    assert "- cpu: '2'" in said
    assert "+ cpu: '7'" in said
    assert f"{MARK}.of-another-api" in written.read_text()


def test_a_gateway(tmp_path: Path) -> None:
    make_program(tmp_path)
    certificate, key = make_certificate(tmp_path, "tls")
    variables = {
        **KEYS,
        "gateway_folder": str(tmp_path),
        "gateway_program": str(tmp_path / "haproxy"),
        "llama_gateway_groups": [
            {"name": "a", "model": "m", "address": "127.0.0.1", "port": 1, "ready_port": 2, "slots": 1}
        ],
        "llama_gateway_tls_certificate": certificate,
        "llama_gateway_tls_key": key,
    }
    for options in (("--check",), ()):
        said = succeeds(tmp_path, str(PLAY), variables, *options, groups={"llama_gateways": {"hosts": {"here": {}}}})
        assert found(said, *key.splitlines()[1:-1]) == []
    assert MARK in (tmp_path / "haproxy.cfg").read_text()
    assert (tmp_path / "door.pem").stat().st_mode & 0o777 == 0o600


def test_size(tmp_path: Path) -> None:
    with running_hub({"model.gguf": b"no model"}, token=f"{MARK}.of-the-hub") as hub:
        known = {"size_host_memory": "1GiB", "gguf_model_hf_endpoint": hub.endpoint, "gguf_model_hf_token": hub.token}
        signed = {"size_model": f"{hub.storage}/model.gguf?signature={MARK}"}
        for where in (signed, {"gguf_model_hf_repo": hub.repo, "gguf_model_hf_file": "model.gguf"}):
            done = play(tmp_path, "size.yml", {**known, **where})
            assert "is not a complete GGUF model" in done.stdout


def test_an_image(tmp_path: Path) -> None:
    mirror = f"http://me:{MARK}@127.0.0.1/debian"
    variables = {"kubernetes_image_archive": "image", "kubernetes_image_artifacts": ["a"]}
    done = play(tmp_path, "image.yml", {**variables, "kubernetes_image_mirror": mirror})
    assert "kubernetes_image_mirror holds a user name or password" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("playbook", [*WITH_SECRETS, *LESS])
def test_hosts(tmp_path: Path, playbook: str) -> None:
    with running_hub({"model.gguf": struct.pack("<4sIQQ", b"GGUF", 3, 0, 0)}) as hub:
        variables = {
            **KEYS,
            "llama_gateway_port": free_port(),
            "llama_gateway_tls_certificate": PEM.format("CERTIFICATE", "aaaa"),
            "llama_gateway_tls_key": PEM.format("PRIVATE KEY", MARK),
            "llama_server_enabled": True,
            "llama_server_port": free_port(),
            "rpc_firewall_enabled": False,
            "rpc_tunnel_enabled": True,
            "rpc_tunnel_preshared_key": f"{MARK:A<43}=",
            "llama_cpp_archive": f"http://me:{MARK}@127.0.0.1/llama.tar?signature={MARK}",
            "llama_cpp_sha256": "0" * 64,
            "llama_cpp_allow_vulnerable": True,
            "gguf_model_path": "/srv/models/none.gguf",
            "gguf_model_source": f"{hub.storage}/model.gguf?signature={MARK}",
            "gguf_model_sha256": "0" * 64,
            # As if this machine ran systemd, and had a key for the tunnel and no HAProxy.
            "__llama_gateway_haproxy": "/nowhere/haproxy",
            "common_systemd": 257,
            # Each host has its own.
            "__rpc_tunnel_public_key": "{{ (inventory_hostname * 43)[:42] }}A=",
        }
        tags = ("--tags", "llama_cpp,rpc_tunnel,gguf_model") if playbook == "site" else ()
        done = play(tmp_path, f"{playbook}.yml", variables, "--check", *tags, groups=HOSTS)
    if playbook in WITH_SECRETS:
        assert "Invoked with" in (tmp_path / "log").read_text()
        missing = [it for it in WITH_SECRETS[playbook] if f"TASK [llama_cpp.cluster.{it}]" not in done.stdout]
        assert missing == []
        assert done.returncode == 0, done.stdout[-3000:]
