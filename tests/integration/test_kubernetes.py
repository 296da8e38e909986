# SPDX-License-Identifier: GPL-3.0-or-later
"""The manifests of role kubernetes: their schemas, who reaches whom, and how pods are confined."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml

from support.debian_programs import debian_program
from support.gateway import make_certificate, make_program
from support.harness import ROOT, completed
from support.kubernetes import (
    GATEWAY,
    GIVEN,
    INSTANCE,
    labels,
    lets_through,
    of_kind,
    play,
    rendered,
    templates,
    the_set,
)

if TYPE_CHECKING:
    from pathlib import Path

# The newest version, and the two before it.
VERSIONS = ("1.35", "1.36", "1.37")
# These kinds are not Kubernetes' own.
OWN_SCHEMAS = ("LeaderWorkerSet", "ServiceMonitor")
CHOICES: dict[str, dict[str, Any]] = {
    "least": {"kubernetes_cache_volume": {"hostPath": {"path": "/var/cache/llama_rpc", "type": "Directory"}}},
    "gateway": GATEWAY,
    "tls": {**GATEWAY, "kubernetes_gateway_tls_secret": "api-tls"},
}


@pytest.fixture(scope="module", params=CHOICES, ids=str)
def manifests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return rendered(tmp_path_factory.mktemp("rendered"), CHOICES[request.param])


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_them(manifests: list[dict[str, Any]], version: str) -> None:
    for manifest in manifests:
        if manifest["kind"] not in OWN_SCHEMAS:
            kubernetes_validate.validate(manifest, version, strict=True)
    for part, template in templates(manifests).items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": part, **template["metadata"]}}
        kubernetes_validate.validate({**pod, "spec": template["spec"]}, version, strict=True)


def test_nothing_in_a_pod_has_more_rights_than_it_needs(manifests: list[dict[str, Any]]) -> None:
    for template in templates(manifests).values():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName", "initContainers"} & spec.keys()
        pod = spec["securityContext"]
        assert (pod["runAsNonRoot"], pod["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        assert pod["runAsUser"] > 0
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "@sha256:" in container["image"]
            # The pod is in class Guaranteed, so that its processors can be its own.
            assert container["resources"]["requests"] == container["resources"]["limits"]
            assert container["resources"]["limits"].keys() == {"cpu", "memory"}
            assert container["resources"]["limits"]["cpu"].isdecimal()
    leader = templates(manifests)["leader"]["spec"]
    assert all(mount["readOnly"] for mount in leader["containers"][0]["volumeMounts"])


def test_a_worker_obeys_its_own_leader_and_reaches_nobody(manifests: list[dict[str, Any]]) -> None:
    groups = range(the_set(manifests)["spec"]["replicas"])
    chat, other = {"app": "chat"}, {"app": "other"}
    parts = templates(manifests)
    named = {name for template in parts.values() for name in template["metadata"]["labels"]}
    assert INSTANCE in named
    for group in groups:
        leader, worker = labels(manifests, "leader", group), labels(manifests, "worker", group)
        assert lets_through(manifests, leader, worker, 50052)
        assert not lets_through(manifests, leader, worker, 22)
        for source in (chat, other, worker, *(labels(manifests, "leader", it) for it in groups if it != group)):
            assert not lets_through(manifests, source, worker, 50052)
        for target in (chat, leader, worker):
            assert not lets_through(manifests, worker, target, 8080)
        assert not lets_through(manifests, leader, chat, 8080)
        assert not lets_through(manifests, other, leader, 8080)
        # A worker that exists only for a moment, or because somebody scaled up, is closed and not open.
        assert not lets_through(manifests, chat, labels(manifests, "worker", 99), 50052)


def test_clients_come_in_at_the_door_alone(tmp_path: Path) -> None:
    chat = {"app": "chat"}
    plain = rendered(tmp_path, {"kubernetes_trusted_peers": [{"podSelector": {"matchLabels": chat}}]})
    leader = labels(plain, "leader", 0)
    assert lets_through(plain, chat, leader, 8080)
    assert not lets_through(plain, chat, leader, 8081)
    behind = rendered(tmp_path, GATEWAY)
    leader, gateway = labels(behind, "leader", 1), labels(behind, "gateway")
    assert lets_through(behind, chat, gateway, 8000)
    assert not lets_through(behind, chat, gateway, 8001), "only the kubelet asks there"
    assert not lets_through(behind, chat, leader, 8080)
    assert lets_through(behind, gateway, leader, 8080)
    assert lets_through(behind, gateway, leader, 8081)
    assert lets_through(behind, {"app": "prometheus"}, leader, 8080)
    assert not lets_through(behind, {"app": "prometheus"}, gateway, 8000)
    [service] = [it for it in of_kind(behind, "Service") if it["metadata"]["name"] == "llama-api"]
    assert service["spec"]["selector"].items() <= gateway.items()


@pytest.mark.parametrize(
    "kind", ["secret", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("none", "texts"))]
)
def test_with_a_certificate_the_door_speaks_https_alone(tmp_path: Path, kind: str) -> None:
    certificate, key = make_certificate(tmp_path, "tls")
    given = {
        "none": {},
        "texts": {"llama_gateway_tls_certificate": certificate, "llama_gateway_tls_key": key},
        "secret": {"kubernetes_gateway_tls_secret": "api-tls"},
    }
    found = rendered(tmp_path, {**GATEWAY, **given[kind]})
    [service] = [it for it in of_kind(found, "Service") if it["metadata"]["name"] == "llama-api"]
    assert service["spec"]["ports"][0]["port"] == (80 if kind == "none" else 443)
    spec = templates(found)["gateway"]["spec"]
    [haproxy] = spec["containers"]
    for probe in ("readinessProbe", "livenessProbe"):
        assert haproxy[probe]["httpGet"] == {"path": "/health", "port": "alive"}

    # Write the files of the volume as a kubelet does.
    secrets = {it["metadata"]["name"]: it["stringData"] for it in of_kind(found, "Secret")}
    secrets["api-tls"] = {"tls.crt": certificate, "tls.key": key}
    [volume] = [it for it in spec["volumes"] if it["name"] == "configuration"]
    place = tmp_path / "configuration"
    place.mkdir()
    for source in volume.get("projected", {"sources": [volume]})["sources"]:
        data = secrets[source["secret"].get("name") or source["secret"]["secretName"]]
        for item in source["secret"].get("items") or [{"key": name, "path": name} for name in data]:
            (place / item["path"]).write_text(data[item["key"]])
    configuration = place / "haproxy.cfg"
    text = configuration.read_text()
    assert ('    bind "${POD_IP}":8000 ssl crt /etc/llama_gateway/door.pem ' in text) is (kind != "none")
    # Names of Services do not resolve here.
    text = re.sub(r"llama-group-\d+:", "127.0.0.1:", text.replace("/etc/llama_gateway", str(place)))
    configuration.write_text(text)
    done = completed(make_program(tmp_path), "-c", "-f", configuration, POD_IP="127.0.0.1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_probe_connects_to_a_worker(manifests: list[dict[str, Any]]) -> None:
    [worker] = templates(manifests)["worker"]["spec"]["containers"]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert worker[name].keys() & {"exec", "httpGet", "tcpSocket", "grpc"} == {"exec"}
        assert worker[name]["exec"]["command"][-2] == "listens"


def test_rules_about_pods_choose_the_pods_that_they_are_for(manifests: list[dict[str, Any]]) -> None:
    """Each worker has a node of its own. Groups are spread over zones, and put out one by one."""
    [rule] = templates(manifests)["worker"]["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"]["matchLabels"] == labels(manifests, "worker")
    [spread] = templates(manifests)["leader"]["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["maxSkew"]) == ("topology.kubernetes.io/zone", 1)
    assert spread["labelSelector"]["matchLabels"] == labels(manifests, "leader")
    [budget] = of_kind(manifests, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    selector = budget["spec"]["selector"]
    [parts] = selector["matchExpressions"]
    for part in ("leader", "worker"):
        assert selector["matchLabels"].items() <= labels(manifests, part).items()
        assert labels(manifests, part)[parts["key"]] in parts["values"]


def test_out_of_the_group_a_pod_reaches_names_alone(manifests: list[dict[str, Any]]) -> None:
    own = {labels(manifests, part)[INSTANCE] for part in templates(manifests)}
    named = {"kubernetes.io/metadata.name": "kube-system"}
    outside = set()
    for policy in of_kind(manifests, "NetworkPolicy"):
        for rule in policy["spec"].get("egress", []):
            for peer in rule["to"]:
                assert peer.keys() <= {"podSelector", "namespaceSelector"}, "no address of another network"
                if "namespaceSelector" in peer:
                    assert peer["namespaceSelector"]["matchLabels"] == named
                    outside |= {(policy["metadata"]["name"], it["protocol"], it["port"]) for it in rule["ports"]}
                else:
                    assert peer["podSelector"]["matchLabels"][INSTANCE] in own
    parts = {name.removeprefix("llama-") for name, _protocol, _port in outside}
    assert parts == ({"leaders", "gateway"} if "gateway" in templates(manifests) else {"leaders"})
    assert {(protocol, port) for _name, protocol, port in outside} == {("UDP", 53), ("TCP", 53)}


def test_kubectl_takes_the_folder_as_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/kubernetes.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^kubectl (kustomize .+?) *#", page, re.MULTILINE)
    written = rendered(tmp_path, GATEWAY)
    kubectl = debian_program("kubernetes-client", "usr/bin/kubectl")
    done = subprocess.run([kubectl, *line.split()], cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    shown = list(yaml.safe_load_all(done.stdout))
    assert sorted(shown, key=json.dumps) == sorted(written, key=json.dumps)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"llama_server_extra_args": ["--mlock", "--ctx_size=9"]}, "llama_server_extra_args holds --ctx-size, which"),
        pytest.param(
            {**GATEWAY, "llama_gateway_api_keys": []}, "llama_gateway_api_keys is empty", marks=pytest.mark.long
        ),
    ],
    ids=["server", "gateway"],
)
def test_what_the_other_roles_refuse_this_one_does_too(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    done = play(tmp_path, {"kubernetes_state": "rendered", "kubernetes_folder": "manifests", **given})
    assert done.returncode == 2
    assert said in " ".join(done.stdout.split())
    assert not (tmp_path / "manifests").exists()


def test_other_settings_make_other_pods_and_keys_are_in_a_file_of_their_own_or_in_none(tmp_path: Path) -> None:
    asked = {"kubernetes_state": "rendered", "kubernetes_folder": "manifests"}
    shown = play(tmp_path, asked, "--check", "--diff")
    assert shown.returncode == 0, shown.stdout
    assert "kind: LeaderWorkerSet" in shown.stdout
    assert not (tmp_path / "manifests").exists()
    first = rendered(tmp_path, {})
    secrets, others = tmp_path / "manifests/llama-secrets.yml", tmp_path / "manifests/llama.yml"
    assert of_kind(first, "Secret")
    assert secrets.stat().st_mode & 0o777 == 0o600
    assert GIVEN["llama_server_api_keys"][0] not in others.read_text()
    assert "changed=0" in play(tmp_path, asked).stdout
    second = rendered(tmp_path, {"llama_server_parallel": 2, "llama_server_api_keys": []})
    for part in ("leader", "worker"):
        before, after = (templates(it)[part]["metadata"]["annotations"] for it in (first, second))
        assert before != after
    [configuration] = of_kind(second, "ConfigMap")
    written = json.loads(configuration["data"]["pod.json"])
    options = written["plan"]["options"]
    assert options[options.index("--parallel") + 1] == "2"
    assert written["worker_memory_bytes"] == 24 << 30
    assert not secrets.exists()
    assert of_kind(second, "Secret") == []
    assert GIVEN["llama_server_api_keys"][0] not in json.dumps(second)
    sources = next(it for it in templates(second)["leader"]["spec"]["volumes"] if it["name"] == "settings")["projected"]
    assert sources["sources"][1]["secret"]["name"] == "llama-keys"
