# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the class of hosts that one build of llama.cpp serves."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.cpu_class import CpuClass, CpuClassError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.cpu_class import cpu_class as class_of

DOCUMENTATION = r"""
name: cpu_class
short_description: Find the class of hosts that can share one build of llama.cpp
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Turns facts about a host's CPU and C library into its CPU class. The class is the machine, the instruction-set
    features that llama.cpp has special code for, and the C library.
  - A program that is built with C(cmake_options) and against the C library of the class runs on every host
    of the class.
  - A feature counts only if the CPU also has all features that a compiler assumes with it, such as C(avx512cd),
    C(avx512bw), C(avx512dq) and C(avx512vl) with C(avx512f).
  - The filter knows features of C(x86_64) and C(aarch64). The class of another machine has no features.
options:
  _input:
    description: Facts about the host. C(machine) as C(uname -m) prints it, C(cpu) the line of C(flags) or C(Features)
      of C(/proc/cpuinfo), C(model) the name of the CPU for messages, and C(libc) the C library and its version, as
      C(getconf GNU_LIBC_VERSION) prints it, or V(musl).
    type: dict
    required: true
  features:
    description:
      - The features to build for, instead of all features of the CPU. Use their names in C(/proc/cpuinfo), or the
        shorter names in the class's C(name), such as V(asimddp) or V(dotprod).
      - V(baseline) alone means no feature. V(portable) alone means a build of all variants of the CPU code, of which a
        program picks one when it starts.
      - The filter adds the features that a feature needs. If the CPU lacks a feature, C(problem) says so.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Show the class of a Graviton2, here aarch64-dotprod-fp16-glibc2.36
  ansible.builtin.debug:
    msg: "{{ (look | llama_cpp.cluster.cpu_class).name }}"
  vars:
    look:
      machine: aarch64
      cpu: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs
      model: Neoverse-N1
      libc: glibc 2.36
"""

RETURN = r"""
_value:
  description:
    - C(name) of the class (fit for a file's name), C(machine), C(features) as C(/proc/cpuinfo) names them, C(libc),
      C(march) for C(-march) on C(aarch64), C(flags) that a compiler must know, and C(cmake_options) that build for
      exactly this class.
    - If there is no class, only C(problem), a sentence without its end.
  type: dict
"""


def cpu_class(look: object, features: object = ()) -> CpuClass | dict[str, str]:
    """Return the class, or the problem."""
    if not isinstance(look, Mapping):
        raise AnsibleFilterError("cpu_class needs a dictionary with machine, cpu, model and libc of a host")
    texts = {key: "" if look.get(key) is None else look[key] for key in ("machine", "cpu", "model", "libc")}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise AnsibleFilterError(f"cpu_class: {key} of the host must be a text, not {text!r}")
    try:
        return class_of(**texts, features=_words(features))
    except CpuClassError as error:
        return {"problem": str(error)}


def _words(value: object) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
        raise AnsibleFilterError(f"cpu_class: features must be a list of words, not {value!r}")
    return list(value)


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"cpu_class": cpu_class}
