# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run the module of the same name as it is, and show meanwhile where it is: what the action beside this one does."""

from __future__ import annotations

from ansible_collections.llama_cpp.cluster.plugins.action.distributed_inference import ActionModule

__all__ = ["ActionModule"]
