# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for upstream's converter, which a release has beside llama-quantize."""
