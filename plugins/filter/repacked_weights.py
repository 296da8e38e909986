# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the devices of a run, with the weights that their workers have repacked."""

from __future__ import annotations

DOCUMENTATION = r"""
name: repacked_weights
short_description: The devices of a run, with the weights that their workers have repacked
version_added: 0.1.0
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Adds C(repacked_mib) to each device, what its worker has repacked of the weights that it got.
  - A worker says one figure for all of its devices; the first one has it.
positional: _input, repacked
options:
  _input:
    description: RV(llama_cpp.cluster.distributed_inference#module:devices).
    type: list
    elements: dict
    required: true
  repacked:
    description: >-
      By endpoint, the C(repack) of M(llama_cpp.cluster.rpc_server_info). One that did not say it is missing, or has
      V(null).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: How much the worker has repacked
  ansible.builtin.debug:
    msg: "{{ devices | llama_cpp.cluster.repacked_weights({'192.0.2.11:50052': {'mib': 512.0}}) }}"
  vars:
    devices:
      - {name: "RPC0[192.0.2.11:50052]", endpoint: "192.0.2.11:50052"}
"""

RETURN = r"""
_value:
  description: The devices, each with C(repacked_mib), V(null) where that is not known.
  type: list
  elements: dict
"""

from typing import Any, Callable, Mapping, Sequence

from ansible.errors import AnsibleFilterError


def repacked_weights(devices: Sequence[Mapping[str, Any]], repacked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the devices with what their workers have repacked."""
    if isinstance(devices, (str, Mapping)) or not isinstance(repacked, Mapping):
        raise AnsibleFilterError("repacked_weights needs a list of devices, and what workers have repacked by endpoint")
    left = dict(repacked)
    return [
        {**device, "repacked_mib": (left.pop(str(device["endpoint"]), None) or {}).get("mib")} for device in devices
    ]


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> Mapping[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"repacked_weights": repacked_weights}
