# SPDX-License-Identifier: GPL-3.0-or-later
"""Releases of llama.cpp: sources, patches, CPU classes, trials on a host, and upgrades.

Code that brings a release to a host or judges one belongs here; code that runs a model with it does not.
Floor 2: it imports from `_files` and `_status`; floors 3 and 4 may import it.
"""
