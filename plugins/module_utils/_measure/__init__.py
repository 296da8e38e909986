# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Measurements: llama-bench, tuning, and the report of a benchmark.

What compares runs, or shows how fast they were, belongs here.
Floor 4: it may import every package; no package imports it.
"""
