# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for upstream's converter, which a release has beside llama-quantize."""
