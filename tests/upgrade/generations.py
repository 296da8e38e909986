# SPDX-License-Identifier: GPL-3.0-or-later
"""The releases between which these tests change: RPC protocols 2.0.0, 5.0.0 and 7.0.0."""

from __future__ import annotations

OLD, MIDDLE, NEW = "0.3.16", "0.3.35", "0.3.36"
