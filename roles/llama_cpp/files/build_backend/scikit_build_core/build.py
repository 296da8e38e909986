# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for a build backend; see `source_metadata`."""

from source_metadata import prepare_metadata_for_build_wheel

__all__ = ["prepare_metadata_for_build_wheel"]
