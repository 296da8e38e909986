# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether hosts make a cluster, and how it is shown. Private to this collection; knows neither Ansible nor the network."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

from ansible_collections.llama_cpp.cluster.plugins.module_utils._report import render_table

# ggml/include/ggml-backend.h, GGML_SCHED_MAX_BACKENDS: 16 devices in one run, of which the master's CPU is one.
MAX_WORKERS = 15


def group_problems(masters: Sequence[str], workers: Sequence[str], master_group: str, worker_group: str) -> list[str]:
    """Return what is missing in the two groups of the inventory."""
    found = []
    if not masters:
        found.append(f"There is no master: put a host into the group {master_group} of the inventory.")
    if not workers:
        found.append(f"There are no workers: put at least one host into the group {worker_group} of the inventory.")
    return found


def twin_problems(places: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Say which hosts are another host under a second name; `places` are (host, where Ansible connects to)."""
    found: dict[str, str] = {}
    first: dict[str, str] = {}
    for host, place in places:
        other = first.setdefault(place.lower(), host)
        if other != host:
            found[host] = (
                f"{other} and {host} are the same host ({place}): keep one of the names, "
                "and give it rpc_server_instances if it is to run several workers."
            )
    return found


def endpoint_problems(endpoints: Iterable[tuple[str, str]]) -> list[str]:
    """Say which workers llama.cpp could not tell apart, and whether they are too many; `endpoints` are (host, host:port)."""
    found: list[str] = []
    owners: dict[str, str] = {}
    for host, endpoint in endpoints:
        other = owners.get(endpoint.lower())
        if other is None:
            owners[endpoint.lower()] = host
        else:
            whose = "" if host == other else f", of {other} and of {host}"
            found.append(f"{endpoint} is named twice as a worker{whose}: give each an address or a port of its own.")
    if len(owners) > MAX_WORKERS:
        found.append(
            f"There are {len(owners)} workers and llama.cpp takes at most {MAX_WORKERS} in one run: "
            f"leave out {', '.join(list(owners)[MAX_WORKERS:])}."
        )
    return found


def release_problems(releases: Mapping[str, Mapping[str, Any]], master: str) -> list[str]:
    """Say which hosts have another llama.cpp than the master, or none.

    A value is the release's manifest, or a dictionary whose one key `unknown` says why it could not be read.
    """
    found = []
    own = releases.get(master, {"unknown": "it was not asked"})
    for host in [master, *(name for name in releases if name != master)]:
        manifest = releases.get(host, own)
        reason = manifest.get("unknown")
        if reason is not None:
            found.append(
                f"Which llama.cpp {host} has is not known ({str(reason).strip().rstrip('.')}): "
                "install it there with the playbook site, or with the role llama_cpp."
            )
        elif "unknown" not in own and _source(manifest) != _source(own):
            found.append(
                f"{host} has llama.cpp {_shown(manifest)} and the master {master} has {_shown(own)}: "
                "install the same on both with the playbook site."
            )
    return found


def render_cluster(workers: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the workers of a verification."""
    header = ("worker", "endpoint", "service", "state", "protocol", "llama.cpp", "client", "well")
    rows = [
        [*(worker.get(key) for key in ("host", "endpoint", "service", "state", "protocol", "release")),
         ", ".join(worker.get("clients") or []) or None, "yes" if worker.get("well") else "NO"]
        for worker in workers
    ]  # fmt: skip
    return "Workers\n" + render_table(header, rows, left=len(header))


def _source(manifest: Mapping[str, Any]) -> str:
    """Return what the release was built from: the commit if it is known, else the digest of the source."""
    source = manifest.get("source") or {}
    return str(source.get("commit") or source.get("sha256") or manifest.get("id"))


def _shown(manifest: Mapping[str, Any]) -> str:
    return str(manifest.get("version") or _source(manifest)[:9])
