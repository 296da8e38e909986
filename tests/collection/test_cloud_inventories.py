# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventories of the clouds find the right hosts, groups and addresses.

Ansible's real plugins and the providers' real SDKs run, against answers in the providers' documented formats. These
answers are written by hand, not captured from an account (tests/fixtures/cloud/README.md).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from collection.clouds import PAGE_2, Proxy, proxy
from support.tree import PLAYBOOKS, ROOT, load_yaml, run

GROUPS = {"llama_workers", "llama_masters"}
MINE = (
    "AWS_",
    "AZURE_",
    "BOTO",
    "GCE_",
    "GCP_",
    "GOOGLE_",
    "CLOUDSDK_",
    "REQUESTS_",
    "HTTP",
    "http",
    "NO_PROXY",
    "no_proxy",
)


@dataclass(frozen=True)
class Cloud:
    """An inventory, and the hosts that it must find."""

    name: str
    file: str
    plugin: str
    masters: dict[str, str]
    workers: dict[str, str]
    # Hosts that the plugin cannot leave out; no playbook uses them.
    ungrouped: frozenset[str] = frozenset()
    # Warnings of variables that the plugin sets and cannot rename; no playbook reads them.
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


CLOUDS = [
    Cloud(
        "aws",
        "aws_ec2.yml",
        "amazon.aws.aws_ec2",
        masters={"master-i-00000000000000001": "192.0.2.10"},
        workers={
            "worker-i-00000000000000002": "192.0.2.11",
            "worker-i-00000000000000012": "192.0.2.22",
            "i-00000000000000013": "192.0.2.23",
        },
    ),
    Cloud(
        "gcp",
        "gcp_compute.yml",
        "google.cloud.gcp_compute",
        masters={"master": "192.0.2.10"},
        workers={"worker-1": "192.0.2.11", "worker-2": "192.0.2.22", "worker-3": "192.0.2.23"},
        ungrouped=frozenset({"worker-x86", "worker-ipv6", "monitor", "no-role"}),
    ),
    Cloud(
        "azure",
        "azure_rm.yml",
        "azure.azcollection.azure_rm",
        masters={"master": "192.0.2.10"},
        workers={"worker-1": "192.0.2.11", "worker-2": "192.0.2.22", "worker-3": "192.0.2.23"},
        warnings=("Found variable using reserved name 'name'.", "Found variable using reserved name 'tags'."),
    ),
]
every_cloud = pytest.mark.parametrize("cloud", CLOUDS, ids=str)


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of an operator, with credentials that are not valid anywhere."""
    file = tmp_path_factory.mktemp("google") / "credentials.json"
    user = {"type": "authorized_user", "client_id": "example", "client_secret": "example", "refresh_token": "example"}
    file.write_text(json.dumps(user))
    nobody = "00000000-0000-0000-0000-000000000000"
    return {
        "AWS_ACCESS_KEY_ID": "example",
        "AWS_SECRET_ACCESS_KEY": "example",
        "AZURE_CLIENT_ID": nobody,
        "AZURE_SECRET": "example",
        "AZURE_TENANT": nobody,
        "AZURE_SUBSCRIPTION_ID": nobody,
        "AZURE_DISABLE_INSTANCE_DISCOVERY": "true",
        "GOOGLE_APPLICATION_CREDENTIALS": str(file),
    }


@pytest.fixture(scope="module")
def internet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with pytest.MonkeyPatch.context() as patch, proxy(tmp_path_factory.mktemp("clouds")) as running:
        for name in [name for name in os.environ if name.startswith(MINE)]:
            patch.delenv(name)
        yield running


@pytest.fixture(scope="module")
def start(internet: Proxy, credentials: dict[str, str]) -> Callable[..., str]:
    """Return a function that runs one of Ansible's programs on the inventory of a cloud and returns its output."""

    def ansible(cloud: Cloud, program: str, *arguments: str | Path, cwd: Path) -> str:
        result = run(
            program,
            "-i",
            ROOT / "inventories" / cloud.name,
            *arguments,
            cwd=cwd,
            **internet.environment,
            **credentials,
            PYTHONPATH=str(Path(__file__).parent / "azure_standins"),
            # The plugins use features that later releases of ansible-core will remove.
            ANSIBLE_DEPRECATION_WARNINGS="false",
        )
        assert internet.refused == []
        assert result.returncode == 0, result.stdout + result.stderr
        warnings = re.findall(r"^\[\w+\]: (.*)$", result.stderr, re.MULTILINE)
        assert set(warnings) <= set(cloud.warnings), result.stderr
        return result.stdout

    return ansible


