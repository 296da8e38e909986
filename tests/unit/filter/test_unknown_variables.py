# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables of hosts that look like those of this collection and are none."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from ansible import constants
from ansible.errors import AnsibleFilterError
from ansible.utils.display import Display
from ansible_collections.llama_cpp.cluster.plugins.filter.unknown_variables import unknown_variables

from support.tree import ROOT


def found(*names: str, **others: Any) -> list[str]:
    return unknown_variables(["w1"], {"w1": {**dict.fromkeys(names), **others}})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("rpc_server_treads", "rpc_server_threads"),
        ("llama_server_api_key", "llama_server_api_keys"),
        ("tune_client", "tune_clients"),
        ("size_modek", "size_model"),
    ],
)
def test_a_misspelt_name_is_named_with_the_one_that_was_meant(name: str, meant: str) -> None:
    [sentence] = found(name)
    assert sentence == (
        f"No role or playbook of llama_cpp.cluster knows {name} (of w1): write {meant}, or list {name} in "
        "llama_cpp_allow_unknown_variables."
    )


def test_a_name_that_is_like_no_other_is_to_be_removed() -> None:
    [sentence] = found("rpc_tunnel_colour_of_the_cable")
    assert "rpc_tunnel_colour_of_the_cable (of w1): remove it, or list" in sentence


def test_the_variables_of_others_are_not_touched() -> None:
    assert not found(
        "ansible_host", "kubernetes_version", "kubernetes_apiserver_port", "inference_server_url", "benchmark_user",
        "upgrade_reboot", "site_name", "image_registry", "demo_data", "rpcbind_enabled", "llamas",
        "my_rpc_server_treads",
    )  # fmt: skip


def test_names_of_inventories_of_this_tree_are_known() -> None:
    names = {
        name
        for path in (ROOT / "inventories").rglob("*.yml")
        for name in re.findall(r"^ *(\w+):", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert "rpc_server_threads" in names
    assert not found(*names)


def test_every_option_of_a_role_is_known() -> None:
    for path in ROOT.glob("roles/*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"].values():
            assert not found(*entry.get("options", {}))


def test_listed_names_are_allowed() -> None:
    names = ["llama_cpp_site_note", "rpc_server_rack"]
    assert len(found(*names)) == 2
    [sentence] = found(*names, llama_cpp_allow_unknown_variables=["llama_cpp_site_note"])
    assert "rpc_server_rack" in sentence
    with pytest.raises(AnsibleFilterError, match="llama_cpp_allow_unknown_variables of w1 is a_name; give a list"):
        found(*names, llama_cpp_allow_unknown_variables="a_name")


def test_hosts_are_named_and_many_are_counted() -> None:
    hosts = [f"w{number}" for number in range(1, 6)]
    [sentence] = unknown_variables(hosts, {host: {"rpc_server_treads": 1} for host in hosts})
    assert "(of w1, w2, w3 and 2 more)" in sentence


@pytest.mark.parametrize("injected", [True, False])
def test_the_setting_with_which_hosts_override_the_inventory_is_warned_of(
    injected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(constants, "INJECT_FACTS_AS_VARS", injected)
    monkeypatch.setattr(Display, "warning", lambda _self, text: said.append(text))
    assert found("ansible_host") == []
    assert [("write inject_facts_as_vars = false" in text) for text in said] == [True] * injected
