# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the state of a cluster, from the reports of its workers and from the masters' view of them."""

from __future__ import annotations

DOCUMENTATION = r"""
name: cluster_status
short_description: Tell whether a cluster is healthy
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Joins what workers report about themselves with what masters see, and returns a sentence for each problem.
  - A worker that serves a client is healthy.
  - The playbook C(llama_cpp.cluster.verify) uses it.
positional: _input, seen
options:
  _input:
    description:
      - What each worker host reports, by its name.
      - The keys are its C(endpoints), the group of each as C(groups), C(failure) (why it could not be asked, or empty),
        C(servers) of M(llama_cpp.cluster.rpc_server_info), the result of M(llama_cpp.cluster.rpc_firewall_info) as
        C(firewall) (V(null) if the role does not manage it), the C(manifest) of its llama.cpp release, and
        C(unfinished) of M(llama_cpp.cluster.release_journal_info) as C(upgrade).
    type: dict
    required: true
  seen:
    description:
      - What each master sees, by the name of its host.
      - The keys are its C(group), C(workers) of M(llama_cpp.cluster.rpc_worker_info), C(manifest) and C(upgrade) of its
        own llama.cpp, and C(servers) of M(llama_cpp.cluster.llama_server_info) as C(services). With a tunnel, also
        C(links) of M(llama_cpp.cluster.rpc_tunnel_info), and the master's address in the tunnel as C(inside).
      - A master that could not be asked has no C(workers). C(failure) says why.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show whether the workers are healthy
  ansible.builtin.debug:
    msg: "{{ (looks | llama_cpp.cluster.cluster_status(seen)).table }}"
  vars:
    looks:
      worker1:
        endpoints: ["10.0.0.11:50052"]
        out: It cannot be reached over SSH.
    seen:
      master:
        workers:
          - {endpoint: "10.0.0.11:50052", state: refused, protocol: null, message: Nothing listens there.}
"""

RETURN = r"""
_value:
  description:
    - C(healthy), and C(problems) and C(notes), a sentence for each.
    - C(workers), each with its C(problems), C(repack) and C(cache), C(links) of the tunnel, each with its C(master),
      and C(services) of the masters, each with its C(host). While the cluster stays the same, only the time when a
      cache was last cleaned changes.
    - C(table), the status for people, as lines.
  type: dict
"""

from typing import Any, Callable, Mapping

from ansible_collections.llama_cpp.cluster.plugins.module_utils._status import cluster


def cluster_status(looks: Mapping[str, Mapping[str, Any]], seen: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of the cluster."""
    views = {
        name: view
        if "workers" in view
        else {"workers": [], **view, "failure": view.get("failure") or "It gave no answer."}
        for name, view in seen.items()
    }
    status = cluster.verify(looks, views)
    table = cluster.render_cluster(status["workers"]).split("\n")
    if status["links"]:
        table += ["", *cluster.render_links(status["links"]).split("\n")]
    if status["services"]:
        table += ["", *cluster.render_services(status["services"]).split("\n")]
    return {**status, "table": [*table, *status["problems"], *status["notes"]]}


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"cluster_status": cluster_status}
