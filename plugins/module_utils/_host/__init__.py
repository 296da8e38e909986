# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host is: its processors, its firewall, and the addresses that it trusts.

What reads one host's own state belongs here; what reads an RPC worker's belongs in `_rpc`.
Floor 1: it imports no other package; every package above may import it.
"""
