# SPDX-License-Identifier: GPL-3.0-or-later
"""Sentences and tables for people about a cluster and a run.

Code that judges or shows given facts belongs here, and the limits for this; code that collects facts does not.
Floor 1: it imports no other package; every package above may import it.
"""
