# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the arguments of split_plan_info, from an inventory, the memory of its hosts and llama.cpp's options."""

from __future__ import annotations

DOCUMENTATION = r"""
name: split_plan_arguments
short_description: Make the options of split_plan_info for the workers of an inventory
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Turns endpoints of workers, C(/proc/meminfo) of their hosts and options of llama.cpp into options of the module
    P(llama_cpp.cluster.split_plan_info#module).
  - Workers of one host share its memory. The limit of a worker is C(rpc_server_memory_max) of its host, or
    C(memory_max) of its instance.
  - If groups share a host, each worker there has a share of its memory. The share is the worker's limit. Workers
    without a limit get equal parts of the rest. The part of their shares that workers of other groups do not use
    yet is not available.
  - If there can be no plan, because the memory of a worker is unknown, C(skipped) gives the reason.
positional: _input, hostvars
options:
  _input:
    description: The workers' endpoints, in the order in which they get layers.
    type: list
    elements: str
    required: true
  hosts:
    description: The inventory hosts that the workers are on.
    type: list
    elements: str
    default: []
  meminfo:
    description:
      - The text of C(/proc/meminfo) by host, for the hosts where it is known.
      - An additional line C(llama-rpc-server@PORT) in the same form contains the memory that a worker holds.
    type: dict
    default: {}
  given:
    description: The available memory of workers, in bytes by endpoint. It replaces what O(meminfo) says.
    type: dict
    default: {}
  master:
    description: The inventory host that is the master.
    type: str
  statuses:
    description: The workers as M(llama_cpp.cluster.rpc_worker_info) returns them.
    type: list
    elements: dict
    default: []
  extra_args:
    description: More options for llama.cpp.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - llama_cpp.cluster.inventory_hosts
"""

EXAMPLES = r"""
# Role inference reads /proc/meminfo of the hosts; here it is told.
- name: Show the input of the plan
  ansible.builtin.debug:
    msg: >-
      {{ groups['llama_workers'] | llama_cpp.cluster.rpc_endpoints(hostvars)
         | llama_cpp.cluster.split_plan_arguments(hostvars, hosts=groups['llama_workers'], meminfo=memory) }}
  vars:
    memory:
      worker1: |
        MemTotal:       16316412 kB
        MemAvailable:   15031200 kB
"""

RETURN = r"""
_value:
  description: C(workers), C(master_memory_available_bytes), C(master_host), C(batch_size), C(ubatch_size),
    C(cache_type_k), C(cache_type_v), C(flash_attn) and C(split_mode) in the form of M(llama_cpp.cluster.llama_bench)
    (each V(null) if it is not set). C(left) has a sentence for each host that groups share, with the memory that is
    left to the other groups. C(skipped) is a sentence with the reason if there can be no plan, and empty otherwise.
  type: dict
"""

import re
from typing import Any, Callable, Mapping, Sequence

from ansible_collections.llama_cpp.cluster.plugins.filter.rpc_endpoints import rpc_endpoints
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.hints import in_words
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.options import named_options

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_LIMIT = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?|%)B?", re.IGNORECASE)


class _SkippedError(Exception):
    """The reason why there is no plan, as the end of a sentence."""


