# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Private: what files of filters share. On the controller only."""

from __future__ import annotations

from typing import Any, Callable


def filter_module(function: Callable[..., Any]) -> type:
    """Return the class that Ansible looks for in a file with one filter, which has the name of its function."""
    return type("FilterModule", (), {"filters": lambda _self: {function.__name__: function}})
