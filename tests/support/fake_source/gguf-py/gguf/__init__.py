# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for the package that the converter brings along."""