@pytest.fixture(scope="module")
def found(start: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[Cloud], dict[str, Any]]:
    """Return a function that returns the output of `ansible-inventory --list`, run once for each cloud."""
    answers: dict[str, dict[str, Any]] = {}

    def listing(cloud: Cloud) -> dict[str, Any]:
        if cloud.name not in answers:
            folder = tmp_path_factory.mktemp(cloud.name)
            text = start(cloud, "ansible-inventory", "--list", cwd=folder)
            answers[cloud.name] = json.loads(text, object_hook=lambda value: value.get("__ansible_unsafe", value))
        return answers[cloud.name]

    return listing


@every_cloud
def test_who_is_in_which_group(cloud: Cloud, found: Callable[[Cloud], dict[str, Any]]) -> None:
    groups = {name: set(group["hosts"]) for name, group in found(cloud).items() if "hosts" in group}
    groups.pop("aws_ec2", None)  # the group of all hosts that the plugin found
    expected = {"llama_masters": set(cloud.masters), "llama_workers": set(cloud.workers), "ungrouped": cloud.ungrouped}
    assert groups == {name: hosts for name, hosts in expected.items() if hosts}


@every_cloud
def test_addresses_are_private(cloud: Cloud, found: Callable[[Cloud], dict[str, Any]]) -> None:
    variables = found(cloud)["_meta"]["hostvars"]
    for name, address in {**cloud.masters, **cloud.workers}.items():
        assert (variables[name]["ansible_host"], variables[name]["rpc_server_bind_address"]) == (address, address)
        assert variables[name]["ansible_become"] is True


@every_cloud
def test_endpoints_in_a_playbook(cloud: Cloud, start: Callable[..., str], tmp_path: Path) -> None:
    """Also checks that no variable of the cloud hides a reserved name of Ansible, which would warn of it."""
    task = {
        "ansible.builtin.copy": {
            "content": "{{ groups['llama_workers'] | llama_cpp.cluster.rpc_endpoints(hostvars) | to_json }}",
            "dest": str(tmp_path / "endpoints.json"),
            "mode": "0600",
        },
        "delegate_to": "localhost",
        "vars": {"ansible_connection": "local", "ansible_become": False},
    }
    playbook = tmp_path / "playbook.yml"
    playbook.write_text(json.dumps([{"hosts": "llama_masters", "gather_facts": False, "tasks": [task]}]))
    start(cloud, "ansible-playbook", playbook, cwd=tmp_path)
    endpoints = json.loads((tmp_path / "endpoints.json").read_text())
    assert sorted(endpoints) == sorted(f"{address}:50052" for address in cloud.workers.values())


@every_cloud
def test_all_pages_were_asked_for(cloud: Cloud, found: Callable[[Cloud], dict[str, Any]], internet: Proxy) -> None:
    found(cloud)
    hosts = {"aws": "ec2.eu-central-1.amazonaws.com", "gcp": "www.googleapis.com", "azure": "management.azure.com"}
    asked = [f"{request.query} {request.body!r}" for request in internet.requests if request.host == hosts[cloud.name]]
    assert any(PAGE_2 in text for text in asked)


@every_cloud
def test_file_says_what_to_change_and_holds_no_secret(cloud: Cloud) -> None:
    path = ROOT / "inventories" / cloud.name / cloud.file
    text = path.read_text()
    content = load_yaml(path)
    assert content["plugin"] == cloud.plugin
    assert set(content.get("groups") or content["conditional_groups"]) == GROUPS
    assert 1 <= text.count("# CHANGE:") <= 3
    keys = re.compile(
        r"key|secret|token|password|service_account|client|tenant|subscription|profile|cache", re.IGNORECASE
    )
    assert [name for name in content if keys.search(name)] == []
    login = load_yaml(path.parent / "group_vars" / "all.yml")
    assert [name for name in login if keys.search(name)] == []
    assert "ProxyJump" in (path.parent / "group_vars" / "all.yml").read_text()


def test_playbooks_use_these_groups() -> None:
    used = set()
    for name in PLAYBOOKS:
        used |= set(re.findall(r"\bllama_(?:workers|masters)\b", (ROOT / "playbooks" / f"{name}.yml").read_text()))
    assert used == GROUPS
