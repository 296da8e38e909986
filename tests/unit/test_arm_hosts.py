# SPDX-License-Identifier: GPL-3.0-or-later
"""The threads and the builds for real Arm hosts (tests/fixtures/arm_hosts)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.cpu_topology import (
    Topology,
    format_cpu_list,
    parse_cpu_list,
    read_topology,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.cpu_class import cpu_class
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = sorted((ROOT / "tests/fixtures/arm_hosts").glob("*.yml"))
HOSTS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in FIXTURES}
every_host = pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS.keys())


def cpuinfo(host: dict[str, Any]) -> str:
    """Return /proc/cpuinfo as the kernel writes it on arm64."""
    kinds = {cpu: kind for kind in host["cpuinfo"] for cpu in parse_cpu_list(str(kind["cpus"]))}
    assert sorted(kinds) == list(range(host["cpus"])), "a CPU is not described, or twice"
    text = ""
    for cpu, kind in sorted(kinds.items()):
        implementer, part = kind["part"].split("/")
        text += (
            f"processor\t: {cpu}\nBogoMIPS\t: 100.00\nFeatures\t: {kind['features'].strip()}\n"
            f"CPU implementer\t: {implementer}\nCPU architecture: 8\nCPU part\t: {part}\n\n"
        )
    return text


def plant(root: Path, host: dict[str, Any], files: dict[str, str] | None = None) -> Path:
    """Write /proc and /sys of a host."""
    online = format_cpu_list(range(host["cpus"]))
    tree = {
        "proc/cpuinfo": cpuinfo(host),
        "proc/1/cgroup": "0::/init.scope\n",
        "proc/1/status": f"Cpus_allowed_list:\t{online}\n",
        "sys/devices/system/cpu/online": f"{online}\n",
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu\n",
        **{f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list": f"{cpu}\n" for cpu in range(host["cpus"])},
        **{f"sys/devices/system/node/node{node}/cpulist": f"{cpus}\n" for node, cpus in host["nodes"].items()},
        **{
            f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity": f"{capacity}\n"
            for cpus, capacity in host.get("cpu_capacity", {}).items()
            for cpu in parse_cpu_list(cpus)
        },
        **(files or {}),
    }
    for name, text in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def look(root: Path) -> dict[str, Any]:
    """Return what the role finds in /proc/cpuinfo of a host."""
    text = (root / "proc/cpuinfo").read_text()
    return {
        "machine": "aarch64",
        "cpu": re.search(r"^Features.*", text, re.MULTILINE).group(),
    }


def threads(topology: Topology, **part: Any) -> int:
    return topology.count_cores(topology.select(**part), listed="cpu_affinity" in part)


@every_host
def test_as_many_threads_as_cores_that_are_of_use(host: dict[str, Any], tmp_path: Path) -> None:
    topology = read_topology(plant(tmp_path, host))
    assert format_cpu_list(topology.cpus) == format_cpu_list(range(host["cpus"]))
    assert len(topology.cores) == host["cpus"], "there is no SMT on these"
    assert threads(topology) == host["expect"]["threads"]


@every_host
def test_class(host: dict[str, Any], tmp_path: Path) -> None:
    found = cpu_class(**look(plant(tmp_path, host)))
    assert found["name"] == host["expect"]["class"]


@every_host
def test_a_node_has_the_threads_of_its_cores(host: dict[str, Any], tmp_path: Path) -> None:
    topology = read_topology(plant(tmp_path, host))
    with_cpus = {node: len(parse_cpu_list(cpus)) for node, cpus in host["nodes"].items() if cpus}
    assert {node: threads(topology, numa_node=node) for node in topology.nodes} == with_cpus


def test_no_role_relies_on_facts_of_processors() -> None:
    """Ansible counts one core for each socket if /proc/cpuinfo has no `physical id`, as on Arm."""
    assert HOSTS["esxi-vm-of-two"]["facts"]["processor_cores"] != HOSTS["esxi-vm-of-two"]["expect"]["threads"]
    files = [
        path
        for folder in ("roles", "playbooks")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".yml", ".j2")
    ]
    assert files
    assert [str(path) for path in files if re.search(r"processor_(cores|count|vcpus|nproc)", path.read_text())] == []


RK3588 = HOSTS["rk3588-rock-5b"]
GRAVITON3 = HOSTS["graviton3-c7g.2xlarge"]
SLICE = "sys/fs/cgroup/system.slice/"

# A host, the limits of its services, the requested part, and the threads.
LIMITED: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, Any], int]] = {
    "virtual-machine-with-a-quota": (GRAVITON3, {"sys/fs/cgroup/cpu.max": "250000 100000\n"}, {}, 2),
    "quota-of-services": (GRAVITON3, {SLICE + "cpu.max": "600000 100000\n"}, {}, 6),
    "CPU-set-of-services": (GRAVITON3, {SLICE + "cpuset.cpus.effective": "4-7\n"}, {}, 4),
    "quota-below-the-fast-cores": (RK3588, {"sys/fs/cgroup/cpu.max": "300000 100000\n"}, {}, 3),
    "quota-above-the-fast-cores": (RK3588, {"sys/fs/cgroup/cpu.max": "600000 100000\n"}, {}, 4),
    "slow-cores-alone": (RK3588, {SLICE + "cpuset.cpus.effective": "0-3\n"}, {}, 4),
    "two-fast-cores-and-the-slow-ones": (RK3588, {SLICE + "cpuset.cpus.effective": "0-5\n"}, {}, 2),
    "listed-fast-cores": (RK3588, {}, {"cpu_affinity": "4-7"}, 4),
    "listed-slow-cores": (RK3588, {}, {"cpu_affinity": "0-3"}, 4),
    "all-cores-listed-by-a-person": (RK3588, {}, {"cpu_affinity": "0-7"}, 8),
    "fast-cores-off-line": (RK3588, {"sys/devices/system/cpu/online": "0-3\n"}, {}, 4),
}


@pytest.mark.parametrize(("host", "files", "part", "expected"), LIMITED.values(), ids=LIMITED.keys())
def test_limits_of_services(
    host: dict[str, Any], files: dict[str, str], part: dict[str, Any], expected: int, tmp_path: Path
) -> None:
    assert threads(read_topology(plant(tmp_path, host, files)), **part) == expected


def topology_of(capacities: list[int]) -> Topology:
    cpus = range(len(capacities))
    return Topology(
        cpus=frozenset(cpus),
        cores=tuple(frozenset([cpu]) for cpu in cpus),
        nodes={},
        quota=None,
        capacities=dict(enumerate(capacities)),
    )


# The speed of each core, and how many of the fastest are used.
SPEEDS = {
    "all-alike": ([1024] * 64, 64),
    # https://lore.kernel.org/lkml/20240820163512.1096301-1-qyousef@layalina.io/ and ggml-org/llama.cpp#34
    "M1": ([459] * 4 + [1024] * 4, 4),
    "RK3588-whose-frequencies-the-kernel-does-not-know": ([530] * 4 + [1024] * 4, 4),
    "bins-of-one-kind": ([1024] * 2 + [984] * 10, 12),
    "middle-cores-are-of-use": ([330] * 4 + [870] * 3 + [1024], 4),
    "one-big-core-is-less-than-five": ([512] * 4 + [1024], 5),
    "two-kinds-that-are-close": ([700] * 10 + [1024] * 10, 20),
    "kernel-that-does-not-say": ([], 0),
    "nonsense": ([0, 0, 0], 3),
}


@pytest.mark.parametrize(("capacities", "used"), SPEEDS.values(), ids=SPEEDS.keys())
def test_cores_that_would_hold_up_the_others_are_left_out(capacities: list[int], used: int) -> None:
    topology = topology_of(capacities)
    assert topology.count_cores(topology.cpus) == max(1, used)
    slow = topology.slow(topology.cpus)
    assert len(slow) == len(capacities) - used
    assert all(capacities[cpu] < min(capacities[core] for core in topology.cpus - slow) for cpu in slow)


@given(st.lists(st.integers(0, 99999), min_size=1, max_size=40))
@settings(deadline=None)
def test_a_core_is_always_left(capacities: list[int]) -> None:
    topology = topology_of(capacities)
    fast = topology.cpus - topology.slow(topology.cpus)
    assert 1 <= topology.count_cores(topology.cpus) == len(fast)
    assert max(capacities) in {capacities[cpu] for cpu in fast}


@pytest.mark.parametrize("text", ["", "-1", "fast", "1024 1024", "9" * 30])
def test_a_speed_that_is_none_is_none(text: str, tmp_path: Path) -> None:
    files = {f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity": f"{text}\n" for cpu in range(4)}
    assert threads(read_topology(plant(tmp_path, RK3588, files))) == 8
