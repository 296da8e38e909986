# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules that fetch something from the network have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """Found by its name: C(extends_documentation_fragment)."""

    DOCUMENTATION = r"""
options:
  token:
    description:
      - A token that is sent as C(Authorization) header (C(Bearer)) to the host of each URL.
      - It is not sent to other hosts after a redirect, and appears in no message.
    type: str
  stall_timeout:
    description: How long to wait for the next byte, in seconds, before a retry.
    type: int
    default: 60
  retries:
    description: How often in a row to retry a request that brings no byte, with growing pauses of up to 30 seconds.
    type: int
    default: 5
notes:
  - Proxies are taken from the environment (E(https_proxy), E(no_proxy)).
"""
