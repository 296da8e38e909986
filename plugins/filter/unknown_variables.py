# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: variables of hosts that look like those of this collection and are none."""

from __future__ import annotations

DOCUMENTATION = r"""
name: unknown_variables
short_description: Find misspelt variables of this collection
version_added: 0.3.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Returns one sentence for each variable of the hosts that begins with the name of a role of this collection, and that
    no role or playbook of it knows.
  - Other software may also use names that begin with a general word, such as C(inference_), C(kubernetes_) or
    C(upgrade_). Of these, it returns only names that one more, one less, one other or two exchanged characters turn
    into a known one.
  - It compares names, and evaluates only C(llama_cpp_allow_unknown_variables) of each host, a list of names that are
    not returned.
  - It warns once if Ansible's setting C(inject_facts_as_vars) is on, with which a host can override these variables.
positional: _input, hostvars
extends_documentation_fragment:
  - llama_cpp.cluster.inventory_hosts
"""

EXAMPLES = r"""
- name: Check that no variable is misspelt
  ansible.builtin.assert:
    that: misspelt | length == 0
    fail_msg: "{{ misspelt | join(' ') }}"
  vars:
    misspelt: "{{ ansible_play_hosts_all | llama_cpp.cluster.unknown_variables(hostvars) }}"
"""

RETURN = r"""
_value:
  description: One sentence for each unknown variable.
  type: list
  elements: str
"""

import difflib
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from ansible import constants
from ansible.errors import AnsibleFilterError
from ansible.utils.display import Display

_TOP = Path(__file__).resolve().parents[2]
_ALLOWED = "llama_cpp_allow_unknown_variables"
# The other prefixes are general words, with which the variables of other software may begin, too.
_OWN = ("gguf_", "llama_", "rpc_")
_HOSTS_NAMED = 3
_INJECTED = (
    "inject_facts_as_vars is on, so a host that somebody has taken over can change the variables of the inventory, and "
    "with them other hosts and this one: write inject_facts_as_vars = false under [defaults] in ansible.cfg."
)


@lru_cache(maxsize=None)
def _prefixes() -> tuple[str, ...]:
    names = [path.name for path in (_TOP / "roles").iterdir() if path.is_dir()]
    names += [path.stem for path in (_TOP / "playbooks").glob("*.yml")]
    return tuple(f"{name}_" for name in sorted(names))


@lru_cache(maxsize=None)
def _known() -> frozenset[str]:
    """Return each word with a prefix of this collection in the roles' argument specs and in the playbooks."""
    word = re.compile(rf"\b(?:{'|'.join(_prefixes())})[a-z0-9_]*[a-z0-9]")
    files = [*_TOP.glob("roles/*/meta/argument_specs.yml"), *_TOP.glob("playbooks/**/*.yml")]
    return frozenset(name for path in files for name in word.findall(path.read_text(encoding="utf-8")))


def _one_slip(name: str, other: str) -> bool:
    """Return whether one character more, less or other, or two exchanged ones, make two names equal."""
    if len(name) > len(other):
        name, other = other, name
    begin = 0
    while begin < len(name) and name[begin] == other[begin]:
        begin += 1
    rest, other_rest = name[begin:], other[begin:]
    if len(rest) < len(other_rest):
        return rest == other_rest[1:]
    return rest[1:] == other_rest[1:] or (rest[1::-1] == other_rest[:2] and rest[2:] == other_rest[2:])


def _nearest(name: str) -> str | None:
    """Return the known name that was probably meant."""
    slips = sorted(known for known in _known() if _one_slip(name, known))
    return next(iter(slips or difflib.get_close_matches(name, sorted(_known()), n=1, cutoff=0.75)), None)


def _is_unknown(name: str) -> bool:
    if not name.startswith(_prefixes()) or name in _known():
        return False
    return name.startswith(_OWN) or any(_one_slip(name, known) for known in _known())


def unknown_variables(hosts: Sequence[str], hostvars: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each unknown variable of these hosts."""
    if constants.INJECT_FACTS_AS_VARS:
        Display().warning(_INJECTED)  # once for a run
    found: dict[str, list[str]] = {}
    for host in hosts:
        variables = hostvars[host]
        unknown = [name for name in variables if _is_unknown(name)]
        allowed = variables.get(_ALLOWED, []) if unknown else []
        if isinstance(allowed, str) or not isinstance(allowed, Sequence):
            raise AnsibleFilterError(f"{_ALLOWED} of {host} is {allowed}; give a list of names")
        for name in unknown:
            if name not in allowed:
                found.setdefault(name, []).append(host)
    return [_sentence(name, names) for name, names in sorted(found.items())]


def _sentence(name: str, hosts: Sequence[str]) -> str:
    more = f" and {len(hosts) - _HOSTS_NAMED} more" if len(hosts) > _HOSTS_NAMED else ""
    nearest = _nearest(name)
    remedy = f"write {nearest}" if nearest else "remove it"
    named = f"{name} (of {', '.join(hosts[:_HOSTS_NAMED])}{more})"
    return f"No role or playbook of llama_cpp.cluster knows {named}: {remedy}, or list {name} in {_ALLOWED}."


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"unknown_variables": unknown_variables}
