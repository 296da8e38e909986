# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: which known holes a build of llama.cpp has, by what is known of it."""

from __future__ import annotations

DOCUMENTATION = r"""
name: remote_holes
short_description: Which known holes a build of llama.cpp has
version_added: 0.1.0
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Tells which of some holes a build of llama.cpp has, which it has not, and of which that cannot be told from what is
    known of it.
  - A list of holes that was made by a look at the source counts most, then the number of the build, then its RPC
    protocol.
  - Role P(llama_cpp.cluster.llama_cpp#role) refuses builds by it; the holes are in its C(vars/main.yml).
positional: _input, build
options:
  _input:
    description:
      - The holes, each a dictionary with its C(cve) and its C(fixed_build), the number of the first build of upstream
        without it.
      - Optionally C(open_below) and C(closed_from), RPC protocols below and from which it is surely there or not there.
        Of protocols the first number is compared.
    type: list
    elements: dict
    required: true
  build:
    description:
      - What is known of the build, all of it optional.
      - C(holes), the names of those that its source has by a look at it, C(number), its number, and C(protocol), such
        as V(7.0.0).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Is it safe to let a network reach it?
  ansible.builtin.debug:
    msg: "{{ holes | llama_cpp.cluster.remote_holes({'number': 6200}) }}"
  vars:
    holes:
      - {cve: CVE-2026-34159, fixed_build: 8492}
"""

RETURN = r"""
_value:
  description: What is known.
  type: dict
  contains:
    open:
      description: The holes that it has, as they were given.
      type: list
      elements: dict
    unknown:
      description: Those of which it cannot be told.
      type: list
      elements: dict
"""

import re
from typing import Any, Callable, Mapping, Sequence

from ansible.errors import AnsibleFilterError


def remote_holes(holes: Sequence[Mapping[str, Any]], build: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return which of the holes a build has, and of which it is not known."""
    if not isinstance(build, Mapping) or isinstance(holes, (str, Mapping)):
        raise AnsibleFilterError("remote_holes needs a list of holes, and a dictionary of what is known of a build")
    found: dict[str, list[Mapping[str, Any]]] = {"open": [], "unknown": []}
    for hole in holes:
        has = _has(hole, build)
        if has is not False:
            found["open" if has else "unknown"].append(hole)
    return found


def _has(hole: Mapping[str, Any], build: Mapping[str, Any]) -> bool | None:
    if build.get("holes") is not None:
        return hole["cve"] in build["holes"]
    if build.get("number"):
        return bool(int(build["number"]) < int(hole["fixed_build"]))
    major = re.match(r"\d+", str(build.get("protocol") or ""))
    if major is None:
        return None
    protocol = int(major.group())
    if protocol >= int(hole.get("closed_from", protocol + 1)):
        return False
    return True if protocol < int(hole.get("open_below", 0)) else None


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> Mapping[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"remote_holes": remote_holes}
