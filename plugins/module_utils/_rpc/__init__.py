# SPDX-License-Identifier: GPL-3.0-or-later
"""RPC workers: how they are asked, what of them is on a host, and what is in their caches.

What knows the protocol or the workers' units belongs here; what starts a master's program does not.
Floor 2: it imports from `_gguf` and `_files`; floors 3 and 4 may import it.
"""
