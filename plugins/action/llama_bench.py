# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the module of the same name unchanged, and show its progress, with the action of distributed_inference."""

from __future__ import annotations

from ansible_collections.llama_cpp.cluster.plugins.action.distributed_inference import ActionModule

__all__ = ["ActionModule"]
