# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: whether a program that was linked against one C library runs with another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.cpu_class import libc_can_run as can_run

if TYPE_CHECKING:
    from collections.abc import Callable

DOCUMENTATION = r"""
name: libc_can_run
short_description: Whether a C library can run what was linked against another
version_added: 0.1.0
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Whether programs that were linked against one C library run on a host with this one. That is so if both are of the
    same kind and this one is not older.
  - It is so, too, where one of them is not known; then only a trial can tell.
positional: _input, needed
options:
  _input:
    description: The C library of the host that shall run the programs, such as V(glibc 2.36) or V(musl).
    type: str
    required: true
  needed:
    description: The C library that the programs are linked against.
    type: str
    required: true
seealso:
  - plugin: llama_cpp.cluster.cpu_class
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Whether Debian 12 runs what Debian 13 builds is shown, here false
  ansible.builtin.debug:
    msg: "{{ 'glibc 2.36' | llama_cpp.cluster.libc_can_run('glibc 2.41') }}"
"""

RETURN = r"""
_value:
  description: Whether it can.
  type: bool
"""


def libc_can_run(libc: object, needed: object) -> bool:
    """Return whether it can."""
    return can_run(_text(libc), _text(needed))


def _text(libc: object) -> str:
    if libc is None:
        return ""
    if not isinstance(libc, str):
        raise AnsibleFilterError(f"libc_can_run needs two C libraries, such as glibc 2.36, not {libc!r}")
    return libc


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return them by name."""
        return {"libc_can_run": libc_can_run}
