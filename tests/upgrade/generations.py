# SPDX-License-Identifier: GPL-3.0-or-later
"""The releases between which these tests change, the two newest pins: RPC protocols 5.0.0 and 7.0.0."""

from __future__ import annotations

OLD, NEW = "0.3.35", "0.3.36"
