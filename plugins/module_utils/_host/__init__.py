# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a host: its processors, its firewall, the addresses that it trusts, and how it confines a program.

Code that reads a host's own state belongs here; code that reads an RPC worker's state belongs in `_rpc`.
Floor 1: it imports no other package; every package above may import it.
"""
