# SPDX-License-Identifier: GPL-3.0-or-later
"""RPC workers: their protocol, their parts on a host, and the content of their caches.

Code that knows the protocol or the workers' units belongs here; code that starts a master's program does not.
Floor 2: it imports from `_gguf`; floors 3 and 4 may import it.
"""
