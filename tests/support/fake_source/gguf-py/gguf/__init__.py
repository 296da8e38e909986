# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for the package that the converter brings along."""