def _meminfo(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    if not found:
        raise _SkippedError(f"/proc/meminfo has no {name}")
    return int(found.group(1)) << 10


def _limit(text: object, total: int) -> int | None:
    """Return a service's MemoryMax in bytes, as systemd reads it (systemd.resource-control)."""
    words = str(text or "").strip()
    if words in ("", "infinity"):
        return None
    found = _LIMIT.fullmatch(words)
    if not found:
        raise _SkippedError(f"rpc_server_memory_max {words} is not a size")
    number, unit = float(found.group(1)), found.group(2).upper()
    return int(number * total / 100) if unit == "%" else int(number * _UNITS[unit])


def _places(hosts: Sequence[str], hostvars: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the workers of these hosts by their endpoints, each with its memory limit in the inventory."""
    found: dict[str, dict[str, Any]] = {}
    for host in hosts:
        variables = hostvars[host]
        own = variables.get("rpc_server_instances") or [{}]
        for worker, instance in zip(rpc_endpoints([host], hostvars, details=True), own):
            limit = instance.get("memory_max") or variables.get("rpc_server_memory_max")
            found[worker["endpoint"]] = {**worker, "limit": limit}
    return found


def _left(workers: Sequence[Mapping[str, Any]], groups: set[str], text: str) -> dict[str, int]:
    """Return the bytes that the workers of other groups on a host may still take, by group."""
    others = [worker for worker in workers if worker["group"] not in groups]
    if not others:
        return {}
    held = {
        worker["port"]: _meminfo(text, f"llama-rpc-server@{worker['port']}")
        for worker in workers
        if f"llama-rpc-server@{worker['port']}:" in text
    }
    limits = {worker["port"]: _limit(worker["limit"], _meminfo(text, "MemTotal")) for worker in workers}
    given = [limit for limit in limits.values() if limit is not None]
    all_together = _meminfo(text, "MemAvailable") + sum(held.values())
    part = max(0, all_together - sum(given)) // max(1, len(limits) - len(given))
    found: dict[str, int] = {}
    for worker in others:
        limit = limits[worker["port"]]
        more = (part if limit is None else limit) - held.get(worker["port"], 0)
        found[worker["group"]] = found.get(worker["group"], 0) + max(0, more)
    return found


def _workers(
    endpoints: Sequence[str],
    places: Mapping[str, Mapping[str, Any]],
    meminfo: Mapping[str, str],
    given: Mapping[str, Any],
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the workers as the module takes them, and a sentence for each host that other groups share."""
    workers: list[dict[str, Any]] = []
    sentences: dict[str, str] = {}
    for endpoint in endpoints:
        worker: dict[str, Any] = {"endpoint": endpoint}
        if endpoint in given:
            worker["memory_available_bytes"] = int(given[endpoint])
        elif endpoint in places:
            host = places[endpoint]["host"]
            if host not in meminfo:
                raise _SkippedError(f"the memory of host {host} could not be read")
            on_host = [place for place in places.values() if place["host"] == host]
            own = {place["group"] for place in on_host if place["endpoint"] in endpoints}
            left = _left(on_host, own, meminfo[host])
            if left:
                sentences[host] = _sentence(host, left)
            available = _meminfo(meminfo[host], "MemAvailable")
            worker["memory_available_bytes"] = max(0, available - sum(left.values()))
            worker["memory_max_bytes"] = _limit(places[endpoint]["limit"], _meminfo(meminfo[host], "MemTotal"))
            worker["host"] = host
        else:
            raise _SkippedError(
                f"worker {endpoint} is not a host of the inventory, so its memory is not known "
                "(set inference_worker_memory_bytes)"
            )
        workers.append(worker)
    return workers, list(sentences.values())


def _sentence(host: str, left: Mapping[str, int]) -> str:
    parts = " and ".join(f"{in_words(size)} to group {group}" for group, size in left.items())
    return (
        f"On {host} the plan leaves {parts}, which shares that host: "
        "memory_max in rpc_server_instances says how much each may take."
    )


def split_plan_arguments(
    endpoints: Sequence[str],
    hostvars: Mapping[str, Any],
    hosts: Sequence[str] = (),
    meminfo: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
    master: str | None = None,
    statuses: Sequence[Mapping[str, Any]] = (),
    extra_args: Sequence[str] = (),
) -> dict[str, Any]:
    """Return options of the module, or the reason why there are none."""
    result: dict[str, Any] = {
        "workers": [],
        "master_memory_available_bytes": None,
        "master_host": master,
        **named_options(extra_args),
        "left": [],
        "skipped": "",
    }
    texts = meminfo or {}
    devices = {it["endpoint"]: len(it.get("devices") or []) for it in statuses if "endpoint" in it}
    try:
        result["workers"], result["left"] = _workers(endpoints, _places(hosts, hostvars), texts, given or {})
        for worker in result["workers"]:
            if devices.get(worker["endpoint"], 1) > 1:
                worker["devices"] = devices[worker["endpoint"]]
        if master in texts:
            result["master_memory_available_bytes"] = _meminfo(texts[str(master)], "MemAvailable")
    except _SkippedError as reason:
        result["skipped"] = f"The model is not planned before it is loaded, since {reason}."
    return result


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"split_plan_arguments": split_plan_arguments}
