# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for scikit-build-core while pip downloads a source archive; see `source_metadata`."""
