# SPDX-License-Identifier: GPL-3.0-or-later
"""The cores that a service of this host may really use. Private to this collection; may change at any time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Iterator

# The kernel's capacity describes integer work, but slow cores also have narrower vector units. With this exponent it
# fits the measured speed of llama.cpp with all cores, relative to the fast cores alone: RK3588, capacity 397 of 1024,
# 0.4 to 0.55 (ggml-org/llama.cpp#7176); M1, 459 of 1024, 0.5 (#34).
_SLOWER_THAN_CAPACITY = 1.5


class CpuSetError(ValueError):
    """An error about a CPU list or a part of the host that does not exist; the message is one sentence."""


@dataclass(frozen=True)
class Topology:
    """The kernel's data about the CPUs that a service of this host may run on."""

    cpus: frozenset[int]
    """CPUs that are online and in the CPU set of services."""
    cores: tuple[frozenset[int], ...]
    """The CPUs of each physical core, of those cores that have any in `cpus`."""
    nodes: dict[int, frozenset[int]]
    """The CPUs of each NUMA node, those outside of `cpus` left out; empty where the kernel knows no nodes."""
    quota: float | None
    """CPU time per time that services may use together, in CPUs; None if unlimited."""
    capacities: dict[int, int]
    """The speed of each of `cpus`, 1024 for the fastest of the host; empty where the kernel does not say."""

    def select(self, numa_node: int | None = None, cpu_affinity: str | None = None) -> frozenset[int]:
        """Return the usable CPUs of a node, of a CPU list, or of both."""
        chosen = self.cpus
        if numa_node is not None:
            if numa_node not in self.nodes:
                known = ", ".join(str(node) for node in sorted(self.nodes)) or "none"
                raise CpuSetError(f"there is no NUMA node {numa_node} on this host; there are: {known}")
            chosen &= self.nodes[numa_node]
        if cpu_affinity is not None:
            listed = parse_cpu_list(cpu_affinity)
            if not listed <= self.cpus:
                raise CpuSetError(
                    f"CPU {format_cpu_list(listed - self.cpus)} of the list {cpu_affinity!r} cannot be used on this "
                    f"host; usable are {format_cpu_list(self.cpus)}"
                )
            chosen &= listed
        if not chosen:
            raise CpuSetError("no usable CPU is left: the NUMA node and the CPU list have none in common")
        return chosen

    def count_cores(self, cpus: Iterable[int], listed: bool = False) -> int:
        """Return how many threads these CPUs can run at full speed: physical cores, at most the quota, at least 1.

        Cores that would slow down the others do not count, unless the user `listed` the CPUs.
        """
        wanted = frozenset(cpus)
        if not listed:
            wanted -= self.slow(wanted)
        cores = sum(1 for core in self.cores if core & wanted)
        return max(1, cores if self.quota is None else min(cores, int(self.quota)))

    def slow(self, cpus: Iterable[int]) -> frozenset[int]:
        """Return which of these CPUs would slow down the others, such as the little cores of a board.

        llama.cpp splits each step evenly and waits for the slowest core, so the total speed is the number of cores
        times the speed of the slowest.
        """
        wanted = frozenset(cpus)
        if not wanted or not wanted <= self.capacities.keys():
            return frozenset()
        cores = [max(self.capacities[cpu] for cpu in core & wanted) for core in self.cores if core & wanted]
        least = max(
            sorted(set(cores), reverse=True),  # max takes the first of equals: fewer cores that are faster
            key=lambda slowest: sum(1 for speed in cores if speed >= slowest) * slowest**_SLOWER_THAN_CAPACITY,
        )
        return frozenset(cpu for cpu in wanted if self.capacities[cpu] < least)


def read_topology(root: Path = Path("/")) -> Topology:
    """Read the topology from /proc and /sys below `root`."""
    groups = _control_groups(root)
    cpus = _allowed(root, groups)
    siblings = {_siblings(root, cpu) for cpu in cpus}
    nodes = {}
    for path in sorted((root / "sys/devices/system/node").glob("node[0-9]*")):
        usable = parse_cpu_list(_read(path / "cpulist")) & cpus
        if usable:  # a node may have memory only
            nodes[int(path.name[4:])] = usable
    quotas = list(_quotas(groups))
    return Topology(
        cpus=cpus,
        cores=tuple(sorted(siblings, key=min)),
        nodes=nodes,
        quota=min(quotas) if quotas else None,
        capacities=_capacities(root, cpus),
    )


