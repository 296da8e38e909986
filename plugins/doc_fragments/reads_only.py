# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What modules that only look have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """Found by its name: C(extends_documentation_fragment)."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    support: full
    description: Reads only, so it does the same in check mode.
  diff_mode:
    support: none
    description: There is nothing to show a difference of.
  idempotent:
    support: full
    description: Changes nothing.
notes:
  - Works with Python 3.8 and newer on the host, and needs no Python library but the standard one.
"""
