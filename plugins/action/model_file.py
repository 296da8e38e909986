# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run the module of the same name detached from the connection, and show its progress, as verified_download does."""

from __future__ import annotations

from ansible_collections.llama_cpp.cluster.plugins.action.verified_download import ActionModule

__all__ = ["ActionModule"]
