# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for setuptools while pip downloads a source archive; see `source_metadata`."""
