# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter that turns an inventory into endpoints, alone and in a real template of Ansible."""

from __future__ import annotations

from typing import Any, Dict

import pytest
from ansible.errors import AnsibleError, AnsibleFilterError
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager
from ansible_collections.llama_cpp.cluster.plugins.filter.group_members import FilterModule as GroupFilter
from ansible_collections.llama_cpp.cluster.plugins.filter.host_groups import FilterModule as HostFilter
from ansible_collections.llama_cpp.cluster.plugins.filter.rpc_endpoints import FilterModule

host_groups = HostFilter().filters()["host_groups"]
group_members = GroupFilter().filters()["group_members"]
rpc_endpoints = FilterModule().filters()["rpc_endpoints"]

GOOD = {
    "inventory-name-alone": ({}, ["w:50052"]),
    "ansible_host": ({"ansible_host": "10.0.0.1"}, ["10.0.0.1:50052"]),
    "bind-address-before-ansible_host": (
        {"ansible_host": "203.0.113.9", "rpc_server_bind_address": "10.0.0.1"},
        ["10.0.0.1:50052"],
    ),
    "explicit-address-before-all": (
        {"ansible_host": "a", "rpc_server_bind_address": "10.0.0.1", "rpc_server_address": "node.lan"},
        ["node.lan:50052"],
    ),
    "wildcard-bind-address-is-no-address": (
        {"ansible_host": "10.0.0.1", "rpc_server_bind_address": "0.0.0.0"},
        ["10.0.0.1:50052"],
    ),
    "empty-values-are-unset": ({"rpc_server_address": "", "rpc_server_bind_address": None}, ["w:50052"]),
    "port-as-text": ({"rpc_server_port": "50060"}, ["w:50060"]),
    "instances-replace-the-one-of-the-port": (
        {"rpc_server_port": 50060, "rpc_server_instances": [{"port": 50053}, {"port": "50054", "address": "10.0.1.1"}]},
        ["w:50053", "10.0.1.1:50054"],
    ),
    "instance-on-every-address-is-reached-at-the-host's": (
        {"rpc_server_address": "10.0.0.1", "rpc_server_instances": [{"port": 50053, "address": "0.0.0.0"}]},
        ["10.0.0.1:50053"],
    ),
    "no-instances": ({"rpc_server_instances": []}, ["w:50052"]),
}


@pytest.mark.parametrize(("variables", "endpoints"), GOOD.values(), ids=GOOD.keys())
def test_the_endpoints_of_a_host(variables: dict[str, Any], endpoints: list[str]) -> None:
    assert rpc_endpoints(["w"], {"w": variables}) == endpoints


GROUPS = {"a1": {"llama_group": "a"}, "b1": {"llama_group": "b"}, "one": {}, "empty": {"llama_group": ""}}


@pytest.mark.parametrize(("group", "hosts"), [("a", ["a1"]), ("b", ["b1"]), ("", ["one", "empty"]), ("none", [])])
def test_workers_of_one_group_alone(group: str, hosts: list[str]) -> None:
    assert rpc_endpoints(list(GROUPS), GROUPS, group=group) == [f"{host}:50052" for host in hosts]
    for host in hosts:
        assert group_members(list(GROUPS), GROUPS, host) == hosts


def test_members_of_several_groups_keep_their_order() -> None:
    assert group_members(list(GROUPS), GROUPS, ["b1", "empty", "one"]) == ["b1", "one", "empty"]


SHARED = {
    "a-and-b": {
        "llama_group": "a",
        "rpc_server_instances": [{"port": 1}, {"port": 2, "group": "b"}, {"port": 3, "group": ""}],
    },
    "b-and-c": {"rpc_server_instances": [{"port": 1, "group": "b"}, {"port": 2, "group": "c"}]},
    "c": {"llama_group": "c"},
    "d": {"llama_group": "d"},
}