def describe_set(topology: Topology, numa_node: int | None = None, cpu_affinity: str | None = None) -> dict[str, Any]:
    """Return what the modules report about a part of the host; if it does not exist, `problem` says so."""
    try:
        cpus = topology.select(numa_node, cpu_affinity)
    except CpuSetError as error:
        return {"cpus": "", "physical_cores": 0, "usable_cores": 0, "problem": str(error)}
    return {
        "cpus": format_cpu_list(cpus),
        "physical_cores": sum(1 for core in topology.cores if core & cpus),
        "usable_cores": topology.count_cores(cpus, listed=cpu_affinity is not None),
        "problem": None,
    }


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the CPUs of a list such as `0-3,8`; blanks also separate, as in systemd's CPUAffinity."""
    cpus: set[int] = set()
    for part in re.split(r"[,\s]+", text.strip()):
        if not part:
            continue
        found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part)
        if found is None or int(found.group(2) or found.group(1)) < int(found.group(1)):
            raise CpuSetError(f"{text!r} is not a CPU list: write it like 0-3,8")
        cpus.update(range(int(found.group(1)), int(found.group(2) or found.group(1)) + 1))
    return frozenset(cpus)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Return the shortest list of these CPUs, such as `0-3,8`."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _read(path: Path) -> str:
    """Return the text of a kernel file; empty if there is none."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _siblings(root: Path, cpu: int) -> frozenset[int]:
    """Return the CPUs of the physical core that this CPU belongs to."""
    folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    # Linux up to 5.2 has the second name. Some Arm and virtual machines have neither: each CPU counts as a core.
    listed = parse_cpu_list(_read(folder / "core_cpus_list") or _read(folder / "thread_siblings_list"))
    return listed | {cpu}


def _capacities(root: Path, cpus: Iterable[int]) -> dict[int, int]:
    """Return the speed of each CPU (Arm and RISC-V, Linux 4.14 and newer)."""
    said = {cpu: _read(root / f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity") for cpu in cpus}
    return {cpu: int(text) for cpu, text in said.items() if re.fullmatch(r"[0-9]{1,5}", text)}


def _control_groups(root: Path) -> dict[str, list[Path]]:
    """Return the folders of the control groups of systemd's services, by controller ("" is the unified tree).

    Services are below system.slice, beside the group of the first process (init.scope). The parent groups are included,
    because in a container they hold the limit of the whole container.
    """
    mount = root / "sys/fs/cgroup"
    found = {}
    for line in _read(root / "proc/1/cgroup").splitlines():
        controllers, path = line.split(":", 2)[1:]
        if controllers == "":
            base = mount if (mount / "cgroup.controllers").exists() else mount / "unified"
        elif "=" in controllers:
            continue
        else:
            base = next(
                (mount / name for name in (controllers, *controllers.split(",")) if (mount / name).is_dir()), mount
            )
        parts = [part for part in path.split("/") if part not in ("", "..")]
        if parts and parts[-1] == "init.scope":
            parts.pop()
        folders = [base.joinpath(*parts[:length]) for length in range(len(parts) + 1)]
        folders.append(folders[-1] / "system.slice")
        for controller in controllers.split(","):
            found[controller] = folders
    return found


def _allowed(root: Path, groups: dict[str, list[Path]]) -> frozenset[int]:
    """Return the CPUs that are online and that services may be scheduled on."""
    # Services inherit the affinity of the first process, set by isolcpus= or systemd's own settings.
    affinity = re.search(r"^Cpus_allowed_list:\s*(\S+)", _read(root / "proc/1/status"), re.MULTILINE)
    sets = [parse_cpu_list(affinity.group(1))] if affinity else []
    sets.append(parse_cpu_list(_read(root / "sys/devices/system/cpu/online")))
    for controller, name in (("", "cpuset.cpus.effective"), ("cpuset", "cpuset.effective_cpus")):
        sets.extend(parse_cpu_list(_read(folder / name)) for folder in groups.get(controller, []))
    known = [cpus for cpus in sets if cpus]  # a set is empty if its file is missing
    if not known:
        raise CpuSetError("the kernel does not say which CPUs this host has; is /proc mounted?")
    cpus = frozenset.intersection(*known)
    if not cpus:
        raise CpuSetError("services of this host may not run on any online CPU; see AllowedCPUs= of system.slice")
    return cpus


def _quotas(groups: dict[str, list[Path]]) -> Iterator[float]:
    """Yield each limit of CPU time that applies to the services, in CPUs."""
    for folder in groups.get("", []):
        limit, __, period = _read(folder / "cpu.max").partition(" ")
        if limit.isdigit() and period.isdigit() and int(period):
            yield int(limit) / int(period)
    for folder in groups.get("cpu", []):
        limit, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if limit.isdigit() and period.isdigit() and int(period):  # -1 is no limit
            yield int(limit) / int(period)
