# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventories of clouds use options that their plugins document, and expressions that choose the right hosts.

No cloud is asked: the variables of the hosts stand here, under the names that each plugin gives them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from support.templates import holds, loaded, value_of
from support.tree import ROOT, load_yaml, run

AWS, GCP, AZURE = "aws/aws_ec2.yml", "gcp/gcp_compute.yml", "azure/azure_rm.yml"
ADDRESS = "192.0.2.11"


@pytest.mark.parametrize("name", [AWS, GCP, AZURE])
def test_options_are_those_of_the_plugin(name: str, tmp_path: Path) -> None:
    given = load_yaml(ROOT / "inventories" / name)
    plugin = given.pop("plugin")
    done = run("ansible-doc", "--type", "inventory", "--json", plugin, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    spec = {
        option: {key: "str" if value[key] == "string" else value[key] for key in ("type", "choices") if key in value}
        for option, value in json.loads(done.stdout)[plugin]["doc"]["options"].items()
    }
    assert list(ArgumentSpecValidator(spec).validate(given).error_messages) == []


def aws(role: str) -> dict[str, Any]:
    return {"aws_tags": {"llama_role": role}, "aws_private_ip_address": ADDRESS}


def gcp(role: str, machine: str = "c4a-highmem-16", **interface: str) -> dict[str, Any]:
    interfaces = [interface or {"networkIP": ADDRESS}]
    return {"labels": {"llama_role": role}, "machineType": machine, "networkInterfaces": interfaces}


def azure(role: str, size: str = "Standard_D16ps_v6", cluster: str = "main", addresses: int = 2) -> dict[str, Any]:
    return {
        "tags": {"llama_role": role, "llama_cluster": cluster} if role else {},
        "virtual_machine_size": size,
        "private_ipv4_addresses": [ADDRESS, "192.0.2.200"][:addresses],
    }


WORKER, MASTER = ["llama_workers"], ["llama_masters"]


@pytest.mark.parametrize(
    ("name", "host", "groups"),
    [
        pytest.param(AWS, aws("worker"), WORKER, id="aws-worker"),
        pytest.param(AWS, aws("master"), MASTER, id="aws-master"),
        pytest.param(GCP, gcp("worker"), WORKER, id="gcp-worker"),
        pytest.param(GCP, gcp("master", "n4a-standard-8"), MASTER, id="gcp-master"),
        pytest.param(GCP, gcp("worker", "c4-standard-8"), [], id="gcp-x86"),
        pytest.param(GCP, gcp("worker", ipv6Address="2001:db8::1"), [], id="gcp-without-ipv4"),
        pytest.param(GCP, gcp("monitor"), [], id="gcp-another-role"),
        pytest.param(AZURE, azure("worker"), WORKER, id="azure-worker"),
        pytest.param(AZURE, azure("master", "Standard_E8-4pds_v6"), MASTER, id="azure-master"),
        pytest.param(AZURE, azure("worker", "Standard_D16s_v6"), [], id="azure-x86"),
        pytest.param(AZURE, azure("worker", "Standard_PB6s"), [], id="azure-x86-with-a-p-in-its-family"),
        pytest.param(AZURE, azure("worker", addresses=0), [], id="azure-without-ipv4"),
        pytest.param(AZURE, azure("worker", cluster="other"), [], id="azure-another-cluster"),
        pytest.param(AZURE, azure("monitor"), [], id="azure-another-role"),
        pytest.param(AZURE, azure(""), [], id="azure-without-tags"),
    ],
)
def test_expressions_choose_the_hosts_and_their_private_addresses(
    name: str, host: dict[str, Any], groups: list[str]
) -> None:
    inventory = loaded(ROOT / "inventories" / name)
    wanted = all(holds(condition, host) for condition in inventory.get("include_host_filters", []))
    conditions = inventory.get("groups") or inventory["conditional_groups"]
    assert [group for group, condition in conditions.items() if wanted and holds(condition, host)] == groups
    if groups:
        variables = inventory.get("compose") or inventory["hostvar_expressions"]
        found = {variable: value_of(text, host) for variable, text in variables.items()}
        assert found == {"ansible_host": ADDRESS, "rpc_server_bind_address": ADDRESS}