@pytest.mark.parametrize(
    ("group", "endpoints"),
    [("a", ["a-and-b:1", "a-and-b:3"]), ("b", ["a-and-b:2", "b-and-c:1"]), ("c", ["b-and-c:2", "c:50052"])],
)
def test_an_instance_is_of_its_own_group(group: str, endpoints: list[str]) -> None:
    assert rpc_endpoints(list(SHARED), SHARED, group=group) == endpoints


def test_a_host_is_of_the_groups_of_its_instances() -> None:
    assert host_groups(["a-and-b", "c"], SHARED) == {"a-and-b": ["a", "b"], "c": ["c"]}
    assert group_members(list(SHARED), SHARED, "c") == ["b-and-c", "c"]
    assert group_members(list(SHARED), SHARED, "a-and-b") == ["a-and-b", "b-and-c"]


@pytest.mark.parametrize("order", [list(SHARED), list(reversed(SHARED)), ["c", "a-and-b", "d", "b-and-c"]])
def test_groups_that_share_a_host_are_linked(order: list[str]) -> None:
    linked = {"a-and-b": ["a", "b", "c"], "b-and-c": ["a", "b", "c"], "c": ["a", "b", "c"], "d": ["d"]}
    assert host_groups(order, SHARED, linked=True) == linked


class Counted(Dict[str, Any]):
    """Variables of hosts that count how often those of a host are read."""

    looks = 0

    def __getitem__(self, name: str) -> Any:
        self.looks += 1
        return super().__getitem__(name)


def test_of_hundreds_of_groups_a_host_asks_those_of_its_own_alone() -> None:
    plain = {f"{kind}{number}": {"llama_group": f"group{number}"} for kind in ("a", "b") for number in range(300)}
    groups = {name: ",".join(own) for name, own in host_groups(list(plain), plain).items()}
    hostvars = Counted({name: {**variables, "__cluster_groups": groups} for name, variables in plain.items()})
    assert group_members(list(plain), hostvars, "a7") == ["a7", "b7"]
    assert rpc_endpoints(list(plain), hostvars, group="group7") == ["a7:50052", "b7:50052"]
    assert hostvars.looks <= 4, "each look has Ansible collect all variables of a host"


def test_without_a_group_all_workers_are_meant() -> None:
    found = rpc_endpoints(list(GROUPS), GROUPS, details=True)
    assert [(worker["host"], worker["group"]) for worker in found] == [
        ("a1", "a"), ("b1", "b"), ("one", ""), ("empty", "")
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["with a blank", ["a"], 3])
def test_a_group_that_has_no_name_is_an_error(name: Any) -> None:
    with pytest.raises(AnsibleFilterError, match=r"host w, llama_group: .* is not the name of a group"):
        rpc_endpoints(["w"], {"w": {"llama_group": name}}, group="a")


def test_hosts_keep_their_order() -> None:
    hostvars = {name: {"rpc_server_port": 50052 + i} for i, name in enumerate(("c", "a", "b"))}
    assert rpc_endpoints(["b", "c", "a"], hostvars) == ["b:50054", "c:50052", "a:50053"]
    assert rpc_endpoints([], hostvars) == []


BAD = {
    "port-too-large": ({"rpc_server_port": 70000}, "host w, rpc_server_port: port 70000 is not a number"),
    "port-a-word": ({"rpc_server_port": "rpc"}, "host w, rpc_server_port: port 'rpc'"),
    "port-a-bool": ({"rpc_server_port": True}, "host w, rpc_server_port: port True"),
    "address-ipv6": ({"ansible_host": "fd00::1"}, "host w, ansible_host: .*no IPv6"),
    "address-with-port": ({"rpc_server_address": "a:1"}, "host w, rpc_server_address: address 'a:1'"),
    "address-malformed": ({"rpc_server_address": "a b"}, "host w, rpc_server_address: .*invalid host"),
    "instances-no-list": ({"rpc_server_instances": 2}, "host w, rpc_server_instances: must be a list"),
    "instance-no-dict": ({"rpc_server_instances": [1]}, r"host w, rpc_server_instances\[0\]: must be a dict"),
    "instance-port": (
        {"rpc_server_instances": [{"port": 1}, {"port": 0}]},
        r"host w, rpc_server_instances\[1\]: port 0",
    ),
    "instance-group": (
        {"rpc_server_instances": [{"port": 1, "group": ["a", "b"]}]},
        r"host w, rpc_server_instances\[0\], group: \['a', 'b'\] is not the name of a group",
    ),
    "instance-twice": (
        {"rpc_server_instances": [{"port": 1}, {"port": 1}]},
        r"host w, rpc_server_instances\[1\]: endpoint w:1 is already a worker of host w",
    ),
}


