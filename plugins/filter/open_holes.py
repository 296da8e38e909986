# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the known vulnerabilities of a build of llama.cpp."""

from __future__ import annotations

DOCUMENTATION = r"""
name: open_holes
short_description: List the known vulnerabilities of a build of llama.cpp
version_added: 0.4.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Judges a build by its source, its build number or its RPC protocol, the first of these that is known.
  - A build of a version that O(llama_cpp.cluster.llama_cpp#role:main:llama_cpp_version) accepts has none.
positional: _input
options:
  _input:
    description: The program, C(rpc-server) or C(llama-server). Another program has no known vulnerability.
    type: str
    required: true
  commit:
    description: The commit of its source, with at least 7 digits.
    type: str
    default: ""
  number:
    description: Upstream's build number; V(0) if it is not known.
    type: int
    default: 0
  protocol:
    description: The version of its RPC protocol.
    type: str
    default: ""
  options:
    description: The options that the program gets. Without this, a vulnerability that needs an option counts, too.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Refuse a build with a known vulnerability
  ansible.builtin.assert:
    that: holes.open | length == 0
    fail_msg: "It has {{ holes.open | map(attribute='cve') | join(', ') }}."
  vars:
    holes: "{{ 'rpc-server' | llama_cpp.cluster.open_holes(number=8492) }}"
"""

RETURN = r"""
_value:
  description:
    - The vulnerabilities that the build has (C(open)), that it may have (C(unknown)), and those of both that O(options)
      keep closed (C(idle)).
    - Each has its C(cve), the C(fixed_build) from which builds lack it, the C(option) that it needs, and whether it is
      C(serious), so that a client may run code.
  type: dict
"""

from dataclasses import asdict
from typing import Any, Callable, Sequence

from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.holes import holes_of


def open_holes(
    program: str, commit: str = "", number: int = 0, protocol: str = "", options: Sequence[str] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Return the vulnerabilities of a build, by how certain they are."""
    found = holes_of(program, commit, int(number), protocol, options)
    return {certainty: [asdict(hole) for hole in holes] for certainty, holes in found.items()}


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"open_holes": open_holes}
