#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: which cores a service of this host may really use."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cpu_topology_info
short_description: Which CPU cores a service may really use
version_added: 0.1.0
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Counts physical cores, not the threads that share one (SMT, Hyper-Threading), of those CPUs that systemd's services
    may run on, and no more than their limit of CPU time allows.
  - The CPU set is what the first process of the host and the control group C(system.slice) are allowed; the limit is
    the smallest C(cpu.max) (or C(cpu.cfs_quota_us)) of the control groups above a service, such as that of a container.
  - Where cores differ in speed, as on Arm boards with big and little ones, those are left out that would hold up the
    others, by C(cpu_capacity) of the kernel. Each step of llama.cpp is split evenly and waits for the slowest core, so
    the number of cores times the speed of the slowest is made as large as it can be.
  - Of the CPUs that O(sets[].cpu_affinity) lists all cores count, since a person chose them.
  - A service with as many threads as there are fast cores need not be pinned to them, since the kernel moves threads
    that are always busy there; pin it where other work competes for them.
  - It reads C(/proc) and C(/sys) only, and needs no privileges.
options:
  sets:
    description:
      - Parts of the host to count the cores of, each the CPUs of a NUMA node, of a list, or those that are in both.
      - An empty dictionary stands for the whole host.
    type: list
    elements: dict
    default: [{}]
    suboptions:
      numa_node:
        description: The number of a NUMA node.
        type: int
      cpu_affinity:
        description: A list of CPUs as systemd's C(CPUAffinity) takes it, such as V(0-15,32-47).
        type: str
extends_documentation_fragment:
  - llama_cpp.cluster.reads_only
notes:
  - A set that does not exist is no failure of the module; RV(sets[].problem) says what is wrong with it.
"""

EXAMPLES = r"""
- name: The cores of the host and of its first NUMA node are known
  llama_cpp.cluster.cpu_topology_info:
    sets: [{}, {numa_node: 0}]
  register: topology

- name: They are shown
  ansible.builtin.debug:
    msg: "{{ topology.sets | map(attribute='usable_cores') }}"
"""

RETURN = r"""
cpus:
  description: The CPUs that services may run on.
  returned: success
  type: str
  sample: 0-15
physical_cores:
  description: How many physical cores these CPUs are.
  returned: success
  type: int
slow_cpus:
  description: The CPUs of cores that are too slow to be of use beside the others; empty if all are of one kind.
  returned: success
  type: str
quota_cpus:
  description: The limit of CPU time, in CPUs; V(null) if there is none.
  returned: success
  type: float
numa_nodes:
  description: The CPUs of each NUMA node that has usable ones; empty where the kernel knows no nodes.
  returned: success
  type: list
  elements: dict
  contains:
    node:
      description: The number of the node.
      type: int
    cpus:
      description: Its usable CPUs.
      type: str
      sample: 0-15
sets:
  description: What was found for each of O(sets), in their order.
  returned: success
  type: list
  elements: dict
  contains:
    cpus:
      description: The usable CPUs of the set.
      type: str
      sample: 0-15
    usable_cores:
      description: How many threads they run at full speed, physical cores that are fast enough, within the limit of CPU
        time; 0 if there is a problem.
      type: int
    problem:
      description: One sentence about what is wrong with the set; V(null) if nothing is.
      type: str
      sample: "there is no NUMA node 2 on this host; there are: 0, 1"
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.cpu_topology import (
    CpuSetError,
    describe_set,
    format_cpu_list,
    read_topology,
)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "sets": {
                "type": "list",
                "elements": "dict",
                "default": [{}],
                "options": {"numa_node": {"type": "int"}, "cpu_affinity": {"type": "str"}},
            }
        },
        supports_check_mode=True,
    )
    try:
        topology = read_topology()
    except CpuSetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=False,
        cpus=format_cpu_list(topology.cpus),
        physical_cores=len(topology.cores),
        slow_cpus=format_cpu_list(topology.slow(topology.cpus)),
        quota_cpus=topology.quota,
        numa_nodes=[{"node": node, "cpus": format_cpu_list(cpus)} for node, cpus in sorted(topology.nodes.items())],
        sets=[describe_set(topology, **wanted) for wanted in module.params["sets"]],
    )


if __name__ == "__main__":
    main()