@pytest.mark.parametrize(("variables", "said"), BAD.values(), ids=BAD.keys())
def test_an_error_names_the_host_and_the_variable(variables: dict[str, Any], said: str) -> None:
    with pytest.raises(AnsibleFilterError, match=said) as caught:
        rpc_endpoints(["w"], {"w": variables})
    assert "\n" not in str(caught.value)


def test_two_hosts_at_one_endpoint_are_an_error_that_names_both() -> None:
    hostvars = {"w1": {"ansible_host": "Gpu.lan"}, "w2": {"rpc_server_address": "gpu.lan"}}
    with pytest.raises(AnsibleFilterError, match=r"host w2, rpc_server_address: .*already a worker of host w1"):
        rpc_endpoints(["w1", "w2"], hostvars)


@pytest.mark.parametrize(
    ("hosts", "hostvars", "said"),
    [
        pytest.param("w", {"w": {}}, "needs a list of inventory hosts", id="text-for-hosts"),
        pytest.param(None, {}, "needs a list of inventory hosts", id="none-for-hosts"),
        pytest.param(["w"], None, r"write rpc_endpoints\(hostvars\)", id="no-hostvars"),
        pytest.param(["w"], {}, "host w is not in the inventory", id="unknown-host"),
    ],
)
def test_wrong_use_is_explained(hosts: object, hostvars: object, said: str) -> None:
    with pytest.raises(AnsibleFilterError, match=said):
        rpc_endpoints(hosts, hostvars)


INVENTORY = """
[llama_workers]
w1 rpc_server_address="10.0.0.{{ number }}" number=1
w2 ansible_host=10.0.0.2 rpc_server_port="{{ base | int + 8 }}" base=50052
[odd]
w3 rpc_server_address="{{ missing_variable }}"
"""


def render(template: str, tmp_path: Any) -> Any:
    """Return a template's result in Ansible, with the variables of a real inventory."""
    path = tmp_path / "hosts.ini"
    path.write_text(INVENTORY)
    loader = DataLoader()
    inventory = InventoryManager(loader=loader, sources=[str(path)])
    variables = VariableManager(loader=loader, inventory=inventory)
    hostvars = HostVars(inventory, variables, loader)
    templar = Templar(loader, {"hostvars": hostvars, "groups": inventory.get_groups_dict()})
    return templar.template(trust_as_template(template))


def test_variables_that_are_templates_are_followed(tmp_path: Any) -> None:
    template = "{{ groups['llama_workers'] | llama_cpp.cluster.rpc_endpoints(hostvars) }}"
    assert render(template, tmp_path) == ["10.0.0.1:50052", "10.0.0.2:50060"]


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        pytest.param("groups['odd']", "host w3, rpc_server_address: .*missing_variable", id="undefined-in-a-variable"),
        pytest.param("['nobody']", "host nobody is not in the inventory", id="host-not-in-the-inventory"),
        pytest.param("groups['nogroup']", "nogroup", id="group-not-in-the-inventory"),
    ],
)
def test_what_is_undefined_is_named(hosts: str, said: str, tmp_path: Any) -> None:
    with pytest.raises(AnsibleError, match=said):
        render(f"{{{{ {hosts} | llama_cpp.cluster.rpc_endpoints(hostvars) }}}}", tmp_path)
