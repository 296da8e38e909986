# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules that only look have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """Found by its name: C(extends_documentation_fragment)."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    support: full
    description: The module only reads, so it does the same in check mode.
  diff_mode:
    support: none
    description: The module changes nothing, so there is no difference to show.
  idempotent:
    support: full
    description: The module changes nothing.
notes:
  - Needs Python 3.8 or newer on the host, and only Python's standard library.
"""
