# SPDX-License-Identifier: GPL-3.0-or-later
"""What people are told of a cluster and of a run: sentences and tables.

What judges or shows given facts belongs here, and what they are judged by; what asks for facts does not.
Floor 1: it imports no other package; every package above may import it.
"""
