# SPDX-License-Identifier: GPL-3.0-or-later
"""Measurements: llama-bench, a server under load, and the report of a benchmark.

Code that compares runs or shows how fast they were belongs here.
Floor 4: it may import every package; no package imports it.
"""
