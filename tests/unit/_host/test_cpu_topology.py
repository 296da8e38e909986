# SPDX-License-Identifier: GPL-3.0-or-later
"""The number of cores that a service may use, on trees of /proc and /sys like those of real kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.cpu_topology import (
    CpuSetError,
    describe_set,
    format_cpu_list,
    parse_cpu_list,
    read_topology,
)

PID_1 = {
    "v2": "0::/init.scope\n",
    "v1": "3:cpu,cpuacct:/docker/abc/init.scope\n2:cpuset:/docker/abc\n1:name=systemd:/init.scope\n",
}


def host(
    online: str,
    cores: list[str] | None = None,
    nodes: dict[int, str] | None = None,
    allowed: str | None = None,
    groups: str = PID_1["v2"],
    file: str = "core_cpus_list",
    **files: str,
) -> dict[str, str]:
    """Return the files of a host from its cores (CPU lists), its NUMA nodes, and other files (`__` stands for `/`)."""
    tree = {
        "proc/1/cgroup": groups,
        "proc/1/status": f"Name:\tsystemd\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed or online}\n",
        "sys/devices/system/cpu/online": online + "\n",
        **{f"sys/devices/system/node/node{node}/cpulist": cpus + "\n" for node, cpus in (nodes or {}).items()},
        **{name.replace("__", "/"): text for name, text in files.items()},
    }
    if groups == PID_1["v2"]:
        tree["sys/fs/cgroup/cgroup.controllers"] = "cpuset cpu memory\n"
    for core in cores or []:
        for cpu in parse_cpu_list(core):
            tree[f"sys/devices/system/cpu/cpu{cpu}/topology/{file}"] = core + "\n"
    return tree


def plant(root: Path, tree: dict[str, str]) -> Path:
    for name, text in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


SMT = host("0-15", [f"{core},{core + 8}" for core in range(8)], {0: "0-15"})
AMPERE = host("0-127", None, {0: "0-63", 1: "64-127"})


def limited(groups: str = PID_1["v2"], **files: str) -> dict[str, str]:
    """Return a host with eight CPUs and files of control groups."""
    return host("0-7", groups=groups, **{f"sys__fs__cgroup__{name}": text + "\n" for name, text in files.items()})


def quota(**files: str) -> dict[str, str]:
    return limited(**{f"{name}cpu.max": f"{limit} 100000" for name, limit in files.items()})


def old_quota(group: str, limit: str) -> dict[str, str]:
    folder = f"cpu,cpuacct__{group}"
    files = {f"{folder}cpu.cfs_quota_us": limit, f"{folder}cpu.cfs_period_us": "100000"}
    return limited(PID_1["v1"], **files)


# The host, a part of it, the CPUs of that part, and how many threads it runs at full speed.
HOSTS: dict[str, tuple[dict[str, str], dict[str, Any], str, int]] = {
    "x86-8-cores-with-SMT": (SMT, {}, "0-15", 8),
    "x86-with-SMT-linux-4": (host("0-15", ["0,2", "1,3"], file="thread_siblings_list", allowed="0-3"), {}, "0-3", 2),
    "one-thread-of-each-core-is-a-core": ({**SMT, **host("0-15", allowed="0-3")}, {}, "0-3", 4),
    "both-threads-of-a-core-are-one": ({**SMT, **host("0-15", allowed="0,8")}, {}, "0,8", 1),
    "CPU-list": (SMT, {"cpu_affinity": "0-3 8-11"}, "0-3,8-11", 4),
    "Raspberry-Pi-without-NUMA": (host("0-3", [str(n) for n in range(4)]), {}, "0-3", 4),
    "Ampere-two-nodes": (AMPERE, {}, "0-127", 128),
    "Ampere-second-node": (AMPERE, {"numa_node": 1}, "64-127", 64),
    "node-and-CPU-list": (AMPERE, {"numa_node": 1, "cpu_affinity": "60-70"}, "64-70", 7),
    "offline-CPUs-do-not-count": (host("0,2", [str(n) for n in range(4)], allowed="0-3"), {}, "0,2", 2),
    "container-with-quota-of-1.5": (quota(**{"": "150000"}), {}, "0-7", 1),
    "quota-below-one": (quota(**{"": "50000"}), {}, "0-7", 1),
    "quota-above-the-cores": (quota(**{"": "6400000"}), {}, "0-7", 8),
    "quota-max-is-none": (quota(**{"": "max"}), {}, "0-7", 8),
    "quota-of-the-slice-of-services": (quota(**{"": "max", "system.slice__": "300000"}), {}, "0-7", 3),
    "smallest-quota-on-the-way": (quota(**{"": "200000", "system.slice__": "300000"}), {}, "0-7", 2),
    "quota-holds-for-a-part-too": (quota(**{"": "200000"}), {"cpu_affinity": "0-3"}, "0-3", 2),
    "quota-of-the-old-tree": (old_quota("docker__abc__", "250000"), {}, "0-7", 2),
    "no-quota-in-the-old-tree": (old_quota("", "-1"), {}, "0-7", 8),
    "CPU-set-of-the-slice-of-services": (
        limited(**{"cpuset.cpus.effective": "0-7", "system.slice__cpuset.cpus.effective": "4-7"}), {}, "4-7", 4
    ),
    "CPU-set-of-the-old-tree": (
        limited(PID_1["v1"], **{"cpuset__docker__abc__cpuset.effective_cpus": "0-1"}), {}, "0-1", 2
    ),
}  # fmt: skip


@pytest.mark.parametrize(("tree", "part", "cpus", "cores"), HOSTS.values(), ids=HOSTS.keys())
def test_cores_that_a_service_may_use(
    tree: dict[str, str], part: dict[str, Any], cpus: str, cores: int, tmp_path: Path
) -> None:
    topology = read_topology(plant(tmp_path, tree))
    chosen = topology.select(**part)
    assert (format_cpu_list(chosen), topology.count_cores(chosen)) == (cpus, cores)


def test_what_is_said_of_a_part_of_a_host(tmp_path: Path) -> None:
    topology = read_topology(
        plant(tmp_path, {**SMT, **quota(**{"": "200000"}), **host("0-15", None, {0: "0-15", 1: ""})})
    )
    part = {"cpus": "0-3", "physical_cores": 4, "usable_cores": 2, "problem": None}
    assert describe_set(topology, cpu_affinity="0-3") == part
    # A node of memory alone is none to compute on.
    found = describe_set(topology, numa_node=1)
    assert (found["physical_cores"], found["usable_cores"]) == (0, 0)
    assert "there is no NUMA node 1 on this host; there are: 0" in found["problem"]


BAD = {
    "no-such-node": ({"numa_node": 2}, "there is no NUMA node 2 on this host; there are: 0, 1"),
    "no-such-CPU": (
        {"cpu_affinity": "120-130"},
        "CPU 128-130 of the list '120-130' cannot .* usable are 0-127",
    ),
    "nothing-in-common": ({"numa_node": 0, "cpu_affinity": "64"}, "have none in common"),
    "no-list": ({"cpu_affinity": "a"}, "'a' is not a CPU list: write it like 0-3,8"),
    "backwards": ({"cpu_affinity": "3-1"}, "'3-1' is not a CPU list"),
    "huge": ({"cpu_affinity": "0-99999999999"}, "is not a CPU list"),
    "empty": ({"cpu_affinity": ""}, "no usable CPU is left"),
}


@pytest.mark.parametrize(("part", "said"), BAD.values(), ids=BAD.keys())
def test_a_part_that_does_not_exist_is_explained(part: dict[str, Any], said: str, tmp_path: Path) -> None:
    topology = read_topology(plant(tmp_path, AMPERE))
    with pytest.raises(CpuSetError, match=said):
        topology.select(**part)


def test_a_host_that_says_nothing_is_explained(tmp_path: Path) -> None:
    with pytest.raises(CpuSetError, match="is /proc mounted"):
        read_topology(tmp_path)


@pytest.mark.parametrize("text", ["", "0", "0-3", "0,2-3,8", "5-127"])
def test_cpu_lists_are_read_and_written_alike(text: str) -> None:
    assert format_cpu_list(parse_cpu_list(text)) == text
