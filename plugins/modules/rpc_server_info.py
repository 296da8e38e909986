#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: reports the programs that listen on the RPC ports of this host, and their clients."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rpc_server_info
short_description: Show who listens on the RPC ports of a host, and whom it serves
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Returns which process and which systemd unit listen on each port, and which clients are connected. It reads this
    from C(/proc). It also returns how many weights the worker says it has repacked.
  - Returns what is in the tensor cache of each worker that runs as a service.
  - It makes no connection, unless O(ask) is set. A connection to a worker that serves a client would wait in the
    worker's queue until that client is gone.
  - To see what workers answer to other hosts, use M(llama_cpp.cluster.rpc_worker_info).
  - It can also return what else the role P(llama_cpp.cluster.rpc_server#role) has put on the host. One call for
    everything saves seconds on a slow host.
options:
  ports:
    description: The TCP ports.
    type: list
    elements: int
    required: true
  units:
    description: Whether to look at the units C(llama-rpc-server@PORT.service) in C(/etc/systemd/system) and their ports
      too, and at the units that write metrics.
    type: bool
    default: false
  prefix:
    description: The folder of the releases that the role P(llama_cpp.cluster.llama_cpp#role) has installed. If set, the
      module returns the release in use.
    type: path
  account:
    description: The name of an account to look at.
    type: str
  sets:
    description:
      - Parts of the host whose cores to count, each the CPUs of a NUMA node, of a list, or of both. An
        empty dictionary stands for the whole host.
      - The module counts physical cores, not their threads (SMT, Hyper-Threading), among the CPUs that systemd's
        services may use. These are the CPUs that the first process of the host and C(system.slice) may use.
      - The limit of CPU time is the smallest C(cpu.max) (or C(cpu.cfs_quota_us)) of the control groups above a service,
        such as that of a container.
      - If cores differ in speed (C(cpu_capacity) of the kernel), such as big and little cores of Arm boards, those that
        would delay the others do not count. llama.cpp splits each step evenly, and waits for the slowest core.
      - All CPUs that O(sets[].cpu_affinity) lists count, because a person chose them.
    type: list
    elements: dict
    default: []
    suboptions:
      numa_node:
        description: The number of a NUMA node.
        type: int
      cpu_affinity:
        description: A list of CPUs as systemd's C(CPUAffinity) takes it, such as V(0-15,32-47).
        type: str
  ask:
    description: Whether to ask servers of units at protocol level whether they are ready, like
      M(llama_cpp.cluster.rpc_worker_info), for at most a second. The module does not ask servers with a client or a
      waiting client.
    type: bool
    default: false
extends_documentation_fragment:
  - llama_cpp.cluster.reads_only
notes:
  - Without root, processes of other users are unknown. Unknown values are V(null).
  - The module sees only its own network namespace, not that of a container.
"""

EXAMPLES = r"""
- name: Read the clients of the worker
  llama_cpp.cluster.rpc_server_info:
    ports: [50052]
  register: worker
  become: true

- name: Check that no client uses the worker
  ansible.builtin.assert:
    that: worker.servers[0].clients | length == 0
    fail_msg: "The worker serves {{ worker.servers[0].clients | join(', ') }}."
"""

RETURN = r"""
servers:
  description: The state of each of O(ports), in order, and then of the other ports of RV(units).
  returned: success
  type: list
  elements: dict
  contains:
    port:
      description: The port.
      type: int
    listeners:
      description:
        - The sockets that listen on it; there can be one for each address. Each has its C(address), the C(pid) and the
          path of the C(program) of its process, and the systemd C(unit) that it belongs to, V(null) if to none.
        - C(unit_digest) is the value of E(LLAMA_CPP_CLUSTER_UNIT) in the environment of the process, a digest of the
          unit that it was started with.
      type: list
      elements: dict
    clients:
      description: Connections that the server has accepted, each as C(address:port).
      type: list
      elements: str
    waiting:
      description: Connections that the server has not accepted yet, each as C(address:port). A worker serves one client
        at a time.
      type: list
      elements: str
    state:
      description: The state from its answer, as in M(llama_cpp.cluster.rpc_worker_info), such as V(ready); V(null) if
        it was not asked.
      type: str
    repack:
      description:
        - What the service C(llama-rpc-server@PORT) reports about weights that it has repacked for faster kernels, in
          the current load or the last one. V(null) if it reports nothing, as stock upstream does.
        - Whether it repacks weights (C(enabled)), see O(llama_cpp.cluster.rpc_server#role:main:rpc_server_environment),
          and whether there are C(kernels) for its CPU. C(weights) of C(of_weights) that it multiplies with, of all
          types, are repacked, C(mib) of C(of_mib).
      type: dict
    cache:
      description:
        - The tensor cache of the service C(llama-rpc-server@PORT). V(null) if there is no such cache.
        - Its C(folder), the number of C(entries) and their C(bytes), and C(free_bytes) of its disk (V(null) if the
          folder does not exist yet).
        - The last report of the service C(llama-rpc-cache@PORT), which tidies it, each V(null) if it never did. It may
          hold C(max_bytes) (V(null) also without a limit), C(min_free_bytes) of its disk stay free, and it was
          C(tidied_at) so many seconds since 1970. C(corrupted) entries were damaged and are removed, and C(evicted)
          because of the limits.
        - C(kept_since) is the time at which the timer that tidies it was made; V(null) if there is none.
      type: dict
units:
  description:
    - The units that are there, by port, each with its C(name), the C(port) in it, whether it starts with the host
      (C(enabled)), and the C(sha256) digest of its file, V(null) if that is not a file of root with mode 0644, such as
      the link of a masked unit.
    - C(running) says whether a process of the unit listens on the port, was started with this file, and with O(prefix)
      runs a program of the release in use.
  returned: with O(units)
  type: list
  elements: dict
metrics:
  description:
    - The C(units) that write metrics for Prometheus' node_exporter; V(null) if there are none. After an interrupted
      run, there may be only one of the two.
    - C(folder) has the link to them, see O(llama_cpp.cluster.rpc_server#role:main:rpc_server_metrics_folder).
  returned: with O(units)
  type: dict
caches:
  description: The names of the tensor caches in C(/var/cache/llama_cpp), also of those that no worker uses any more. A
    name is C(rpc), or a port if the host has several workers.
  returned: with O(units)
  type: list
  elements: str
timed_units:
  description:
    - The services that maintain workers, and their timers; those of the host first (C(port) is 0), then by port.
    - Each has a C(name) and a C(sha256) as in RV(units). It is C(active) if systemd has loaded the current file and,
      for a timer, if it runs and starts with the host.
  returned: with O(units)
  type: list
  elements: dict
release:
  description:
    - The C(id) of the release in use (V(null) if there is none), and whether its C(rpc-server) (C(program)) and its
      C(rpc-cache), which cleans the tensor cache (C(cache_program)), can be run.
    - C(upgrade) says whether an upgrade to or from it has not ended; see M(llama_cpp.cluster.release_journal_info).
  returned: with O(prefix)
  type: dict
account:
  description: The C(uid) of the account and its C(comment) (the GECOS field); V(null) if there is none of that name.
  returned: with O(account)
  type: dict
cores:
  description:
    - The result for each of O(sets), in order. Its usable C(cpus), such as V(0-15), how many C(physical_cores) they
      are, and a sentence as C(problem) if something is wrong with the set, or else V(null).
    - C(usable_cores) is how many threads run at full speed on them. These are the physical cores that are fast enough,
      within the limit of CPU time. Both numbers are 0 if there is a problem.
  returned: with O(sets)
  type: list
  elements: dict
"""

import re
from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.cpu_topology import (
    CpuSetError,
    describe_set,
    read_topology,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.endpoint import Endpoint
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.listeners import Port, look_at_ports
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.prober import probe
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.units import (
    Unit,
    read_account,
    read_cache,
    read_caches,
    read_metrics,
    read_release,
    read_repack,
    read_timed_units,
    read_units,
)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "ports": {"type": "list", "elements": "int", "required": True},
            "units": {"type": "bool", "default": False},
            "prefix": {"type": "path"},
            "account": {"type": "str"},
            "sets": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {"numa_node": {"type": "int"}, "cpu_affinity": {"type": "str"}},
            },
            "ask": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    ports = list(params["ports"])
    wrong = [port for port in ports if not 1 <= port <= 65535]
    if wrong:
        module.fail_json(msg=f"ports: {wrong[0]} is not a number from 1 to 65535")
    units = read_units() if params["units"] else []
    ports += [unit.port for unit in units if unit.port not in ports]
    looked = look_at_ports(ports)
    found: dict[str, Any] = {}
    if params["prefix"]:
        found["release"] = read_release(params["prefix"])
    if params["account"]:
        found["account"] = read_account(params["account"])
    if params["sets"]:
        try:
            topology = read_topology()
        except CpuSetError as error:
            module.fail_json(msg=str(error))
        found["cores"] = [describe_set(topology, **wanted) for wanted in params["sets"]]
    if params["units"]:
        timed = read_timed_units()
        said = _said_by_systemd(module, [*units, *timed])
        release = found["release"]["id"] if params["prefix"] else None
        by_port = {port.port: port for port in looked}
        found["units"] = [
            {
                **_file(unit),
                "enabled": _is_enabled(said[unit.name]),
                "running": is_running(unit, by_port[unit.port], release),
            }
            for unit in units
        ]
        found["metrics"] = read_metrics()
        found["caches"] = read_caches()
        found["timed_units"] = [{**_file(unit), "active": _is_active(unit, said[unit.name])} for unit in timed]
    states = _ask([port for port in looked if params["ask"]])
    servers = [
        {
            **asdict(port),
            "state": states.get(port.port),
            "repack": read_repack(port.port),
            "cache": read_cache(port.port),
        }
        for port in looked
    ]
    module.exit_json(changed=False, servers=servers, **found)


def _ask(ports: list[Port]) -> dict[int, str]:
    """Return the states of units' servers without clients; at a used server, the probe would wait in the queue."""
    free = [
        # A server that listens on all addresses also listens here.
        Endpoint("127.0.0.1" if listener.address == "0.0.0.0" else listener.address, port.port)  # noqa: S104
        for port in ports
        if not port.clients and not port.waiting
        for listener in port.listeners
        if listener.unit == f"llama-rpc-server@{port.port}.service"
    ]
    return {status.port: status.state for status in probe(free, timeout=1)}


def _said_by_systemd(module: AnsibleModule, units: list[Unit]) -> dict[str, dict[str, str]]:
    """Return systemd's properties of each of these units, by its name; none if systemd does not answer."""
    said: dict[str, dict[str, str]] = {unit.name: {} for unit in units}
    systemctl = module.get_bin_path("systemctl")
    if not units or systemctl is None:
        return said
    properties = ["--property=Id", "--property=NeedDaemonReload", "--property=ActiveState", "--property=UnitFileState"]
    for block in module.run_command([systemctl, "show", *properties, *said])[1].split("\n\n"):
        one = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        said[one.get("Id", "")] = one
    return said


def _file(unit: Unit) -> dict[str, Any]:
    return {"name": unit.name, "port": unit.port, "sha256": unit.sha256 if unit.of_root else None}


def is_running(unit: Unit, port: Port, release: str | None) -> bool:
    """Return whether a process of the unit listens, was started with the present file, and runs this release, if any.

    A process that started while `current` led elsewhere runs another release, although its unit is the same.
    """
    own = [listener for listener in port.listeners if listener.unit == unit.name]
    programs = [name for listener in own for name in re.findall("/releases/([^/]+)/bin/", listener.program or "")]
    return (
        unit.mark is not None
        and unit.mark in [listener.unit_digest for listener in own]
        and (release is None or all(program == release for program in programs))
    )


def _is_enabled(said: dict[str, str]) -> bool:
    return said.get("UnitFileState") == "enabled"


def _is_active(unit: Unit, said: dict[str, str]) -> bool:
    """Return whether systemd has read a unit's present file; for a timer also whether it runs and is enabled."""
    runs = said.get("ActiveState") == "active" and _is_enabled(said)
    return said.get("NeedDaemonReload") == "no" and (runs or not unit.name.endswith(".timer"))


if __name__ == "__main__":
    main()
