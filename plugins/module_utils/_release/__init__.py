# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Releases of llama.cpp: sources, patches, CPU classes, trials on a host, and upgrades.

What brings a release to a host, or judges one, belongs here; what runs a model with it does not.
Floor 2: it imports from `_files` and `_status`; floors 3 and 4 may import it.
"""
